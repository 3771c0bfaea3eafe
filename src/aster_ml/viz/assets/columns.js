// The hops side by side. A click on a line lights what it came from and what came of it.

const COLUMNS = [
  ["line", "Python"],
  ["node", "Tensor graph"],
  ["step", "Schedule"],
  ["ast", "Kernel"],
  ["lin", "Linear program"],
  ["src", "Source"],
  ["asm", "Assembly"],
  ["time", "Time"],
];

function lineElement(id, number, text, extra) {
  const line = el("div", { class: "line", "data-id": id, tabindex: id ? "-1" : null });
  if (number !== null) line.append(el("span", { class: "number", "aria-hidden": "true" }, number));
  line.append(text);
  if (extra) line.append(" ", extra);
  return line;
}

function pythonLines() {
  const frames = new Map();
  const realize = currentRealize();
  const wanted = new Set(realize ? Object.values(realize.calls) : []);
  const add = (f) => {
    const [file, line] = app.data.frames[f];
    if (!frames.has(file)) frames.set(file, new Set());
    frames.get(file).add(line);
  };
  for (const call of wanted) app.data.calls[call].stack.forEach(add);
  if (realize) realize.stack.forEach(add);
  const lines = [];
  for (const [file, used] of frames) {
    const { path, text } = app.data.files[file];
    lines.push(el("div", { class: "file-name" }, path));
    if (!text) lines.push(el("div", { class: "empty" }, "the text of this file was not there"));
    (text ? text.split("\n") : []).forEach((row, i) => {
      const id = used.has(i + 1) ? `line:${file}:${i + 1}` : null;
      lines.push(lineElement(id, i + 1, row));
    });
  }
  return lines;
}

function graphElements(root, prefix, numbered) {
  const lines = graphLines(root);
  return lines.map(([n, text]) => {
    const shape = numbered ? shapeOf(n) : "";
    const extra = shape ? el("span", { class: "shape" }, shape) : null;
    return lineElement(prefix + n, null, text, extra);
  });
}

function stepElements() {
  const schedule = currentSchedule();
  if (!schedule) return [];
  return schedule.steps.map((step, i) => {
    const kernel = app.data.kernels[step.kernel];
    const name = kernel ? kernel.name : `${step.kind} ${bytesText(step.bytes)}`;
    const slots = step.slots.map((s) => (s < schedule.args ? `arg${s}` : `tmp${s}`)).join(" ");
    const line = lineElement(`step:${i}`, i, `${name}  `, el("span", { class: "note" }, slots));
    if (i === app.step) line.setAttribute("aria-current", "true");
    return line;
  });
}

function timeElements() {
  const number = currentKernelNumber();
  const kernel = currentKernel();
  if (!kernel) return [];
  const runs = runsOf(number);
  const least = leastTime(runs);
  const total = runs.reduce((sum, e) => sum + e[5], 0);
  const lines = [
    `run ${runs.length} times, least ${timeText(least)}`,
    `all together ${timeText(total)}`,
    `${(kernel.ops / 1e6).toFixed(3)} million operations, ${bytesText(kernel.bytes)}`,
  ];
  if (runs.length) {
    lines.push(`${(kernel.ops / least / 1e3).toFixed(2)} GFLOP/s, ` +
      `${(kernel.bytes / least / 1e3).toFixed(2)} GB/s at its best`);
  }
  lines.push(`lowered in ${timeText(kernel.lower_us)}`);
  for (const e of app.data.events) {
    if (e[0] === "compile" && e[1].split(", ").some((n) => n === kernel.name)) {
      lines.push(`machine code in ${timeText(e[5])} (${e[3]})`);
      break;
    }
  }
  const rows = lines.map((text) => lineElement(null, null, text));
  const most = runs.reduce((m, e) => Math.max(m, e[5]), 0);
  runs.slice(0, 200).forEach((e, i) => {
    const width = Math.max(2, Math.round((e[5] / most) * 120));
    const row = lineElement(null, i, "", el("i", { class: "cost", style: `width:${width}px` }));
    row.append(" " + timeText(e[5]));
    rows.push(row);
  });
  return rows;
}

function contentOf(hop) {
  const kernel = currentKernel();
  const part = currentPart();
  const p = kernel ? Math.min(app.part, kernel.parts.length - 1) : 0;
  switch (hop) {
    case "line": return pythonLines();
    case "node": {
      const schedule = currentSchedule();
      return schedule ? graphElements(schedule.body, "node:", true) : [];
    }
    case "step": return stepElements();
    case "ast": return part ? graphElements(part.ast, `ast:${p}:`, false) : [];
    case "lin": return part ? part.linear.lines.map((text, i) => {
      const place = part.linear.places[i];
      return lineElement(place >= 0 ? `lin:${p}:${place}` : null, null, text);
    }) : [];
    case "src": return kernel ? kernel.source.map((text, i) =>
      lineElement(`src:${i}`, i + 1, text)) : [];
    case "asm": return kernel ? kernel.asm.map((text, i) => lineElement(`asm:${i}`, null, text)) : [];
    default: return timeElements();
  }
}

function emptyText(hop) {
  const kernel = currentKernel();
  if (!app.data.realizes.length) return "nothing was computed in this run";
  if (hop === "asm" && kernel) return kernel.no_asm || "no assembly";
  if (hop === "line") return "no line of the program is known for these nodes";
  return "this step has no kernel";
}

function detailOf(hop) {
  const kernel = currentKernel();
  if (hop === "src" && kernel) return kernel.language;
  if (hop === "ast" && kernel) return kernel.name;
  if (hop === "step") return currentSchedule() ? `${currentSchedule().steps.length} steps` : "";
  if (hop === "lin" && currentPart()) return currentPart().opts.join(" ");
  return "";
}

function showColumns(panel) {
  const kernel = currentKernel();
  if (kernel && kernel.parts.length > 1) panel.append(partTools());
  const box = el("div", { class: "columns" });
  for (const [hop, title] of COLUMNS) {
    const lines = contentOf(hop);
    const list = el("div", {
      class: "lines", role: "region", "aria-label": title, tabindex: "0", "data-hop": hop,
    });
    if (lines.length) chunked(list, lines);
    else list.append(el("p", { class: "empty" }, emptyText(hop)));
    box.append(el("section", { class: "column" },
      el("h2", {}, title, el("span", { class: "quiet" }, detailOf(hop))), list));
  }
  box.addEventListener("click", (event) => {
    const line = event.target.closest(".line[data-id]");
    if (line) light(line.dataset.id);
  });
  box.addEventListener("keydown", columnKeys);
  panel.append(box);
  paintLit(false);
}

function partTools() {
  const kernel = currentKernel();
  return el("div", { class: "tools" }, "This is a run of kernels, one after another for each part. ",
    choice("Kernel of the run", kernel.parts.map((part, i) => [i, `${i}: ${kernel.names[i]}`]),
      app.part, (value) => {
        app.part = Number(value);
        render();
      }));
}

function columnKeys(event) {
  const column = event.target.closest(".lines");
  if (!column) return;
  const lines = [...column.querySelectorAll(".line[data-id]")];
  const now = lines.indexOf(document.activeElement);
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 };
  if (event.key in moves) {
    const next = Math.max(0, Math.min(lines.length - 1, now + moves[event.key]));
    if (lines[next]) lines[next].focus();
    event.preventDefault();
  } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    const columns = [...document.querySelectorAll(".columns .lines")];
    const at = columns.indexOf(column) + (event.key === "ArrowRight" ? 1 : -1);
    if (columns[at]) {
      (columns[at].querySelector(".line.lit[data-id]") || columns[at]).focus();
      columns[at].scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    event.preventDefault();
  } else if ((event.key === "Enter" || event.key === " ") && now >= 0) {
    light(lines[now].dataset.id);
    event.preventDefault();
  }
}

// Lights a place; a step is looked at from then on, too.
function light(id) {
  const [hop, number] = id.split(":");
  if (app.origin === id && hop !== "step") {
    app.origin = "";
    app.lit = new Set();
    paintLit(false);
    say("nothing is lit");
    return;
  }
  if (hop === "step" && Number(number) !== app.step) {
    choose(app.realize, Number(number));
  } else if (hop === "line" || hop === "node") {
    const steps = [...linked(id)].filter((x) => x.startsWith("step:")).map((x) => Number(x.slice(5)));
    if (steps.length && !steps.includes(app.step)) choose(app.realize, Math.max(...steps));
  }
  app.origin = id;
  app.lit = linked(id);
  paintLit(true);
  const counts = HOPS.map((h) => [h, [...app.lit].filter((x) => x.startsWith(h + ":")).length]);
  const names = Object.fromEntries(COLUMNS);
  say("lit: " + counts.filter(([, n]) => n).map(([h, n]) => `${n} of ${names[h]}`).join(", "));
}

function paintLit(scroll) {
  for (const line of document.querySelectorAll(".line[data-id], .step-row[data-id]")) {
    line.classList.toggle("lit", app.lit.has(line.dataset.id));
    line.classList.toggle("origin", line.dataset.id === app.origin);
  }
  if (!scroll) return;
  for (const column of document.querySelectorAll(".columns .lines")) {
    const first = column.querySelector(".line.lit");
    if (!first) continue;
    // Chunks out of sight have no layout yet: after the chunk is in sight, its lines have.
    for (const part of [first.closest(".chunk"), first]) {
      const top = part.getBoundingClientRect().top - column.getBoundingClientRect().top;
      if (top < 0 || top > column.clientHeight - 20) {
        column.scrollTop += top - (part === first ? column.clientHeight / 3 : 0);
      }
    }
  }
}
