// Two runs: kernels that changed first, and their texts side by side.

const comparison = { row: 0, view: "source" };

function opcodes(a, b) {
  // Longest common subsequence of digests; runs of kernels are short lists.
  const n = a.length, m = b.length;
  const best = Array.from({ length: n + 1 }, () => new Uint32Array(m + 1));
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const pairs = [];
  let i = 0, j = 0, left = [], right = [];
  const flush = () => {
    const count = Math.max(left.length, right.length);
    for (let k = 0; k < count; k++) {
      pairs.push([left[k] === undefined ? null : left[k], right[k] === undefined ? null : right[k]]);
    }
    left = [];
    right = [];
  };
  while (i < n || j < m) {
    if (i < n && j < m && a[i] === b[j]) {
      flush();
      pairs.push([i++, j++]);
    } else if (j >= m || (i < n && best[i + 1][j] >= best[i][j + 1])) left.push(i++);
    else right.push(j++);
  }
  flush();
  return pairs;
}

function leastOf(data, kernel) {
  let least = Infinity;
  for (const e of data.events) if (e[0] === "kernel" && e[6] === kernel) least = Math.min(least, e[5]);
  return least;
}

function sameText(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}

function comparedRuns() {
  return once("compared", () => {
    const before = app.other, after = app.data;
    const digests = (data) => data.kernels.map((k) => k.digest);
    const rows = opcodes(digests(before), digests(after)).map(([i, j]) => {
      const a = before.kernels[i], b = after.kernels[j];
      const what = [];
      if (a && b) {
        if (a.digest !== b.digest) what.push("graph");
        if (!sameText(a.parts.map((p) => p.opts), b.parts.map((p) => p.opts))) what.push("Opts");
        if (!sameText(a.source, b.source)) what.push("source");
        if (!sameText(a.asm, b.asm)) what.push("assembly");
      }
      const state = !a ? "only after" : !b ? "only before" : what.length ? "changed" : "same";
      return { a, b, what, state, name: (a || b).name,
        us_before: a ? leastOf(before, i) : Infinity, us_after: b ? leastOf(after, j) : Infinity };
    });
    const order = ["changed", "only before", "only after", "same"];
    const change = (r) => Math.abs((Number.isFinite(r.us_after) ? r.us_after : 0) -
      (Number.isFinite(r.us_before) ? r.us_before : 0));
    return rows.sort((x, y) => order.indexOf(x.state) - order.indexOf(y.state) ||
      change(y) - change(x));
  });
}

// The data of a page, or of data alone, that a person has chosen.
async function readRun(file) {
  const text = await file.text();
  const found = /<script type="application\/gzip" id="run-data">([A-Za-z0-9+\/=\s]*)<\/script>/.exec(text);
  if (found === null) return JSON.parse(text);
  const bytes = Uint8Array.from(atob(found[1]), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function showCompare(panel) {
  const input = el("input", { type: "file", accept: ".html,.json", id: "other-file",
    "aria-label": "Another recorded run", onchange: async () => {
      try {
        const data = await readRun(input.files[0]);
        if (data.format !== "aster-viz") throw new Error("it has no recorded run");
        app.other = data;
        app.cache.delete("compared");
        render();
      } catch (error) {
        say(`this file cannot be compared: ${error.message}`);
      }
    } });
  panel.append(el("div", { class: "tools" }, el("label", {}, "Compare with the run in ", input),
    el("span", { class: "quiet" }, "(it stays on this machine; the other run counts as before)")));
  if (!app.other) {
    panel.append(el("p", { class: "empty" }, "Choose the file of another run: with NOOPT=1, with " +
      "BEAM=2, of another commit. Kernels that changed come first."));
    return;
  }
  const rows = comparedRuns();
  const changed = rows.filter((r) => r.state !== "same").length;
  const body = el("tbody");
  rows.forEach((r, i) => {
    const factor = r.us_before / r.us_after;
    const open = () => {
      comparison.row = i;
      render();
    };
    body.append(el("tr", { class: `state-${r.state.split(" ")[0]}`, tabindex: "0",
      "aria-selected": String(i === comparison.row), onclick: open, onkeydown: press(open) },
    el("td", {}, r.state), el("td", {}, r.name), el("td", {}, r.what.join(", ")),
    el("td", { class: "number" }, timeText(r.us_before)),
    el("td", { class: "number" }, timeText(r.us_after)),
    el("td", { class: "number" }, Number.isFinite(factor) ? factor.toFixed(2) + "x" : "")));
  });
  const heads = ["", "kernel", "differs in", "before", "after", "quicker"];
  panel.append(el("div", { class: "scroll-table", style: "max-height: 45%" }, el("table", {},
    el("caption", { id: "compare-count" }, `${changed} of ${rows.length} kernels differ: ` +
      `${baseName(app.other.made.script)} (${settingsText(app.other)}) and ` +
      `${baseName(app.data.made.script)} (${settingsText(app.data)})`),
    el("thead", {}, el("tr", {}, heads.map((h) => el("th", {}, h)))), body)));
  const row = rows[Math.min(comparison.row, rows.length - 1)];
  if (row) panel.append(...comparedTexts(row));
}

function settingsText(data) {
  const found = Object.entries(data.made.settings).map(([k, v]) => `${k}=${v}`);
  return found.join(" ") || "all settings at their defaults";
}

function textsOf(kernel, view, data) {
  if (!kernel) return [];
  if (view === "why") return kernel.parts.flatMap((p) => p.why);
  if (view === "linear") return kernel.parts.flatMap((p) => p.linear.lines);
  return kernel[view];
}

function comparedTexts(row) {
  const views = [["source", "source"], ["asm", "assembly"], ["linear", "linear program"],
    ["why", "why"]];
  const before = textsOf(row.a, comparison.view), after = textsOf(row.b, comparison.view);
  const inBefore = new Set(before), inAfter = new Set(after);
  const pre = (id, lines, others, mark) => el("pre", { class: "graph", id, tabindex: "0" },
    lines.map((text) => el("span", { class: `row${others.has(text) ? "" : " " + mark}`,
      style: "display:block" }, text + "\n")));
  return [
    el("div", { class: "tools" }, choice("Which text", views, comparison.view, (value) => {
      comparison.view = value;
      render();
    }), el("span", { class: "quiet" }, row.name)),
    el("div", { class: "pair" },
      el("section", {}, el("h3", {}, "before"), pre("text-before", before, inAfter, "gone")),
      el("section", {}, el("h3", {}, "after"), pre("text-after", after, inBefore, "new"))),
  ];
}
