// Memory: how much there was, which buffers lived when, how temporaries share an arena.

const memory = { view: null, arena: null };

// [[time, device, change, bytes of the device then], ...]
function memoryCurve() {
  return once("memory", () => {
    const held = { ...app.data.held_before };
    delete held[""];
    return app.data.memory.map(([t, device, , change]) => {
      held[device] = (held[device] || 0) + change;
      return [t, device, change, held[device]];
    });
  });
}

// Buffers: number -> when it came and went, its bytes, what wrote and read it.
function bufferLives() {
  return once("lives", () => {
    const lives = new Map();
    for (const [t, device, number, change] of app.data.memory) {
      if (change > 0) lives.set(number, { number, device, from: t, to: Infinity, bytes: change,
        uses: [] });
      else if (lives.has(number)) lives.get(number).to = t;
      else lives.set(number, { number, device, from: -Infinity, to: t, bytes: -change, uses: [] });
    }
    for (const e of app.data.events) {
      e[7].forEach((number, slot) => {
        if (lives.has(number)) lives.get(number).uses.push([e, slot]);
      });
    }
    return [...lives.values()];
  });
}

function drawMemory(c, width, height) {
  const curve = memoryCurve();
  const lives = bufferLives();
  const first = curve.length ? curve[0][0] : 0;
  const end = Math.max(timeRange()[1], curve.length ? curve[curve.length - 1][0] : 1);
  const x = (t) => 8 + ((Math.max(first, Math.min(end, t)) - first) / (end - first || 1)) * (width - 16);
  const half = height * 0.5;
  const devices = [...new Set(curve.map((p) => p[1]))];
  const most = Math.max(1, ...curve.map((p) => p[3]));
  c.font = "11px system-ui, sans-serif";
  devices.forEach((device, d) => {
    const mine = curve.filter((p) => p[1] === device);
    const y = (bytes) => half - 6 - (bytes / most) * (half - 34);
    c.beginPath();
    c.moveTo(x(first), y(mine[0][3] - mine[0][2]));
    let last = mine[0][3] - mine[0][2];
    for (const [t, , , total] of mine) {
      c.lineTo(x(t), y(last));
      c.lineTo(x(t), y(total));
      last = total;
    }
    c.lineTo(x(end), y(last));
    c.strokeStyle = color(["--bar", "--copy", "--compile"][d % 3]);
    c.lineWidth = 1.5;
    c.stroke();
    c.lineTo(x(end), half - 6);
    c.lineTo(x(first), half - 6);
    c.globalAlpha = 0.18;
    c.fillStyle = c.strokeStyle;
    c.fill();
    c.globalAlpha = 1;
    const peak = mine.reduce((a, b) => (b[3] > a[3] ? b : a));
    c.fillStyle = color("--ink");
    c.textAlign = x(peak[0]) > width / 2 ? "right" : "left";
    c.fillText(`${device}: at most ${bytesText(peak[3])}, at ${timeText(peak[0])}`, x(peak[0]),
      14 + d * 14);
    c.textAlign = "left";
    c.beginPath();
    c.arc(x(peak[0]), y(peak[3]), 3, 0, 7);
    c.fill();
  });
  // Lives of the largest buffers, one below another where they are there together.
  const rows = [];
  const size = 9;
  const shown = [...lives].sort((a, b) => b.bytes - a.bytes).slice(0, 400);
  shown.sort((a, b) => a.from - b.from);
  for (const life of shown) {
    let row = rows.findIndex((free) => free <= life.from);
    if (row < 0) row = rows.push(0) - 1;
    rows[row] = life.to;
    const top = half + 10 + row * size;
    if (top > height) continue;
    const x0 = x(life.from);
    c.fillStyle = color("--bar");
    c.globalAlpha = 0.35 + 0.65 * Math.min(1, Math.log10(1 + life.bytes) / 8);
    c.fillRect(x0, top, Math.max(1.5, x(life.to) - x0), size - 2);
    c.globalAlpha = 1;
  }
}

function drawArena(c, width, height) {
  const schedule = currentSchedule();
  const places = Object.entries(schedule.places);
  const total = Math.max(1, ...Object.values(schedule.arena));
  const steps = Math.max(1, schedule.steps.length);
  const left = 8;
  c.font = "11px system-ui, sans-serif";
  c.textBaseline = "middle";
  for (const [slot, [, offset]] of places) {
    const life = schedule.lifetimes[slot];
    const [size, , itemsize] = schedule.slots[slot];
    const x0 = left + (life[0] / steps) * (width - 2 * left);
    const x1 = left + ((life[1] + 1) / steps) * (width - 2 * left);
    const y0 = (offset / total) * (height - 8) + 4;
    const h = Math.max(2, ((size * itemsize) / total) * (height - 8));
    c.fillStyle = color("--chosen");
    c.strokeStyle = color("--accent");
    c.fillRect(x0, y0, x1 - x0, h);
    c.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0 - 1, Math.max(1, h - 1));
    if (h > 12 && x1 - x0 > 60) {
      c.fillStyle = color("--ink");
      c.fillText(`tmp${slot} ${bytesText(size * itemsize)}`, x0 + 5, y0 + h / 2);
    }
  }
}

function showMemory(panel) {
  const curve = memoryCurve();
  const schedule = currentSchedule();
  if (!curve.length) panel.append(el("p", { class: "empty" }, "no memory was taken or given back"));
  else {
    panel.append(el("div", { class: "tools" },
      el("span", {}, "Bytes held by each device, and below it the lives of buffers"),
      el("button", { type: "button", onclick: () => memory.view.canvas.toBlob((blob) =>
        download("memory.png", blob)) }, "Save picture")));
    const box = el("div", { class: "canvas-box", id: "memory" });
    panel.append(box);
    const most = Math.max(...curve.map((p) => p[3]));
    memory.view = canvasIn(box, `Memory over time, at most ${bytesText(most)}`, drawMemory);
    memory.view.ask();
  }
  if (schedule && Object.keys(schedule.places).length) {
    const sum = Object.keys(schedule.places).reduce((n, s) =>
      n + schedule.slots[s][0] * schedule.slots[s][2], 0);
    const arena = Object.values(schedule.arena).reduce((a, b) => a + b, 0);
    panel.append(el("div", { class: "tools" }, el("span", {},
      `Temporaries of ${placeOfRealize(currentRealize())}: ${bytesText(sum)} in an arena of ` +
      `${bytesText(arena)}; across: steps, down: bytes`)));
    const box = el("div", { class: "canvas-box", id: "arena", style: "flex: 0.6" });
    panel.append(box);
    memory.arena = canvasIn(box, `Arena of ${bytesText(arena)} with ` +
      `${Object.keys(schedule.places).length} temporaries`, drawArena);
    memory.arena.ask();
  }
  panel.append(bufferTable());
}

function bufferTable() {
  const body = el("tbody");
  const shown = [...bufferLives()].sort((a, b) => b.bytes - a.bytes).slice(0, 200);
  for (const life of shown) {
    const writers = new Set(), readers = new Set();
    for (const [e, slot] of life.uses) (slot === 0 ? writers : readers).add(e[1]);
    body.append(el("tr", {}, el("td", { class: "number" }, "#" + life.number),
      el("td", {}, life.device), el("td", { class: "number" }, bytesText(life.bytes)),
      el("td", { class: "number" }, Number.isFinite(life.from) ? timeText(life.from) : "before"),
      el("td", { class: "number" }, Number.isFinite(life.to) ? timeText(life.to) : "stays"),
      el("td", {}, [...writers].slice(0, 4).join(", ")),
      el("td", {}, [...readers].slice(0, 4).join(", "))));
  }
  const heads = ["buffer", "device", "bytes", "comes", "goes", "first written by", "read by"];
  return el("div", { class: "scroll-table" }, el("table", {},
    el("caption", { class: "hidden" }, "Buffers, the largest first"),
    el("thead", {}, el("tr", {}, heads.map((text) => el("th", {}, text)))), body));
}
