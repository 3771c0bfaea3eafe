// Every pass, every Opt and every rewrite, one after another, forwards and backwards.

const stepping = { at: 0, rule: "", scope: "kernel", node: -1 };

// [{kind, name, us, before, after, lines, entry, rule}, ...]: the first is the graph as it begins.
function stepsOf(scope) {
  const schedule = currentSchedule();
  const part = currentPart();
  if (scope === "kernel" && !part) return [];
  if (scope === "schedule" && !schedule) return [];
  const start = scope === "kernel" ? part.ast : schedule.body;
  const entries = scope === "kernel" ? part.passes : schedule.passes;
  return once(`steps${scope}${app.realize}.${app.step}.${app.part}`, () => {
    const found = [{ kind: "start", name: "as it begins", before: null, after: start }];
    let now = start;
    for (const entry of entries) {
      for (const [rule, before, after] of entry.fired || []) {
        found.push({ kind: "rewrite", name: rule, rule, before, after, entry });
      }
      if (entry.root === undefined && !entry.linear) continue;
      const name = entry.opt ? entry.opt : entry.name;
      const kind = entry.opt ? "opt" : "pass";
      const row = { kind, name, us: entry.us, before: now, after: entry.root, entry };
      if (entry.linear) row.lines = entry.linear;
      found.push(row);
      if (entry.root !== undefined) now = entry.root;
    }
    return found;
  });
}

function shownSteps() {
  const all = stepsOf(stepping.scope);
  return all.filter((s) => !stepping.rule || s.rule === stepping.rule);
}

function linesOfStep(step) {
  if (step.lines) return step.lines.lines.map((text, i) => [step.lines.places[i] >= 0 ?
    step.lines.uops[step.lines.places[i]] : -1, text]);
  return graphLines(step.after);
}

function graphPre(id, lines, marks, mark) {
  const pre = el("pre", { class: "graph", id, tabindex: "0" });
  lines.forEach(([n, text], i) => {
    const row = el("span", { class: "row", "data-node": n }, text + (i < lines.length - 1 ? "\n" : ""));
    row.style.display = "block";
    if (n >= 0 && marks.has(n)) row.classList.add(mark);
    if (n === stepping.node) row.classList.add("node");
    pre.append(row);
  });
  pre.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (!row) return;
    stepping.node = Number(row.dataset.node);
    for (const other of document.querySelectorAll("pre.graph .row")) {
      other.classList.toggle("node", Number(other.dataset.node) === stepping.node);
    }
    say("this node is followed: n goes to its next change");
  });
  return pre;
}

function nodesBelow(root) {
  return once("below" + root, () => new Set(orderBelow(root)));
}

function showSteps(panel) {
  const all = stepsOf(stepping.scope);
  const rules = new Map();
  for (const s of all) if (s.rule) rules.set(s.rule, (rules.get(s.rule) || 0) + 1);
  if (stepping.rule && !rules.has(stepping.rule)) stepping.rule = "";
  const steps = shownSteps();
  stepping.at = Math.max(0, Math.min(steps.length - 1, stepping.at));
  const options = [["", `all steps (${all.length})`]];
  for (const [rule, count] of [...rules].sort()) options.push([rule, `${rule} (${count})`]);
  const kernel = currentKernel();
  panel.append(el("div", { class: "tools" },
    choice("What is stepped through", [
      ["kernel", kernel ? `kernel ${kernel.name}` : "no kernel"],
      ["schedule", "the schedule of this request"],
    ], stepping.scope, (value) => {
      Object.assign(stepping, { scope: value, at: 0, node: -1 });
      render();
    }),
    kernel && kernel.parts.length > 1 && stepping.scope === "kernel" ?
      choice("Kernel of the run", kernel.parts.map((_, i) => [i, kernel.names[i]]), app.part,
        (value) => {
          Object.assign(stepping, { at: 0, node: -1 });
          app.part = Number(value);
          render();
        }) : null,
    choice("Steps of a rule", options, stepping.rule, (value) => {
      Object.assign(stepping, { rule: value, at: 0 });
      render();
    }),
    el("button", { type: "button", onclick: () => moveStep(-1), "aria-label": "Step back" }, "←"),
    el("button", { type: "button", onclick: () => moveStep(1), "aria-label": "Step on" }, "→"),
    el("span", { id: "step-count", class: "quiet" }),
    el("button", { type: "button", onclick: () => nextChange(1) }, "next change of the node (n)"),
    el("button", { type: "button", onclick: () => nextChange(-1) }, "its last (p)")));
  if (!steps.length) {
    panel.append(el("p", { class: "empty" }, "no pass has changed anything here"));
    return;
  }
  const list = el("div", { class: "step-list", role: "listbox", "aria-label": "Steps" });
  steps.forEach((s, i) => {
    list.append(el("div", {
      class: `step-item ${s.kind}`, role: "option", tabindex: "-1", "data-step": i,
      onclick: () => goToStep(i), onkeydown: press(() => goToStep(i)),
    }, s.name, s.us !== undefined ? el("span", { class: "us" }, timeText(s.us)) : null));
  });
  listKeys(list, ".step-item");
  panel.append(el("div", { class: "steps" }, list, el("div", { class: "step-view" })));
  paintStep();
}

function paintStep() {
  const steps = shownSteps();
  const step = steps[stepping.at];
  const view = document.querySelector(".step-view");
  if (!step || !view) return;
  document.getElementById("step-count").textContent = `step ${stepping.at} of ${steps.length - 1}`;
  for (const item of document.querySelectorAll(".step-item")) {
    const chosen = Number(item.dataset.step) === stepping.at;
    item.setAttribute("aria-selected", String(chosen));
    item.tabIndex = chosen ? 0 : -1;
    if (chosen) item.scrollIntoView({ block: "nearest" });
  }
  const about = el("div", { class: "step-about" }, el("h2", { id: "step-name" }, step.name));
  const rows = el("dl");
  const tell = (name, text) => text && rows.append(el("dt", {}, name), el("dd", {}, text));
  if (step.kind === "rewrite") {
    const said = app.data.rules[step.rule] || {};
    tell("rewrite", said.rewrite);
    tell("when", said.when);
    tell("why", said.why);
    tell("in pass", step.entry.opt || step.entry.name);
  } else if (step.kind === "pass") {
    const said = app.data.passes[step.name] || {};
    tell("does", said.does);
    tell("here", said.why);
    tell("time", timeText(step.us));
  } else if (step.kind === "opt") {
    tell("does", "one Opt of the schedule is applied to its axis");
    tell("time", timeText(step.us));
  } else {
    tell("is", stepping.scope === "kernel" ? "the kernel as the schedule gives it" :
      "the graph of the request, closed over its memory");
  }
  about.append(rows);
  const after = linesOfStep(step);
  const before = step.before === null ? [] : graphLines(step.before);
  const inBefore = step.before === null ? new Set() : nodesBelow(step.before);
  const inAfter = new Set(after.map(([n]) => n));
  const fresh = new Set([...inAfter].filter((n) => !inBefore.has(n)));
  const gone = new Set([...inBefore].filter((n) => !inAfter.has(n)));
  const pair = el("div", { class: "pair" });
  if (step.before !== null) {
    pair.append(el("section", {}, el("h3", {}, `before: ${gone.size} nodes go`),
      graphPre("before", before, gone, "gone")));
  }
  const what = step.before === null ? "" : `: ${fresh.size} nodes are new`;
  pair.append(el("section", {}, el("h3", {}, "after" + what),
    graphPre("after", after, step.before === null ? new Set() : fresh, "new")));
  view.replaceChildren(about, pair);
  for (const pre of pair.querySelectorAll("pre")) {
    const first = pre.querySelector(".row.node, .row.new, .row.gone");
    if (first && first.offsetTop > pre.clientHeight) pre.scrollTop = first.offsetTop - 60;
  }
  say(`step ${stepping.at} of ${steps.length - 1}: ${step.name}`);
}

function goToStep(i) {
  const steps = shownSteps();
  stepping.at = Math.max(0, Math.min(steps.length - 1, i));
  paintStep();
}

function moveStep(by) {
  goToStep(stepping.at + by);
}

// Whether a step makes a node, or takes it away.
function changes(step, node) {
  if (step.before === null) return false;
  if (step.kind === "rewrite") return step.before === node || step.after === node;
  const before = nodesBelow(step.before).has(node);
  const after = step.lines ? step.lines.uops.includes(node) : nodesBelow(step.after).has(node);
  return before !== after;
}

function nextChange(by) {
  if (stepping.node < 0) {
    say("choose a node first: click one of its lines");
    return;
  }
  const steps = shownSteps();
  for (let i = stepping.at + by; i >= 0 && i < steps.length; i += by) {
    if (changes(steps[i], stepping.node)) {
      goToStep(i);
      return;
    }
  }
  say(by > 0 ? "nothing changes this node later" : "nothing changed this node before");
}
