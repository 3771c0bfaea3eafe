// Where the boxes of a graph stand: elkjs, in a worker of its own, for what a person can take in;
// a plain layout in layers, in time that grows with the edges alone, for the rest and until then.

const elk = { worker: null, broken: false, waiting: new Map(), next: 0 };
const MOST_FOR_ELK = 450;

async function elkWorker() {
  if (elk.worker || elk.broken) return elk.worker;
  try {
    const text = await unpack("elk");
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    elk.worker = new Worker(url);
    elk.worker.onmessage = ({ data }) => {
      const resolve = elk.waiting.get(data.id);
      elk.waiting.delete(data.id);
      if (resolve) resolve(data.error ? null : data.data);
    };
    elk.worker.onerror = () => {
      elk.broken = true;
      for (const resolve of elk.waiting.values()) resolve(null);
      elk.waiting.clear();
    };
    await askElk({ cmd: "register", algorithms: ["layered"] });
  } catch {
    elk.broken = true;
    elk.worker = null;
  }
  return elk.worker;
}

function askElk(message) {
  return new Promise((resolve) => {
    const id = elk.next++;
    elk.waiting.set(id, resolve);
    elk.worker.postMessage({ id, ...message });
  });
}

// items: [{id, width, height, order, group}]; edges: [[from, to], ...] by place in items;
// groups: Map of id -> {parent}. Gives each item x and y, and each open group a box.
async function elkLayout(items, edges, groups) {
  if (items.length > MOST_FOR_ELK || !(await elkWorker())) return null;
  const options = {
    "elk.algorithm": "layered", "elk.direction": "DOWN", "elk.spacing.nodeNode": "18",
    "elk.layered.spacing.nodeNodeBetweenLayers": "34", "elk.padding": "[top=30,left=12,bottom=12,right=12]",
    "elk.hierarchyHandling": "INCLUDE_CHILDREN",
  };
  const root = { id: "root", layoutOptions: options, children: [], edges: [] };
  const holders = new Map([["", root]]);
  const holder = (id) => {
    if (!holders.has(id)) {
      const made = { id: `group ${id}`, children: [], layoutOptions: {
        "elk.padding": options["elk.padding"] } };
      holders.set(id, made);
      holder(groups.get(id).parent).children.push(made);
    }
    return holders.get(id);
  };
  items.forEach((item, i) => {
    holder(item.group).children.push({ id: `item ${i}`, width: item.width, height: item.height });
  });
  edges.forEach(([a, b], i) => root.edges.push({ id: `edge ${i}`, sources: [`item ${a}`],
    targets: [`item ${b}`] }));
  const found = await askElk({ cmd: "layout", graph: root, layoutOptions: options, options: {} });
  if (!found) return null;
  const boxes = [];
  const walk = (node, x, y) => {
    for (const child of node.children || []) {
      const at = { x: x + child.x, y: y + child.y };
      if (child.id.startsWith("item ")) Object.assign(items[Number(child.id.slice(5))], at);
      else {
        boxes.push({ ...at, width: child.width, height: child.height, id: child.id.slice(6) });
        walk(child, at.x, at.y);
      }
    }
  };
  walk(found, 0, 0);
  return boxes;
}

// Layers by the longest way from a source; within a layer, near what is above.
function plainLayout(items, edges) {
  const order = items.map((_, i) => i).sort((a, b) => items[a].order - items[b].order);
  const into = items.map(() => []);
  for (const [a, b] of edges) {
    if (items[a].order < items[b].order) into[b].push(a);
  }
  const rank = new Array(items.length).fill(0);
  for (const i of order) for (const a of into[i]) rank[i] = Math.max(rank[i], rank[a] + 1);
  const layers = [];
  for (const i of order) (layers[rank[i]] = layers[rank[i]] || []).push(i);
  const middle = new Array(items.length).fill(0);
  let y = 0;
  for (const layer of layers) {
    if (!layer) continue;
    for (const i of layer) {
      const above = into[i];
      middle[i] = above.length ? above.reduce((sum, a) => sum + middle[a], 0) / above.length : 0;
    }
    layer.sort((a, b) => middle[a] - middle[b] || a - b);
    const width = layer.reduce((sum, i) => sum + items[i].width + 18, 0);
    let x = -width / 2, height = 0;
    for (const i of layer) {
      Object.assign(items[i], { x, y });
      middle[i] = x + items[i].width / 2;
      x += items[i].width + 18;
      height = Math.max(height, items[i].height);
    }
    y += height + 34;
  }
  return [];
}
