"use strict";
// The data of the run, read from the page, and what is looked at of it.

async function unpack(id) {
  const holder = document.getElementById(id);
  if (holder === null) return null;
  const bytes = Uint8Array.from(atob(holder.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return await new Response(stream).text();
}

const app = {
  data: null,
  other: null,
  tab: "columns",
  realize: 0,
  step: 0,
  part: 0,
  origin: "",
  lit: new Set(),
  listeners: [],
  cache: new Map(),
};

// A value that is worked out once for a run.
function once(key, make) {
  if (!app.cache.has(key)) app.cache.set(key, make());
  return app.cache.get(key);
}

function currentRealize() {
  return app.data.realizes[app.realize] || null;
}

function currentSchedule() {
  const realize = currentRealize();
  return realize === null ? null : app.data.schedules[realize.schedule];
}

function currentStep() {
  const schedule = currentSchedule();
  return (schedule && schedule.steps[app.step]) || null;
}

function currentKernelNumber() {
  const step = currentStep();
  return step && step.kernel !== undefined ? step.kernel : -1;
}

function currentKernel() {
  return app.data.kernels[currentKernelNumber()] || null;
}

function currentPart() {
  const kernel = currentKernel();
  return kernel ? kernel.parts[Math.min(app.part, kernel.parts.length - 1)] || null : null;
}

// Events by kernel: [kind, name, device, thread, start, microseconds, kernel, buffers].
function runsOf(kernel) {
  const table = once("runs", () => {
    const found = new Map();
    for (const e of app.data.events) {
      if (e[0] !== "kernel" || e[6] < 0) continue;
      if (!found.has(e[6])) found.set(e[6], []);
      found.get(e[6]).push(e);
    }
    return found;
  });
  return table.get(kernel) || [];
}

function leastTime(runs) {
  return runs.reduce((least, e) => Math.min(least, e[5]), Infinity);
}

function timeText(us) {
  if (!Number.isFinite(us)) return "not run";
  if (us >= 1e6) return (us / 1e6).toFixed(2) + " s";
  if (us >= 1e3) return (us / 1e3).toFixed(2) + " ms";
  return us.toFixed(us < 10 ? 2 : 1) + " µs";
}

function bytesText(n) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (Math.abs(n) >= size) return (n / size).toFixed(2) + " " + unit;
  }
  return n + " B";
}

function baseName(path) {
  return path.split(/[\\/]/).pop();
}

function placeOfRealize(realize) {
  if (!realize.stack.length) return "somewhere";
  const [file, line] = app.data.frames[realize.stack[0]];
  return `${baseName(app.data.files[file].path)}:${line}`;
}
