// The frame: tabs, the list of requests and steps, search, keys, themes.

const TABS = [
  ["columns", "Columns", showColumns],
  ["steps", "Steps", showSteps],
  ["graph", "Graph", showGraph],
  ["why", "Why", showWhy],
  ["access", "Access", showAccess],
  ["timeline", "Timeline", showTimeline],
  ["memory", "Memory", showMemory],
  ["compare", "Compare", showCompare],
];

const KEYS = [
  ["1 to 8", "the views"],
  ["j, k", "next and last step of the schedule"],
  ["J, K", "next and last request"],
  ["/", "search; Enter goes on to the next that is found"],
  ["arrows", "within lists, columns, graph and timeline"],
  ["Enter", "light a line; open what is chosen"],
  ["Escape", "nothing is lit, nothing is searched for"],
  ["← →", "in Steps: one step back or on"],
  ["n, p", "in Steps: next and last change of the chosen node"],
  ["+ -", "in Graph and Timeline: nearer and further"],
  ["0", "in Graph and Timeline: all of it"],
  ["t", "light or dark"],
  ["?", "this list"],
];

function makeTabs() {
  const nav = document.getElementById("tabs");
  TABS.forEach(([id, name], i) => {
    nav.append(el("button", {
      type: "button", role: "tab", id: `tab-${id}`, "aria-controls": "panel",
      onclick: () => openTab(id),
    }, name, el("kbd", { "aria-hidden": "true" }, i + 1)));
  });
  nav.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const now = TABS.findIndex(([id]) => id === app.tab);
    const next = TABS[(now + by + TABS.length) % TABS.length][0];
    openTab(next);
    document.getElementById(`tab-${next}`).focus();
    event.preventDefault();
    event.stopPropagation();
  });
}

function openTab(id) {
  app.tab = id;
  render();
}

function render() {
  for (const [id] of TABS) {
    const tab = document.getElementById(`tab-${id}`);
    tab.setAttribute("aria-selected", String(id === app.tab));
    tab.tabIndex = id === app.tab ? 0 : -1;
  }
  const panel = document.getElementById("panel");
  panel.setAttribute("aria-labelledby", `tab-${app.tab}`);
  panel.replaceChildren();
  TABS.find(([id]) => id === app.tab)[2](panel);
  paintRuns();
  markFound();
}

// Looks at a step of a request from now on.
function choose(realize, step) {
  const changed = realize !== app.realize;
  app.realize = realize;
  app.step = step;
  app.part = 0;
  if (changed) {
    app.origin = "";
    app.lit = new Set();
  } else if (app.origin) {
    app.lit = linked(app.origin);
  }
  Object.assign(stepping, { at: 0, node: -1 });
  if (changed) listRuns();
  render();
}

function listRuns() {
  const box = document.getElementById("runs");
  box.replaceChildren();
  if (!app.data.realizes.length) {
    box.append(el("p", { class: "empty" }, "Nothing was computed: no tensor was realized."));
    return;
  }
  app.data.realizes.forEach((realize, r) => {
    const schedule = app.data.schedules[realize.schedule];
    const many = realize.times > 1 ? `, ${realize.times} times` : "";
    const open = r === app.realize;
    const head = el("div", { class: "runs-title" },
      el("b", {}, `${placeOfRealize(realize)}`),
      `${schedule.steps.length} steps${many}, planned in ${timeText(realize.us)}`);
    if (!open) {
      head.setAttribute("role", "button");
      head.tabIndex = 0;
      head.style.cursor = "pointer";
      head.addEventListener("click", () => choose(r, 0));
      head.addEventListener("keydown", press(() => choose(r, 0)));
      box.append(head);
      return;
    }
    box.append(head);
    const list = el("div", { role: "listbox", "aria-label": `Steps of ${placeOfRealize(realize)}` });
    schedule.steps.forEach((step, i) => {
      const kernel = app.data.kernels[step.kernel];
      const name = kernel ? kernel.name : `${step.kind} ${bytesText(step.bytes)}`;
      list.append(el("div", {
        class: "step-row", role: "option", tabindex: "-1", "data-step": i, "data-id": `step:${i}`,
        onclick: () => choose(r, i), onkeydown: press(() => choose(r, i)),
      }, el("span", { class: "number" }, i), el("span", { class: "name", title: name }, name),
      el("span", { class: "time" }, kernel ? timeText(leastTime(runsOf(step.kernel))) : "")));
    });
    listKeys(list, ".step-row");
    box.append(list);
  });
}

function paintRuns() {
  for (const row of document.querySelectorAll(".step-row")) {
    const chosen = Number(row.dataset.step) === app.step;
    row.setAttribute("aria-selected", String(chosen));
    row.tabIndex = chosen ? 0 : -1;
    row.classList.toggle("lit", app.lit.has(row.dataset.id));
    if (chosen) row.scrollIntoView({ block: "nearest" });
  }
}

// search

const search = { text: "", found: [], at: -1 };

function markFound() {
  const text = search.text.toLowerCase();
  search.found = [];
  for (const line of document.querySelectorAll("#panel .line, #panel .row, .step-row, .step-item")) {
    const is = text !== "" && line.textContent.toLowerCase().includes(text);
    line.classList.toggle("found", is);
    if (is) search.found.push(line);
  }
  if (app.tab === "graph") findInGraph(text);
  const count = app.tab === "graph" && text ? graph.found.length : search.found.length;
  document.getElementById("search-count").textContent = text ? `${count} found` : "";
}

function nextFound() {
  if (app.tab === "graph") {
    nextInGraph();
    return;
  }
  if (!search.found.length) return;
  search.at = (search.at + 1) % search.found.length;
  const line = search.found[search.at];
  line.scrollIntoView({ block: "center", inline: "nearest" });
  say(`${search.at + 1} of ${search.found.length}: ${line.textContent.trim().slice(0, 120)}`);
}

// keys

function showKeys() {
  const dialog = document.getElementById("keys");
  const list = el("dl");
  for (const [key, text] of KEYS) list.append(el("dt", {}, el("kbd", {}, key)), el("dd", {}, text));
  dialog.replaceChildren(el("h2", {}, "Keys"), el("div", { class: "card" }, list),
    el("p", {}, el("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" :
    matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  render();
}

function moveInSchedule(by) {
  const schedule = currentSchedule();
  if (!schedule) return;
  const next = Math.max(0, Math.min(schedule.steps.length - 1, app.step + by));
  if (next !== app.step) choose(app.realize, next);
}

function moveRequest(by) {
  const next = app.realize + by;
  if (app.data.realizes[next]) choose(next, 0);
}

function onKey(event) {
  const field = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    app.origin = "";
    app.lit = new Set();
    document.getElementById("search").value = search.text = "";
    paintLit(false);
    markFound();
    return;
  }
  if (field || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^[1-8]$/.test(event.key)) openTab(TABS[Number(event.key) - 1][0]);
  else if (event.key === "j") moveInSchedule(1);
  else if (event.key === "k") moveInSchedule(-1);
  else if (event.key === "J") moveRequest(1);
  else if (event.key === "K") moveRequest(-1);
  else if (event.key === "/") document.getElementById("search").focus();
  else if (event.key === "?") showKeys();
  else if (event.key === "t") turnTheme();
  else if (app.tab === "steps" && event.key === "ArrowRight") moveStep(1);
  else if (app.tab === "steps" && event.key === "ArrowLeft") moveStep(-1);
  else if (app.tab === "steps" && event.key === "n") nextChange(1);
  else if (app.tab === "steps" && event.key === "p") nextChange(-1);
  else return;
  event.preventDefault();
}

function aboutText() {
  const made = app.data.made;
  const settings = Object.entries(made.settings).map(([k, v]) => `${k}=${v}`).join(" ");
  const devices = Object.keys(made.devices).join(", ");
  const parts = [made.at, devices, `${app.data.kernels.length} kernels`, settings];
  if (made.error) parts.push(`it ended with ${made.error}`);
  for (const [what, count] of Object.entries(app.data.dropped)) {
    if (count) parts.push(`${count} ${what} are not in it`);
  }
  return parts.filter(Boolean).join(" · ");
}

function install(data) {
  app.data = data;
  app.cache = new Map();
  document.getElementById("title").textContent = baseName(data.made.script || "") || "a run";
  document.getElementById("about").textContent = aboutText();
  document.getElementById("about").title = aboutText();
  if (app.realize >= data.realizes.length) app.realize = Math.max(0, data.realizes.length - 1);
  listRuns();
  render();
}

async function pollLive() {
  const answer = await fetch("/data");
  const data = await answer.json();
  const now = app.data;
  if (data.events.length !== now.events.length || data.kernels.length !== now.kernels.length) {
    install(data);
  }
}

async function begin() {
  makeTabs();
  const field = document.getElementById("search");
  field.addEventListener("input", () => {
    search.text = field.value;
    search.at = -1;
    markFound();
  });
  field.addEventListener("keydown", (event) => event.key === "Enter" && nextFound());
  document.getElementById("theme").addEventListener("click", turnTheme);
  document.getElementById("help").addEventListener("click", showKeys);
  document.addEventListener("keydown", onKey);
  const data = JSON.parse(await unpack("run-data"));
  const other = await unpack("other-data");
  app.other = other === null ? null : JSON.parse(other);
  const last = data.realizes.length - 1;
  app.realize = Math.max(0, last);
  if (app.other) app.tab = "compare";
  install(data);
  document.body.dataset.ready = "1";
  say(data.kernels.length ? "ready: ? lists the keys" : "ready: no kernel was compiled in this run");
  if (document.body.dataset.live === "1") setInterval(pollLive, 1500);
}

begin().catch((error) => say(`the run cannot be shown: ${error.message}`));
