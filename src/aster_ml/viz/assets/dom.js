// Elements made of texts. Nothing here, or anywhere, reads markup out of data.

function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name === "value" || name === "checked" || name === "disabled") made[name] = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) made.append(child);
  }
  return made;
}

function say(text) {
  document.getElementById("status").textContent = text;
}

// Lines in chunks, so that what is out of sight costs no layout.
function chunked(box, lines) {
  for (let i = 0; i < lines.length; i += 200) {
    box.append(el("div", { class: "chunk" }, lines.slice(i, i + 200)));
  }
}

function choice(label, options, chosen, change) {
  const select = el("select", { "aria-label": label, onchange: () => change(select.value) });
  for (const [value, text] of options) {
    const option = el("option", { value }, text);
    option.selected = String(value) === String(chosen);
    select.append(option);
  }
  return select;
}

// Moves between the options of a list with the arrows.
function listKeys(box, selector) {
  box.addEventListener("keydown", (event) => {
    const moves = { ArrowDown: 1, ArrowUp: -1, Home: -1e9, End: 1e9, PageDown: 15, PageUp: -15 };
    if (!(event.key in moves)) return;
    const items = [...box.querySelectorAll(selector)];
    const now = items.indexOf(document.activeElement);
    const next = Math.max(0, Math.min(items.length - 1, now + moves[event.key]));
    if (items[next]) {
      items[next].focus();
      event.preventDefault();
      event.stopPropagation();
    }
  });
}

function press(run) {
  return (event) => {
    if (event.key === "Enter" || event.key === " ") {
      run();
      event.preventDefault();
    }
  };
}

function download(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 5000);
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A canvas that keeps the size of its box and draws when asked.
function canvasIn(box, label, draw) {
  const canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": label });
  box.append(canvas);
  const paint = () => {
    const ratio = window.devicePixelRatio || 1;
    const width = box.clientWidth, height = box.clientHeight;
    if (!width || !height) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    draw(c, width, height);
  };
  let asked = false;
  const ask = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      if (canvas.isConnected) paint();
    });
  };
  new ResizeObserver(ask).observe(box);
  return { canvas, ask, paint };
}
