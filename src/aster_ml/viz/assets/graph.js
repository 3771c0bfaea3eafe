// The graph as a picture, folded by the modules of the program and the calls in them.

const graph = {
  scope: "tensor", open: new Set(), at: { x: 0, y: 0, scale: 1 }, view: null, items: [], edges: [],
  boxes: [], chosen: -1, found: [], foundAt: -1, model: null, tidy: true, turn: 0, place: new Map(),
};
const QUIET = new Set(["CONST", "DEVICE", "RESHAPE", "EXPAND", "PERMUTE", "DETACH", "CUSTOM_GRADIENT", "RANGE", "IOTA",
  "CONTIGUOUS_BACKWARD"]);
// A group is opened at once while so many boxes are in sight at most.
const FEW_BOXES = 40;

function rootOfScope() {
  const schedule = currentSchedule();
  const part = currentPart();
  if (graph.scope === "kernel") return part ? part.ast : -1;
  return schedule ? schedule.body : -1;
}

function callText(call) {
  const { name, stack } = app.data.calls[call];
  if (!stack.length) return name;
  const [file, line] = app.data.frames[stack[0]];
  return `${name}  ${baseName(app.data.files[file].path)}:${line}`;
}

// `Net.layers[0].first` as Net, .layers[0], .first.
function pathOfCall(call) {
  const { stack } = app.data.calls[call];
  const module = stack.length ? app.data.frames[stack[0]][3] : "";
  const parts = module ? module.split(/(?=\.[A-Za-z_])/) : [];
  return [...parts, callText(call)];
}

// The tree of groups, and for each node of the graph its path in it.
function graphModel() {
  const root = rootOfScope();
  const key = `model${graph.scope}${root}.${app.realize}`;
  return once(key, () => {
    const order = root < 0 ? [] : orderBelow(root);
    const src = app.data.nodes.src;
    const place = new Map(order.map((n, i) => [n, i]));
    const readers = new Map(order.map((n) => [n, []]));
    for (const n of order) for (const s of src[n]) readers.get(s).push(n);
    const calls = graph.scope === "tensor" && currentRealize() ? currentRealize().calls : {};
    const paths = new Map();
    // What no call has made (weights, constants) stands with its readers, as far as they agree.
    for (let i = order.length - 1; i >= 0; i--) {
      const n = order[i];
      if (calls[n] !== undefined) paths.set(n, pathOfCall(calls[n]));
      else {
        const above = readers.get(n).map((r) => paths.get(r));
        let common = above.length ? above[0] : [];
        for (const path of above.slice(1)) {
          let k = 0;
          while (k < common.length && k < path.length && common[k] === path[k]) k++;
          common = common.slice(0, k);
        }
        paths.set(n, common);
      }
    }
    const groups = new Map([["", { id: "", name: "", parent: null, count: 0, inside: [] }]]);
    const homes = new Map();
    for (const n of order) {
      let id = "";
      groups.get("").count++;
      for (const name of paths.get(n)) {
        const inner = id ? `${id} › ${name}` : name;
        if (!groups.has(inner)) {
          groups.set(inner, { id: inner, name, parent: id, count: 0, inside: [] });
          groups.get(id).inside.push(inner);
        }
        id = inner;
        groups.get(id).count++;
      }
      homes.set(n, id);
    }
    return { root, order, place, readers, groups, homes, aside: asideOf(order, readers) };
  });
}

// What says only where a result goes: the SINK, and memory that is written and never read.
function asideOf(order, readers) {
  const found = new Set();
  const isTarget = (n) => readers.get(n).every((r) => (opOf(r) === "STORE" ?
    app.data.nodes.src[r][0] === n : QUIET.has(opOf(r)) && isTarget(r)));
  for (const n of order) {
    if (opOf(n) === "SINK" || (opOf(n) === "PARAM" && isTarget(n))) found.add(n);
  }
  return found;
}

function isOpen(id) {
  return id === "" || graph.open.has(id);
}

// The group that stands for a node: the outermost of its groups that is closed; null for none.
function closedGroup(model, n) {
  let found = null;
  for (let id = model.homes.get(n); id; id = model.groups.get(id).parent) {
    if (!isOpen(id)) found = id;
  }
  return found;
}

// Opens groups, the largest first, as long as few boxes are in sight.
function openFew(model) {
  graph.open = new Set();
  let count = visibleCount(model);
  for (;;) {
    const closed = [...model.groups.values()].filter((g) => g.id && !isOpen(g.id) && isOpen(g.parent));
    closed.sort((a, b) => b.count - a.count);
    const next = closed.find((g) => g.inside.length && count + g.inside.length <= FEW_BOXES);
    if (!next) return;
    graph.open.add(next.id);
    count = visibleCount(model);
    if (count > FEW_BOXES) {
      graph.open.delete(next.id);
      return;
    }
  }
}

function visibleCount(model) {
  const seen = new Set();
  for (const n of model.order) {
    const group = closedGroup(model, n);
    if (group !== null) seen.add(group);
    else if (!graph.tidy || !(QUIET.has(opOf(n)) || model.aside.has(n))) seen.add(n);
  }
  return seen.size;
}

function buildItems(model) {
  const items = [], edges = new Map(), places = new Map();
  const stands = new Map();
  const src = app.data.nodes.src;
  for (const n of model.order) {
    const group = closedGroup(model, n);
    const id = group === null ? n : group;
    if (graph.tidy && group === null && model.aside.has(n)) continue;
    if (group === null && graph.tidy && QUIET.has(opOf(n)) && src[n].length <= 1 + (opOf(n) !== "CONST")) {
      // A view is seen through: who reads it reads what it shows. A constant is left out.
      const below = src[n].map((s) => stands.get(s)).find((x) => x !== undefined);
      stands.set(n, below);
      continue;
    }
    if (!places.has(id)) {
      places.set(id, items.length);
      items.push(group === null ? nodeItem(model, n) : groupItem(model, group));
    }
    const at = places.get(id);
    items[at].order = Math.max(items[at].order, model.place.get(n));
    items[at].nodes++;
    stands.set(n, at);
    for (const s of src[n]) {
      const from = stands.get(s);
      if (from === undefined || from === at) continue;
      const key = `${from},${at}`;
      edges.set(key, (edges.get(key) || 0) + 1);
    }
  }
  graph.items = items;
  graph.edges = [...edges].map(([key, count]) => [...key.split(",").map(Number), count]);
  graph.place = stands;
}

function nodeItem(model, n) {
  const memory = /slot=(\d+) size=(\S+)/.exec(opOf(n) === "PARAM" ? argOf(n) : "");
  const text = memory ? `PARAM ${memory[1]}` : shortText(n);
  const under = [dtypeOf(n), memory ? memory[2] : shapeOf(n)].filter((x) => x && x !== "void").join(" ");
  const width = Math.max(60, 7.2 * Math.max(text.length, under.length) + 18);
  return { node: n, text, under, width, height: under ? 40 : 26, order: 0, nodes: 0,
    group: model.homes.get(n), x: 0, y: 0 };
}

function groupItem(model, id) {
  const g = model.groups.get(id);
  const under = `${g.count} nodes`;
  const text = "▸ " + (g.name.length > 44 ? g.name.slice(0, 43) + "…" : g.name);
  const width = Math.max(80, 7.2 * Math.max(text.length, under.length) + 22);
  return { groupId: id, text, under, width, height: 42, order: 0, nodes: 0, group: g.parent, x: 0, y: 0 };
}

// Layers at once, and elkjs when it is done; whoever asked later wins.
async function layoutGraph(fit) {
  const model = graphModel();
  const turn = ++graph.turn;
  graph.model = model;
  buildItems(model);
  graph.boxes = plainLayout(graph.items, graph.edges);
  if (fit) fitGraph();
  if (graph.view) graph.view.ask();
  say(graphText());
  const items = graph.items;
  const boxes = await elkLayout(items, graph.edges.map(([a, b]) => [a, b]), model.groups);
  if (turn !== graph.turn || boxes === null) return;
  graph.boxes = boxes;
  if (fit) fitGraph();
  if (graph.view) graph.view.ask();
  document.body.dataset.layout = String(turn);
}

function graphText() {
  const model = graph.model;
  return `${model.order.length.toLocaleString("en")} nodes in ${graph.items.length} boxes, ` +
    `${graph.edges.length} edges`;
}

function fitGraph() {
  if (!graph.items.length || !graph.view) return;
  const box = graph.view.canvas.parentElement;
  let x0 = Infinity, y0 = Infinity, x1 = -Infinity, y1 = -Infinity;
  for (const i of [...graph.items, ...graph.boxes]) {
    x0 = Math.min(x0, i.x);
    y0 = Math.min(y0, i.y);
    x1 = Math.max(x1, i.x + i.width);
    y1 = Math.max(y1, i.y + i.height);
  }
  const scale = Math.min(1.2, (box.clientWidth - 40) / (x1 - x0), (box.clientHeight - 40) / (y1 - y0));
  const at = { scale: Math.max(0.002, scale) };
  at.x = box.clientWidth / 2 - at.scale * (x0 + x1) / 2;
  at.y = Math.max(20 - at.scale * y0, box.clientHeight / 2 - at.scale * (y0 + y1) / 2);
  graph.at = at;
}

function drawGraph(c, width, height) {
  const { x, y, scale } = graph.at;
  const left = -x / scale, top = -y / scale;
  const right = left + width / scale, bottom = top + height / scale;
  c.save();
  c.translate(x, y);
  c.scale(scale, scale);
  for (const b of graph.boxes) {
    c.fillStyle = color("--panel");
    c.strokeStyle = color("--line");
    c.lineWidth = 1 / scale;
    c.fillRect(b.x, b.y, b.width, b.height);
    c.strokeRect(b.x, b.y, b.width, b.height);
    if (scale > 0.25) {
      c.fillStyle = color("--quiet");
      c.font = "600 12px system-ui, sans-serif";
      c.fillText("▾ " + graph.model.groups.get(b.id).name, b.x + 8, b.y + 16);
    }
  }
  const near = neighbours();
  const many = graph.edges.length > 4000;
  c.lineWidth = Math.max(1, 0.6 / scale);
  const ordinary = color("--quiet"), chosen = color("--lit-edge");
  c.globalAlpha = many ? 0.25 : 0.6;
  c.strokeStyle = ordinary;
  c.beginPath();
  const marked = [];
  graph.edges.forEach(([a, b], i) => {
    const p = graph.items[a], q = graph.items[b];
    const x0 = p.x + p.width / 2, y0 = p.y + p.height, x1 = q.x + q.width / 2, y1 = q.y;
    if (Math.max(x0, x1) < left || Math.min(x0, x1) > right || Math.max(y0, y1) < top ||
        Math.min(y0, y1) > bottom) return;
    if (near.edges.has(i)) {
      marked.push([x0, y0, x1, y1]);
      return;
    }
    c.moveTo(x0, y0);
    if (many) c.lineTo(x1, y1);
    else c.bezierCurveTo(x0, y0 + 24, x1, y1 - 24, x1, y1);
  });
  c.stroke();
  c.globalAlpha = 1;
  c.strokeStyle = chosen;
  c.lineWidth = Math.max(2, 1 / scale);
  c.beginPath();
  for (const [x0, y0, x1, y1] of marked) {
    c.moveTo(x0, y0);
    c.bezierCurveTo(x0, y0 + 24, x1, y1 - 24, x1, y1);
  }
  c.stroke();
  const readable = scale > 0.35;
  const back = color("--back"), line = color("--line"), ink = color("--ink"), quiet = color("--quiet");
  const bar = color("--bar"), lit = color("--lit"), fold = color("--chosen"), accent = color("--accent");
  c.textBaseline = "middle";
  graph.items.forEach((item, i) => {
    if (item.x > right || item.x + item.width < left || item.y > bottom || item.y + item.height < top) return;
    const found = graph.foundSet && graph.foundSet.has(i);
    const isLit = item.node !== undefined && app.lit.has(`${graph.scope === "kernel" ?
      `ast:${app.part}:` : "node:"}${item.node}`);
    c.fillStyle = found || isLit ? lit : item.groupId ? fold : back;
    c.strokeStyle = i === graph.chosen ? accent : near.items.has(i) ? chosen :
      item.groupId ? bar : line;
    c.lineWidth = i === graph.chosen ? Math.max(2.5, 2 / scale) : Math.max(1, 0.5 / scale);
    c.beginPath();
    if (readable && c.roundRect) c.roundRect(item.x, item.y, item.width, item.height, 5);
    else c.rect(item.x, item.y, item.width, item.height);
    c.fill();
    c.stroke();
    if (!readable) return;
    c.fillStyle = ink;
    c.font = `${item.groupId ? "600 " : ""}12px system-ui, sans-serif`;
    c.fillText(item.text, item.x + 9, item.y + (item.under ? 13 : item.height / 2), item.width - 14);
    if (item.under) {
      c.fillStyle = quiet;
      c.font = "11px system-ui, sans-serif";
      c.fillText(item.under, item.x + 9, item.y + 29, item.width - 14);
    }
  });
  c.restore();
}

function neighbours() {
  const found = { items: new Set(), edges: new Set() };
  graph.edges.forEach(([a, b], i) => {
    if (a === graph.chosen || b === graph.chosen) {
      found.edges.add(i);
      found.items.add(a === graph.chosen ? b : a);
    }
  });
  return found;
}

function chooseItem(i, center) {
  graph.chosen = i;
  const item = graph.items[i];
  if (!item) return;
  if (center) {
    const box = graph.view.canvas.parentElement;
    graph.at.scale = Math.max(graph.at.scale, 0.5);
    graph.at.x = box.clientWidth / 2 - graph.at.scale * (item.x + item.width / 2);
    graph.at.y = box.clientHeight / 2 - graph.at.scale * (item.y + item.height / 2);
  }
  paintCard();
  graph.view.ask();
  say(`${item.text}, ${item.under}`);
}

function toggleGroup(id) {
  if (graph.open.has(id)) {
    for (const other of [...graph.open]) {
      if (other === id || other.startsWith(id + " › ")) graph.open.delete(other);
    }
  } else graph.open.add(id);
  graph.chosen = -1;
  layoutGraph(true).then(() => markFound());
}

function paintCard() {
  const card = document.getElementById("graph-card");
  const item = graph.items[graph.chosen];
  if (!card || !item) return;
  const button = (i) => el("li", {}, el("button", { type: "button", "data-item": i,
    onclick: () => chooseItem(i, true) }, graph.items[i].text));
  const above = graph.edges.filter(([, b]) => b === graph.chosen).map(([a]) => a);
  const below = graph.edges.filter(([a]) => a === graph.chosen).map(([, b]) => b);
  const rows = el("dl");
  const tell = (name, text) => text && rows.append(el("dt", {}, name), el("dd", {}, text));
  if (item.node !== undefined) {
    tell("dtype", dtypeOf(item.node));
    tell("shape", shapeOf(item.node));
    tell("argument", argOf(item.node));
    tell("index", noteOf(item.node));
  } else tell("nodes", String(graph.model.groups.get(item.groupId).count));
  tell("in", item.group);
  card.replaceChildren(el("h2", {}, item.text), rows,
    el("p", {}, item.groupId ? el("button", { type: "button", id: "unfold",
      onclick: () => toggleGroup(item.groupId) }, "Unfold (Enter)") : el("button", { type: "button",
      onclick: () => {
        const id = graph.scope === "kernel" ? `ast:${app.part}:${item.node}` : `node:${item.node}`;
        openTab("columns");
        light(id);
      } }, "Light it in the columns (Enter)"), " ",
    item.group ? el("button", { type: "button", id: "fold", onclick: () => toggleGroup(item.group) },
      "Fold the group (f)") : ""),
    el("h3", {}, `reads ${above.length}`), el("ul", {}, above.slice(0, 60).map(button)),
    el("h3", {}, `read by ${below.length}`), el("ul", {}, below.slice(0, 60).map(button)));
}

function findInGraph(text) {
  graph.found = [];
  graph.foundAt = -1;
  graph.foundSet = new Set();
  if (!text || !graph.model) {
    if (graph.view) graph.view.ask();
    return;
  }
  for (const n of graph.model.order) {
    const words = `${opOf(n)} ${argOf(n)} ${noteOf(n)} ${shapeOf(n)} ${graph.model.homes.get(n)}`;
    if (!words.toLowerCase().includes(text)) continue;
    const at = graph.place.get(n);
    if (at === undefined) continue;
    graph.found.push(n);
    graph.foundSet.add(at);
  }
  graph.view.ask();
}

// Goes to the next node that was found, opening the groups that it is in.
function nextInGraph() {
  if (!graph.found.length) return;
  graph.foundAt = (graph.foundAt + 1) % graph.found.length;
  const n = graph.found[graph.foundAt];
  const at = graph.place.get(n);
  if (at !== undefined) chooseItem(at, true);
  say(`${graph.foundAt + 1} of ${graph.found.length}: ${shortText(n)}`);
}

function showGraph(panel) {
  const model = graphModel();
  const fresh = graph.model !== model;
  if (fresh) {
    openFew(model);
    graph.chosen = -1;
  }
  const all = [...model.groups.keys()].filter(Boolean);
  panel.append(el("div", { class: "tools" },
    choice("Which graph", [["tensor", "tensor graph"], ["kernel", "kernel"]], graph.scope, (value) => {
      graph.scope = value;
      render();
    }),
    el("button", { type: "button", id: "fold-all", onclick: () => {
      graph.open = new Set();
      layoutGraph(true);
    } }, "Fold all"),
    el("button", { type: "button", id: "open-all", onclick: () => {
      graph.open = new Set(all);
      layoutGraph(true);
    } }, "Unfold all"),
    el("button", { type: "button", "aria-pressed": String(graph.tidy), id: "tidy", onclick: () => {
      graph.tidy = !graph.tidy;
      render();
    } }, "Without views and constants"),
    el("button", { type: "button", onclick: () => zoomGraph(1.3) }, "+"),
    el("button", { type: "button", onclick: () => zoomGraph(1 / 1.3) }, "-"),
    el("button", { type: "button", onclick: () => {
      fitGraph();
      graph.view.ask();
    } }, "All (0)"),
    el("button", { type: "button", onclick: () => graph.view.canvas.toBlob((blob) =>
      download("graph.png", blob)) }, "Save picture"),
    el("span", { class: "quiet" }, `${model.order.length.toLocaleString("en")} nodes`)));
  if (!model.order.length) {
    panel.append(el("p", { class: "empty" }, "there is no such graph in this step"));
    return;
  }
  const box = el("div", { class: "canvas-box", id: "graph" });
  panel.append(el("div", { class: "side" }, box, el("div", { class: "card", id: "graph-card" },
    el("p", { class: "quiet" }, "Choose a box: click it, or walk along edges with the arrows. " +
      "Enter unfolds a group, f folds it again."))));
  graph.view = canvasIn(box, `Graph of ${model.order.length} nodes`, drawGraph);
  graphMouse(box);
  graphKeys(graph.view.canvas);
  layoutGraph(true).then(() => paintCard());
}

function zoomGraph(factor, px, py) {
  const box = graph.view.canvas.parentElement;
  const x = px === undefined ? box.clientWidth / 2 : px, y = py === undefined ? box.clientHeight / 2 : py;
  const scale = Math.max(0.002, Math.min(4, graph.at.scale * factor));
  graph.at.x = x - (x - graph.at.x) * (scale / graph.at.scale);
  graph.at.y = y - (y - graph.at.y) * (scale / graph.at.scale);
  graph.at.scale = scale;
  graph.view.ask();
}

function itemAt(box, event) {
  const bounds = box.getBoundingClientRect();
  const x = (event.clientX - bounds.left - graph.at.x) / graph.at.scale;
  const y = (event.clientY - bounds.top - graph.at.y) / graph.at.scale;
  return graph.items.findIndex((i) => x >= i.x && x <= i.x + i.width && y >= i.y && y <= i.y + i.height);
}

function graphMouse(box) {
  let from = null;
  box.addEventListener("wheel", (event) => {
    const bounds = box.getBoundingClientRect();
    zoomGraph(event.deltaY > 0 ? 0.88 : 1.14, event.clientX - bounds.left, event.clientY - bounds.top);
    event.preventDefault();
  }, { passive: false });
  box.addEventListener("pointerdown", (event) => {
    from = { x: event.clientX, y: event.clientY, at: { ...graph.at }, moved: false };
  });
  box.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) return;
    if (Math.hypot(event.clientX - from.x, event.clientY - from.y) > 3) from.moved = true;
    graph.at.x = from.at.x + event.clientX - from.x;
    graph.at.y = from.at.y + event.clientY - from.y;
    graph.view.ask();
  });
  box.addEventListener("pointerup", (event) => {
    if (from && !from.moved) {
      const i = itemAt(box, event);
      if (i >= 0) chooseItem(i, false);
    }
    from = null;
  });
  box.addEventListener("dblclick", (event) => {
    const i = itemAt(box, event);
    if (i >= 0 && graph.items[i].groupId) toggleGroup(graph.items[i].groupId);
  });
}

// Down an edge, up an edge, or to the next box of the same height.
function walkGraph(key) {
  if (graph.chosen < 0) {
    chooseItem(graph.items.length - 1, true);
    return;
  }
  const here = graph.items[graph.chosen];
  const ahead = graph.edges.filter(([a]) => a === graph.chosen).map(([, b]) => b);
  const behind = graph.edges.filter(([, b]) => b === graph.chosen).map(([a]) => a);
  let next = -1;
  if (key === "ArrowDown") next = ahead[0] === undefined ? -1 : ahead[0];
  else if (key === "ArrowUp") next = behind[0] === undefined ? -1 : behind[0];
  else {
    const side = key === "ArrowRight" ? 1 : -1;
    let best = Infinity;
    graph.items.forEach((item, i) => {
      const far = (item.x - here.x) * side;
      const cost = far + 4 * Math.abs(item.y - here.y);
      if (far > 0 && cost < best) {
        best = cost;
        next = i;
      }
    });
  }
  if (next >= 0) chooseItem(next, true);
}

function graphKeys(canvas) {
  canvas.addEventListener("keydown", (event) => {
    const item = graph.items[graph.chosen];
    if (event.key.startsWith("Arrow")) walkGraph(event.key);
    else if (event.key === "Enter" && item) {
      if (item.groupId) toggleGroup(item.groupId);
      else document.querySelector("#graph-card button").click();
    } else if (event.key === "f" && item && item.group) toggleGroup(item.group);
    else if (event.key === "+" || event.key === "=") zoomGraph(1.3);
    else if (event.key === "-") zoomGraph(1 / 1.3);
    else if (event.key === "0") {
      fitGraph();
      graph.view.ask();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
