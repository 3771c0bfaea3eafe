// Which elements each access touches at one turn of the loops.

const picture = { row: 0, values: new Map() };

// What integer and bool nodes come to; undefined where a loaded number decides.
const MEANING = {
  ADD: (x, y) => x + y,
  SUB: (x, y) => x - y,
  MUL: (x, y) => x * y,
  MAX: (x, y) => Math.max(x, y),
  AND: (x, y) => (typeof x === "boolean" ? x && y : Number(BigInt(x) & BigInt(y))),
  OR: (x, y) => (typeof x === "boolean" ? x || y : Number(BigInt(x) | BigInt(y))),
  XOR: (x, y) => (typeof x === "boolean" ? x !== y : Number(BigInt(x) ^ BigInt(y))),
  SHL: (x, y) => x * 2 ** y,
  SHR: (x, y) => Math.floor(x / 2 ** y),
  CMPLT: (x, y) => x < y,
  CMPNE: (x, y) => x !== y,
  CMPEQ: (x, y) => x === y,
  WHERE: (c, x, y) => (c ? x : y),
  NEG: (x) => -x,
  CAST: (x) => (typeof x === "boolean" ? Number(x) : x),
};

function divide(x, y, dtype) {
  if (y === 0) return 0;
  return dtype === "index" ? Math.floor(x / y) : Math.trunc(x / y);
}

function evaluateNode(n, values, known) {
  if (values.has(n)) return values.get(n);
  if (known.has(n)) return known.get(n);
  const op = opOf(n);
  let found;
  if (op === "CONST") {
    const arg = argOf(n);
    found = arg === "True" ? true : arg === "False" ? false : Number(arg);
  } else if (op === "DEFINE_VAR") {
    const name = /name='([^']*)'/.exec(argOf(n));
    const realize = currentRealize();
    found = name && realize ? realize.values[name[1]] : undefined;
  } else {
    const inputs = app.data.nodes.src[n].map((s) => evaluateNode(s, values, known));
    if (inputs.every((x) => x !== undefined)) {
      if (op === "IDIV") found = divide(inputs[0], inputs[1], dtypeOf(n));
      else if (op === "MOD") {
        found = inputs[0] - inputs[1] * divide(inputs[0], inputs[1], dtypeOf(n));
      } else if (op === "CAST" && dtypeOf(n) === "bool") found = inputs[0] !== 0;
      else if (MEANING[op]) found = MEANING[op](...inputs);
      else if (op === "AFTER") found = inputs[0];
    }
  }
  known.set(n, found);
  return found;
}

function sizesOfLanes(accesses, row) {
  const sizes = new Map(accesses.lanes.map((lane) => [lane.node, lane]));
  return row.lanes.map((node) => sizes.get(node));
}

// [[element, lane, gate], ...] that an access touches, with these values of the loops; a gate that
// fails is left out, one that data decide is undefined.
function touchedBy(accesses, row, loops) {
  const lanes = sizesOfLanes(accesses, row);
  const found = [];
  const turn = (i, values) => {
    if (i < lanes.length) {
      for (let v = 0; v < lanes[i].size; v++) turn(i + 1, new Map(values).set(lanes[i].node, v));
      return;
    }
    const known = new Map();
    const gate = row.gate < 0 ? true : evaluateNode(row.gate, values, known);
    if (gate === false) return;
    let element = 0;
    for (const part of row.at) {
      const value = evaluateNode(part, values, known);
      if (value === undefined) return;
      element += value;
    }
    const vector = lanes.find((lane) => lane.vector);
    for (let k = 0; k < row.words; k++) {
      found.push([element + k, vector ? values.get(vector.node) : 0, gate]);
    }
  };
  turn(0, new Map(loops));
  return found;
}

function loopValues(accesses) {
  const values = new Map();
  for (const loop of accesses.loops) {
    const wanted = picture.values.get(loop.node) || 0;
    values.set(loop.node, Math.max(0, Math.min(loop.size - 1, wanted)));
  }
  return values;
}

function nestBoxes(accesses, repaint) {
  const values = loopValues(accesses);
  return accesses.loops.map((loop, depth) => {
    const out = el("output", {}, values.get(loop.node));
    const slider = el("input", {
      type: "range", min: 0, max: loop.size - 1, value: values.get(loop.node),
      "data-loop": loop.node, "aria-label": `r${loop.id}, ${loop.kind}, 0 to ${loop.size - 1}`,
      oninput: () => {
        picture.values.set(loop.node, Number(slider.value));
        out.textContent = slider.value;
        repaint();
      },
    });
    const kind = loop.kind.toLowerCase();
    const size = loop.fixed ? loop.size : `at most ${loop.size}`;
    return el("div", { class: `nest ${kind}`, style: `margin-left:${Math.min(depth, 8) * 12}px` },
      el("label", {}, `r${loop.id}`, slider, out,
        el("span", { class: "quiet" }, `of ${size} ${kind}`)));
  });
}

function memoryName(row) {
  return row.slot >= 0 ? `slot ${row.slot}` : "scratch";
}

function indexText(row) {
  const text = row.at.map((n) => noteOf(n) || expression(n, 0)).join(" + ");
  return text.length > 160 ? text.slice(0, 159) + "…" : text;
}

// An index of machine integers, written out.
function expression(n, depth) {
  const op = opOf(n);
  if (op === "CONST") return argOf(n);
  if (op === "RANGE") return "r" + (/id=(\d+)/.exec(argOf(n)) || ["", "?"])[1];
  if (op === "DEFINE_VAR") return (/name='([^']*)'/.exec(argOf(n)) || ["", "n"])[1];
  if (depth > 7) return "…";
  const inputs = app.data.nodes.src[n].map((s) => expression(s, depth + 1));
  const sign = { ADD: "+", SUB: "-", MUL: "*", IDIV: "//", MOD: "%", CMPLT: "<", AND: "&" }[op];
  if (sign && inputs.length === 2) {
    return depth ? `(${inputs.join(sign)})` : inputs.join(` ${sign} `);
  }
  return op === "CAST" ? inputs[0] : `${op.toLowerCase()}(${inputs.join(", ")})`;
}

function showAccess(panel) {
  const part = currentPart();
  const kernel = currentKernel();
  if (!part || !part.accesses.rows.length) {
    panel.append(el("p", { class: "empty" }, "this step has no kernel with accesses"));
    return;
  }
  if (kernel.parts.length > 1) panel.append(partTools());
  const accesses = part.accesses;
  picture.row = Math.min(picture.row, accesses.rows.length - 1);
  const left = el("div"), right = el("div", { id: "touched" });
  const repaint = () => paintTouched(right, accesses);
  left.append(el("h2", {}, "Loops"), el("p", { class: "quiet" },
    "Drag a loop variable: the elements that the access touches at this turn are shown."),
  ...(accesses.loops.length ? nestBoxes(accesses, repaint) :
    [el("p", { class: "quiet" }, "no loops")]));
  if (accesses.lanes.length) {
    left.append(el("p", { class: "quiet" }, "Lanes: " + accesses.lanes.map((lane) =>
      `r${lane.id} ${lane.size} ${lane.kind.toLowerCase()}`).join(", ")));
  }
  left.append(el("h2", {}, "Accesses"));
  accesses.rows.forEach((row, i) => {
    const safe = row.verdict.startsWith("inside") ? "1" : "0";
    left.append(el("button", {
      type: "button", class: "access-row", "data-row": i, "data-safe": safe,
      "aria-pressed": String(i === picture.row),
      onclick: () => {
        picture.row = i;
        for (const other of left.querySelectorAll(".access-row")) {
          other.setAttribute("aria-pressed", String(other.dataset.row === String(i)));
        }
        repaint();
      },
    }, `${row.op} ${memoryName(row)} [${indexText(row)}]`,
    el("span", { class: "verdict" }, row.verdict)));
  });
  panel.append(el("div", { class: "access" }, left, right));
  repaint();
}

function paintTouched(box, accesses) {
  const row = accesses.rows[picture.row];
  const values = loopValues(accesses);
  const touched = touchedBy(accesses, row, values);
  const elements = new Map();
  for (const [element, lane] of touched) if (!elements.has(element)) elements.set(element, lane);
  const each = Math.max(1, Math.floor(64 / row.bytes));
  const lines = new Map();
  for (const element of elements.keys()) {
    const line = Math.floor(element / each);
    lines.set(line, (lines.get(line) || 0) + 1);
  }
  const outside = [...elements.keys()].filter((e) => e < 0 || e >= row.size);
  const gated = touched.length === 0 && row.gate >= 0;
  const used = lines.size ? (100 * elements.size) / (lines.size * each) : 0;
  const where = [...values].map(([n, v]) => `r${(/id=(\d+)/.exec(argOf(n)) || [])[1]}=${v}`).join(" ");
  const text = row.by_data ? "Numbers that are loaded decide the place: no turn can be drawn." :
    gated ? "The gate fails at this turn: nothing is touched." :
      `${elements.size} elements in ${lines.size} cache lines of 64 bytes, ${used.toFixed(0)}% of ` +
      `them used${outside.length ? `; ${outside.length} OUTSIDE of the buffer` : ""}`;
  const strip = el("div", { class: "strip" });
  const cells = el("div", { class: "cells" });
  const shown = [...lines.keys()].sort((a, b) => a - b);
  for (const line of shown.slice(0, 96)) {
    const cellsOfLine = [];
    for (let i = 0; i < each; i++) {
      const element = line * each + i;
      const is = elements.has(element);
      const out = element < 0 || element >= row.size;
      cellsOfLine.push(el("span", {
        class: `cell${is ? " touched" : ""}${is && row.op === "STORE" ? " stored" : ""}` +
          (out ? " outside" : ""),
        "data-element": element, title: `element ${element}` + (is ? `, lane ${elements.get(element)}` : ""),
      }, is ? elements.get(element) : ""));
    }
    cells.append(el("div", { class: "cache-line" }, el("span", { class: "at" }, line * each), cellsOfLine));
  }
  if (shown.length > 96) cells.append(el("p", { class: "quiet" }, `and ${shown.length - 96} more lines`));
  box.replaceChildren(
    el("h2", {}, `${row.op} ${memoryName(row)} at ${where || "its only turn"}`),
    el("p", { role: "status", id: "touched-text" }, text),
    el("p", { class: "quiet" }, row.verdict),
    el("h3", {}, `The whole of it: ${row.size.toLocaleString("en")} elements of ${row.bytes} bytes`),
    strip,
    el("div", { class: "legend" }, el("span", {}, el("i", { class: "cell touched" }), "loaded"),
      el("span", {}, el("i", { class: "cell touched stored" }), "stored"),
      el("span", {}, "numbers in cells: the SIMD lane; a row: one cache line")),
    el("p", {}, el("button", { type: "button", onclick: () => tryAll(accesses, row) },
      "Try every turn"), " ", el("span", { id: "all-turns", role: "status" })),
    cells);
  const marks = canvasIn(strip, "which part of the memory is touched", (c, width, height) => {
    c.fillStyle = color(row.op === "STORE" ? "--compile" : "--bar");
    for (const element of elements.keys()) {
      const x = (element / row.size) * width;
      c.fillRect(x, 0, Math.max(1.5, width / row.size), height);
    }
  });
  marks.canvas.style.width = "100%";
  marks.canvas.style.height = "100%";
}

// Walks all turns of the loops, as far as there are not too many, and says whether all are inside.
function tryAll(accesses, row) {
  const most = 400000;
  const loops = accesses.loops.filter((loop) => row.loops.includes(loop.node));
  const turns = loops.reduce((n, loop) => n * loop.size, 1) *
    sizesOfLanes(accesses, row).reduce((n, lane) => n * lane.size, 1);
  const out = document.getElementById("all-turns");
  if (row.by_data || turns > most) {
    out.textContent = row.by_data ? "numbers that are loaded decide" :
      `${turns.toLocaleString("en")} turns are more than are walked here`;
    return;
  }
  let low = Infinity, high = -Infinity, count = 0;
  const turn = (i, values) => {
    if (i < loops.length) {
      for (let v = 0; v < loops[i].size; v++) turn(i + 1, new Map(values).set(loops[i].node, v));
      return;
    }
    for (const [element] of touchedBy(accesses, row, values)) {
      low = Math.min(low, element);
      high = Math.max(high, element);
      count++;
    }
  };
  turn(0, loopValues(accesses));
  const inside = count === 0 || (low >= 0 && high < row.size);
  out.textContent = count === 0 ? "nothing is ever touched" :
    `all ${count.toLocaleString("en")} accesses: elements ${low} to ${high} of ${row.size}, ` +
    (inside ? "all inside" : "NOT all inside");
}
