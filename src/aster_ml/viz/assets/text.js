// Graphs as text, in the form that the compiler prints (uop/print/text).

function orderBelow(root) {
  const src = app.data.nodes.src;
  const done = new Set();
  const stack = [[root, 0]];
  while (stack.length) {
    const top = stack[stack.length - 1];
    const sources = src[top[0]];
    let entered = false;
    while (top[1] < sources.length) {
      const s = sources[top[1]++];
      if (!done.has(s)) {
        stack.push([s, 0]);
        entered = true;
        break;
      }
    }
    if (!entered) {
      done.add(top[0]);
      stack.pop();
    }
  }
  return [...done];
}

function opOf(n) {
  return app.data.nodes.ops[app.data.nodes.op[n]];
}

function dtypeOf(n) {
  return app.data.nodes.dtypes[app.data.nodes.dtype[n]];
}

function argOf(n) {
  return app.data.nodes.args[app.data.nodes.arg[n]];
}

function noteOf(n) {
  return app.data.nodes.note[n] || "";
}

function shapeOf(n) {
  const found = app.data.nodes.shape[n];
  return found === undefined ? "" : app.data.nodes.shapes[found];
}

function nodeText(n, numbers) {
  const words = [`%${numbers.get(n)} =`, opOf(n), dtypeOf(n)];
  const sources = app.data.nodes.src[n];
  if (sources.length) words.push(`(${sources.map((s) => "%" + numbers.get(s)).join(", ")})`);
  if (argOf(n)) words.push(argOf(n));
  const note = noteOf(n);
  if (note) words.push(` # ${note}`);
  return words.join(" ");
}

// [[node, line], ...], sources first.
function graphLines(root) {
  return once("graph" + root, () => {
    const numbers = new Map();
    return orderBelow(root).map((n) => {
      numbers.set(n, numbers.size);
      return [n, nodeText(n, numbers)];
    });
  });
}

// A node in a few words, for lists and graphs.
function shortText(n) {
  const arg = argOf(n);
  const note = noteOf(n);
  const words = [opOf(n)];
  if (note) words.push(note);
  else if (arg) words.push(arg);
  const text = words.join(" ");
  return text.length > 46 ? text.slice(0, 45) + "…" : text;
}
