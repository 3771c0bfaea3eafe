// What took time: threads and devices one below another, from the first to the last event.

const timeline = { from: 0, to: 0, chosen: -1, view: null };
const COLORS = {
  kernel: "--bar", copy: "--copy", compile: "--compile", lower: "--lower", schedule: "--schedule",
  wait: "--wait",
};

// Rows by device and thread; events of a row do not overlap unless one is inside of another, which
// is drawn lower then.
function timelineRows() {
  return once("rows", () => {
    const rows = new Map();
    app.data.events.forEach((e, i) => {
      const name = e[2] ? `${e[2]} · ${e[3]}` : e[3];
      if (!rows.has(name)) rows.set(name, []);
      rows.get(name).push(i);
    });
    return [...rows].sort((a, b) => Number(app.data.events[b[1][0]][2] !== "") -
      Number(app.data.events[a[1][0]][2] !== "") || a[0].localeCompare(b[0]));
  });
}

function timeRange() {
  return once("range", () => {
    let from = Infinity, to = 0;
    for (const e of app.data.events) {
      from = Math.min(from, e[4]);
      to = Math.max(to, e[4] + e[5]);
    }
    return to > from ? [from, to] : [0, 1];
  });
}

// How many events an event is inside of, by its number.
function depths() {
  return once("depths", () => {
    const found = new Map();
    for (const [, events] of timelineRows()) {
      const order = [...events].sort((a, b) => app.data.events[a][4] - app.data.events[b][4] ||
        app.data.events[b][5] - app.data.events[a][5]);
      const open = [];
      for (const i of order) {
        const [, , , , start] = app.data.events[i];
        while (open.length && open[open.length - 1] <= start) open.pop();
        found.set(i, open.length);
        open.push(start + app.data.events[i][5]);
      }
    }
    return found;
  });
}

const ROW = 34, HEAD = 26, LABEL = 150;

function drawTimeline(c, width, height) {
  const span = timeline.to - timeline.from;
  const left = Math.min(LABEL, width * 0.3);
  const x = (t) => left + ((t - timeline.from) / span) * (width - left);
  c.font = "11px system-ui, sans-serif";
  c.textBaseline = "middle";
  c.strokeStyle = color("--line");
  c.fillStyle = color("--quiet");
  const unit = 10 ** Math.floor(Math.log10(span / 4));
  const ticks = Math.max(2, Math.floor((width - left) / 80));
  const tick = [0.5, 1, 2, 5, 10].map((k) => k * unit).find((k) => span / k <= ticks) || 20 * unit;
  for (let t = Math.ceil(timeline.from / tick) * tick; t <= timeline.to; t += tick) {
    c.beginPath();
    c.moveTo(x(t), 0);
    c.lineTo(x(t), height);
    c.stroke();
    c.fillText(timeText(t), x(t) + 3, HEAD / 2);
  }
  timelineRows().forEach(([name, events], r) => {
    const top = HEAD + r * ROW;
    c.fillStyle = color("--back");
    c.fillRect(0, top, left, ROW);
    c.fillStyle = color("--ink");
    c.fillText(name.length > 24 ? name.slice(0, 23) + "…" : name, 8, top + ROW / 2);
    c.save();
    c.beginPath();
    c.rect(left, top, width - left, ROW);
    c.clip();
    const last = {}, depth = depths();
    const order = [...events].sort((a, b) => depth.get(a) - depth.get(b));
    for (const i of order) {
      const [kind, label, , , start, us] = app.data.events[i];
      if (start + us < timeline.from || start > timeline.to) continue;
      const x0 = x(start), w = Math.max(1, x(start + us) - x0);
      // What is thinner than a pixel is drawn once a pixel.
      if (w <= 1 && Math.floor(x0) === last[kind] && i !== timeline.chosen) continue;
      last[kind] = Math.floor(x0);
      c.fillStyle = color(COLORS[kind]);
      const down = 5 + Math.min(3, depth.get(i)) * 5;
      c.fillRect(x0, top + down, w, ROW - 5 - down);
      if (i === timeline.chosen) {
        c.strokeStyle = color("--ink");
        c.lineWidth = 2;
        c.strokeRect(x0, top + down, w, ROW - 5 - down);
        c.lineWidth = 1;
      }
      if (w > 42) {
        c.fillStyle = "#fff";
        c.fillText(label.slice(0, Math.floor((w - 8) / 6)), x0 + 4, top + ROW / 2);
      }
    }
    c.restore();
    c.strokeStyle = color("--line");
    c.beginPath();
    c.moveTo(0, top + ROW);
    c.lineTo(width, top + ROW);
    c.stroke();
  });
}

function chooseEvent(i) {
  timeline.chosen = i;
  const e = app.data.events[i];
  if (!e) return;
  say(`${e[0]} ${e[1]}, ${timeText(e[5])}, from ${timeText(e[4])} on, ${e[2] || e[3]}`);
  const card = document.getElementById("event-card");
  if (card) {
    const list = el("dl");
    for (const [name, text] of [["kind", e[0]], ["device", e[2]], ["thread", e[3]],
      ["begins", timeText(e[4])], ["takes", timeText(e[5])],
      ["memory", e[7].map((b) => "#" + b).join(" ")]]) {
      if (text) list.append(el("dt", {}, name), el("dd", {}, text));
    }
    const steps = e[6] < 0 ? [] : stepsWith(e[6]);
    card.replaceChildren(el("h2", {}, e[1]), list, steps.length ? el("button", {
      type: "button", onclick: () => {
        app.tab = "columns";
        choose(...steps[0]);
      },
    }, "Open its kernel") : "");
  }
  timeline.view.ask();
}

function stepsWith(kernel) {
  const found = [];
  app.data.realizes.forEach((realize, r) => {
    app.data.schedules[realize.schedule].steps.forEach((step, i) => {
      if (step.kernel === kernel) found.push([r, i]);
    });
  });
  return found;
}

function zoomTimeline(factor, at) {
  const [first, end] = timeRange();
  const center = at === undefined ? (timeline.from + timeline.to) / 2 : at;
  const from = center - (center - timeline.from) * factor;
  const to = center + (timeline.to - center) * factor;
  if (to - from < 0.5) return;
  timeline.from = Math.max(first - 1, from);
  timeline.to = Math.min(end + 1, to);
  timeline.view.ask();
}

function panTimeline(part) {
  const by = (timeline.to - timeline.from) * part;
  timeline.from += by;
  timeline.to += by;
  timeline.view.ask();
}

function showTimeline(panel) {
  if (!app.data.events.length) {
    panel.append(el("p", { class: "empty" }, "no kernel has run, and nothing was compiled"));
    return;
  }
  const [first, end] = timeRange();
  if (!timeline.to || timeline.from > end || timeline.to < first) {
    Object.assign(timeline, { from: first, to: end });
  }
  const totals = {};
  for (const e of app.data.events) totals[e[0]] = (totals[e[0]] || 0) + e[5];
  panel.append(el("div", { class: "tools" },
    el("button", { type: "button", onclick: () => zoomTimeline(0.5) }, "Nearer (+)"),
    el("button", { type: "button", onclick: () => zoomTimeline(2) }, "Further (-)"),
    el("button", { type: "button", onclick: () => {
      Object.assign(timeline, { from: first, to: end });
      timeline.view.ask();
    } }, "All (0)"),
    el("button", { type: "button", onclick: () => download("trace.json",
      new Blob([JSON.stringify(chromeTrace())], { type: "application/json" })) }, "Save for Perfetto"),
    el("button", { type: "button", onclick: () => timeline.view.canvas.toBlob((blob) =>
      download("timeline.png", blob)) }, "Save picture"),
    el("span", { class: "legend" }, Object.entries(COLORS).filter(([kind]) => totals[kind]).map(
      ([kind, name]) => el("span", {}, el("i", { style: `background:var(${name})` }),
        `${kind} ${timeText(totals[kind])}`)))));
  const box = el("div", { class: "canvas-box", id: "timeline" });
  const card = el("div", { class: "card", id: "event-card" },
    el("p", { class: "quiet" }, "Choose an event: click it, or go through them with the arrows."));
  panel.append(el("div", { class: "side" }, box, card));
  timeline.view = canvasIn(box, `Timeline of ${app.data.events.length} events`, drawTimeline);
  timelineMouse(box);
  timelineKeys(timeline.view.canvas);
  panel.append(longestEvents());
  timeline.view.ask();
}

function eventAt(box, clientX, clientY) {
  const bounds = box.getBoundingClientRect();
  const left = Math.min(LABEL, bounds.width * 0.3);
  const row = timelineRows()[Math.floor((clientY - bounds.top - HEAD) / ROW)];
  const span = timeline.to - timeline.from;
  const scale = span / (bounds.width - left);
  const t = timeline.from + (clientX - bounds.left - left) * scale;
  if (!row) return [-1, t];
  let found = -1;
  for (const i of row[1]) {
    const e = app.data.events[i];
    if (e[4] - 2 * scale <= t && t <= e[4] + e[5] + 2 * scale) {
      if (found < 0 || e[5] < app.data.events[found][5]) found = i;
    }
  }
  return [found, t];
}

function timelineMouse(box) {
  let from = null;
  box.addEventListener("wheel", (event) => {
    zoomTimeline(event.deltaY > 0 ? 1.25 : 0.8, eventAt(box, event.clientX, event.clientY)[1]);
    event.preventDefault();
  }, { passive: false });
  box.addEventListener("pointerdown", (event) => {
    from = { x: event.clientX, begin: timeline.from, end: timeline.to, moved: false };
  });
  box.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) return;
    const left = Math.min(LABEL, box.clientWidth * 0.3);
    const by = ((from.x - event.clientX) / (box.clientWidth - left)) * (from.end - from.begin);
    if (Math.abs(from.x - event.clientX) > 3) from.moved = true;
    timeline.from = from.begin + by;
    timeline.to = from.end + by;
    timeline.view.ask();
  });
  box.addEventListener("pointerup", (event) => {
    if (from && !from.moved) {
      const [i] = eventAt(box, event.clientX, event.clientY);
      if (i >= 0) chooseEvent(i);
    }
    from = null;
  });
}

function timelineKeys(canvas) {
  canvas.addEventListener("keydown", (event) => {
    const count = app.data.events.length;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const next = timeline.chosen + (event.key === "ArrowRight" ? 1 : -1);
      const i = Math.max(0, Math.min(count - 1, next));
      const [, , , , start, us] = app.data.events[i];
      const span = timeline.to - timeline.from;
      if (start < timeline.from || start + us > timeline.to) {
        timeline.from = start - span / 2;
        timeline.to = start + span / 2;
      }
      chooseEvent(i);
    } else if (event.key === "ArrowUp") panTimeline(-0.25);
    else if (event.key === "ArrowDown") panTimeline(0.25);
    else if (event.key === "+" || event.key === "=") zoomTimeline(0.5);
    else if (event.key === "-") zoomTimeline(2);
    else if (event.key === "0") {
      [timeline.from, timeline.to] = timeRange();
      timeline.view.ask();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

function longestEvents() {
  const order = app.data.events.map((e, i) => [e[5], i]).sort((a, b) => b[0] - a[0]).slice(0, 60);
  const body = el("tbody");
  for (const [, i] of order) {
    const e = app.data.events[i];
    body.append(el("tr", { tabindex: "0", onclick: () => chooseEvent(i),
      onkeydown: press(() => chooseEvent(i)) }, el("td", {}, e[0]), el("td", {}, e[1]),
    el("td", {}, e[2] || e[3]), el("td", { class: "number" }, timeText(e[4])),
    el("td", { class: "number" }, timeText(e[5]))));
  }
  return el("div", { class: "scroll-table" }, el("table", {},
    el("caption", { class: "hidden" }, "The longest events"),
    el("thead", {}, el("tr", {}, el("th", {}, "kind"), el("th", {}, "what"), el("th", {}, "where"),
      el("th", { class: "number" }, "begins"), el("th", { class: "number" }, "takes"))), body));
}

// The form that chrome://tracing and Perfetto read.
function chromeTrace() {
  const threads = new Map();
  const events = [];
  for (const [kind, name, device, thread, start, us, kernel] of app.data.events) {
    const row = device ? `${device} · ${thread}` : thread;
    if (!threads.has(row)) threads.set(row, threads.size + 1);
    events.push({ name, cat: kind, ph: "X", ts: start, dur: us, pid: 1, tid: threads.get(row),
      args: kernel >= 0 ? { kernel } : {} });
  }
  for (const [t, device, , total] of memoryCurve()) {
    events.push({ name: `memory of ${device}`, ph: "C", ts: t, pid: 1, args: { bytes: total } });
  }
  const names = [...threads].map(([name, tid]) => ({ name: "thread_name", ph: "M", pid: 1, tid,
    args: { name } }));
  return { traceEvents: [...names, ...events], displayTimeUnit: "ms" };
}
