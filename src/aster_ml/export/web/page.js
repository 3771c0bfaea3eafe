// The page of an exported function: images of bytes are drawn, coloured ones are read from files,
// other inputs are written as numbers.
import { inputs, load, outputs } from "./{{MODULE}}";

const $ = id => document.getElementById(id);
const say = text => { $("said").textContent = text; };
// Sides of images that are drawn, and elements that are shown as bars.
const LEAST = 8, MOST = 512, BARS = 64;
const fields = new Map();

function titled(place, { name, dtype, shape }) {
  const box = document.createElement("div");
  const title = document.createElement("h2");
  title.textContent = `${name}: ${dtype}, ${shape.join(" x ") || "one number"}`;
  box.append(title);
  $(place).append(box);
  return box;
}

/** A canvas to draw on, whose brush is about a tenth of its side. */
function drawing(box, input) {
  const sizes = input.shape.filter(size => size > 1);
  const [height, width] = sizes;
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.style.height = `${Math.round(280 * height / width)}px`;
  canvas.setAttribute("aria-label", `draw ${input.name} here`);
  box.append(canvas);
  const pixels = new Uint8Array(width * height);
  const context = canvas.getContext("2d");
  const reach = Math.max(width, height) / 14;
  const show = () => {
    const image = context.createImageData(width, height);
    pixels.forEach((value, i) => image.data.set([value, value, value, 255], 4 * i));
    context.putImageData(image, 0, 0);
  };
  const dab = (x, y) => {
    for (let r = Math.floor(y - reach - 1); r <= y + reach + 1; r++) {
      for (let c = Math.floor(x - reach - 1); c <= x + reach + 1; c++) {
        if (r < 0 || c < 0 || r >= height || c >= width) continue;
        const far = Math.hypot(r + .5 - y, c + .5 - x);
        const value = Math.round(255 * Math.min(1, Math.max(0, (reach - far) / reach + .45)));
        pixels[r * width + c] = Math.max(pixels[r * width + c], value);
      }
    }
  };
  let last = null;
  const at = event => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * width / box.width,
      (event.clientY - box.top) * height / box.height];
  };
  const line = to => {
    const [fromX, fromY] = last ?? to;
    const steps = Math.max(1, Math.ceil(2 * Math.hypot(to[0] - fromX, to[1] - fromY) / reach));
    for (let i = 1; i <= steps; i++) {
      dab(fromX + (to[0] - fromX) * i / steps, fromY + (to[1] - fromY) * i / steps);
    }
    last = to;
    show();
    run();
  };
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    last = null;
    line(at(event));
  });
  canvas.addEventListener("pointermove", event => { if (event.buttons & 1) line(at(event)); });
  show();
  return {
    read: () => pixels,
    clear: () => { pixels.fill(0); show(); },
  };
}

/** Where the colours of an image of bytes lie: behind each pixel or in planes; -1 of what is none. */
function coloursOf({ dtype, shape }) {
  const sides = shape.filter(size => size > 1);
  if (dtype !== "uint8" || sides.length !== 3 || Math.max(...sides) > MOST) return -1;
  return sides[2] === 3 ? 2 : sides[0] === 3 ? 0 : -1;
}

/** A picture from a file, made as large as the input is. */
function picture(box, input) {
  const colours = coloursOf(input);
  const sides = input.shape.filter(size => size > 1);
  const [height, width] = sides.filter((_, i) => i !== colours);
  const file = document.createElement("input");
  file.type = "file";
  file.accept = "image/*";
  file.setAttribute("aria-label", `a picture for ${input.name}`);
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.style.height = `${Math.round(280 * height / width)}px`;
  box.append(file, canvas);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    try {
      context.drawImage(await createImageBitmap(file.files[0]), 0, 0, width, height);
    } catch (problem) {
      say(`${file.files[0].name} is no picture that this browser reads: ${problem.message}`);
      return;
    }
    run();
  });
  return {
    read: () => {
      const all = context.getImageData(0, 0, width, height).data, count = width * height;
      return Uint8Array.from({ length: 3 * count }, (_, i) => colours
        ? all[4 * Math.floor(i / 3) + i % 3]
        : all[4 * (i % count) + Math.floor(i / count)]);
    },
    clear: () => { context.clearRect(0, 0, width, height); file.value = ""; },
  };
}

/** A field of numbers, row by row. */
function writing(box, input) {
  const area = document.createElement("textarea");
  area.setAttribute("aria-label", input.name);
  const count = input.shape.reduce((a, b) => a * b, 1);
  const blank = Array(count).fill("0").join(" ");
  area.value = blank;
  area.addEventListener("change", () => run());
  box.append(area);
  const whole = input.dtype.endsWith("int64") ? BigInt : Number;
  return {
    read: () => area.value.split(/[\s,;[\]]+/).filter(Boolean).map(text => whole(text)),
    clear: () => { area.value = blank; },
  };
}

function showOutput(box, values) {
  box.querySelectorAll(".bar, pre").forEach(old => old.remove());
  if (values.length > BARS || values.length < 2 || typeof values[0] === "bigint") {
    const text = document.createElement("pre");
    text.textContent = [...values.slice(0, 1000)].join(" ") + (values.length > 1000 ? " ..." : "");
    box.append(text);
    return;
  }
  const top = Math.max(...[...values].map(Math.abs), 1e-30), most = values.indexOf(Math.max(...values));
  values.forEach((value, i) => {
    const row = document.createElement("div");
    row.className = i === most ? "bar most" : "bar";
    const label = document.createElement("b"), bar = document.createElement("i");
    label.textContent = i;
    bar.style.width = `${60 * Math.abs(value) / top}%`;
    const number = document.createElement("span");
    number.textContent = Number(value.toPrecision(3));
    row.append(label, bar, number);
    box.append(row);
  });
}

let model = null, busy = false, again = false;

async function run() {
  if (!model) return;
  if (busy) { again = true; return; }
  busy = true;
  try {
    do {
      again = false;
      const given = Object.fromEntries([...fields].map(([name, field]) => [name, field.read()]));
      const start = performance.now();
      const found = await model.run(given);
      $("time").textContent = `${(performance.now() - start).toFixed(1)} ms`;
      for (const { name } of outputs) showOutput(boxes.get(name), found[name]);
      window.latest = found;
      say("");
    } while (again);
  } catch (problem) {
    say(problem.message);
  } finally {
    busy = false;
  }
}

for (const input of inputs) {
  const box = titled("inputs", input);
  const sides = input.shape.filter(size => size > 1);
  const drawn = input.dtype === "uint8" && sides.length === 2
    && sides.every(size => size >= LEAST && size <= MOST);
  const field = drawn ? drawing : coloursOf(input) < 0 ? writing : picture;
  fields.set(input.name, field(box, input));
}
const boxes = new Map(outputs.map(output => [output.name, titled("outputs", output)]));
$("run").addEventListener("click", run);
$("clear").addEventListener("click", () => { fields.forEach(field => field.clear()); run(); });

say("Reading weights, compiling kernels ...");
try {
  model = await load();
  $("run").disabled = false;
  window.model = model;
  await run();
} catch (problem) {
  say(problem.message);
}
