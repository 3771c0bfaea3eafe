// Runs PLAN, a recorded function, on WebGPU.
//
//   import { load } from "./{{NAME}}.js";
//   const model = await load();                       // or load({ device, base: "https://..." })
//   const found = await model.run({{EXAMPLE}});

// Kernels read whole words, and a binding has 16 bytes at least.
const SIZE = nbytes => UP(nbytes, 16) + 16;
const UNIFORM_BYTES = 256;

/** A device with what the plan needs. Throws Missing. */
export async function openDevice() {
  if (!globalThis.navigator?.gpu) {
    throw new Missing(globalThis.isSecureContext === false
      ? "WebGPU is there only for pages from https:// or from this machine (http://127.0.0.1). "
        + "Serve this page in one of these ways."
      : "This browser has no WebGPU. Chrome and Edge have it from version 113 on, Safari from 26, "
        + "Firefox from 141 (on Windows first).");
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) {
    throw new Missing("This browser has WebGPU, but found no graphics processor that it may use. "
      + "In Chrome, chrome://gpu says why.");
  }
  const requiredLimits = {};
  for (const [limit, wanted] of Object.entries(PLAN.limits)) {
    if (adapter.limits[limit] < wanted) {
      throw new Missing(`This function needs ${limit} = ${wanted}; the graphics processor `
        + `(${adapter.info?.description || adapter.info?.vendor || "unnamed"}) has `
        + `${adapter.limits[limit]}.`);
    }
    requiredLimits[limit] = wanted;
  }
  return adapter.requestDevice({ requiredLimits });
}

/** A function ready to run, on a device of its own unless one is given. */
export async function load({ device, base = import.meta.url } = {}) {
  const [gpu, tensors] = await Promise.all([device ?? openDevice(), readTensors(base)]);
  gpu.pushErrorScope("out-of-memory");
  gpu.pushErrorScope("validation");
  const model = new Model(gpu, tensors);
  await model.compile();
  for (const problem of [await gpu.popErrorScope(), await gpu.popErrorScope()]) {
    if (problem) throw new Error(`${PLAN.name}: ${problem.message}`);
  }
  return model;
}

class Model {
  constructor(device, tensors) {
    this.device = device;
    this.queue = Promise.resolve();
    device.lost.then(info => { this.lost = info; });
    const { STORAGE, COPY_SRC, COPY_DST, MAP_READ, UNIFORM } = GPUBufferUsage;
    this.buffers = PLAN.buffers.map(({ nbytes, tensor }) => {
      const usage = STORAGE | COPY_SRC | COPY_DST;
      const buffer = device.createBuffer({ size: SIZE(nbytes), usage });
      if (tensor !== undefined) this.write(buffer, tensors.get(tensor));
      return buffer;
    });
    this.staging = PLAN.outputs.map(({ nbytes }) =>
      device.createBuffer({ size: SIZE(nbytes), usage: COPY_DST | MAP_READ }));
    // The uniforms of all launches, at multiples of what every device takes as an offset.
    const words = new Uint32Array(Math.max(PLAN.steps.length, 1) * UNIFORM_BYTES / 4);
    PLAN.steps.forEach((step, i) => words.set(step.words ?? [], i * UNIFORM_BYTES / 4));
    this.uniform = device.createBuffer({ size: words.byteLength, usage: UNIFORM | COPY_DST });
    device.queue.writeBuffer(this.uniform, 0, words);
  }

  /** Bytes into a buffer, filled up to whole words. */
  write(buffer, bytes) {
    if (bytes.byteLength % 4) {
      const whole = new Uint8Array(UP(bytes.byteLength, 4));
      whole.set(bytes);
      bytes = whole;
    }
    if (bytes.byteLength) this.device.queue.writeBuffer(buffer, 0, bytes);
  }

  /** Pipelines, side by side, and a bind group for each launch. */
  async compile() {
    const device = this.device;
    const compiled = await Promise.all(SHADERS.map(async ({ code, kinds }) => {
      const layout = device.createBindGroupLayout({
        entries: ["uniform", ...kinds].map((type, binding) => ({
          binding, visibility: GPUShaderStage.COMPUTE, buffer: { type },
        })),
      });
      const pipeline = await device.createComputePipelineAsync({
        layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module: device.createShaderModule({ code }), entryPoint: "main" },
      });
      return { layout, pipeline };
    }));
    this.steps = PLAN.steps.map((step, i) => {
      if (step.copy) return step;
      const { layout, pipeline } = compiled[step.shader];
      const resources = step.bind.map(([buffer, offset, size]) =>
        ({ buffer: this.buffers[buffer], offset, size }));
      const uniform = { offset: i * UNIFORM_BYTES, size: 4 * step.words.length };
      const entries = [{ buffer: this.uniform, ...uniform }, ...resources]
        .map((resource, binding) => ({ binding, resource }));
      return { pipeline, group: device.createBindGroup({ layout, entries }), blocks: step.blocks };
    });
  }

  /** The outputs by name. Calls that come meanwhile wait for their turn. */
  run(given) {
    const turn = this.queue.then(() => this.runNow(given));
    this.queue = turn.catch(() => undefined);
    return turn;
  }

  async runNow(given) {
    if (this.lost) throw new Error(`the graphics processor was lost: ${this.lost.message}`);
    PLAN.inputs.forEach((input, i) => this.write(this.buffers[i], bytesOf(input, given)));
    const encoder = this.device.createCommandEncoder();
    let pass = null;
    for (const step of this.steps) {
      if (step.copy) {
        pass?.end();
        pass = null;
        const [to, toAt, from, fromAt, nbytes] = step.copy;
        encoder.copyBufferToBuffer(this.buffers[from], fromAt, this.buffers[to], toAt, nbytes);
        continue;
      }
      pass ??= encoder.beginComputePass();
      pass.setPipeline(step.pipeline);
      pass.setBindGroup(0, step.group);
      pass.dispatchWorkgroups(...step.blocks);
    }
    pass?.end();
    PLAN.outputs.forEach(({ nbytes }, i) => {
      const buffer = this.buffers[PLAN.inputs.length + i];
      encoder.copyBufferToBuffer(buffer, 0, this.staging[i], 0, UP(nbytes, 4));
    });
    this.device.queue.submit([encoder.finish()]);
    await Promise.all(this.staging.map(buffer => buffer.mapAsync(GPUMapMode.READ)));
    const results = {};
    PLAN.outputs.forEach(({ name, dtype, nbytes }, i) => {
      const bytes = this.staging[i].getMappedRange().slice(0, nbytes);
      this.staging[i].unmap();
      results[name] = new ARRAYS[dtype](bytes);
    });
    return results;
  }

  /** Gives the memory back. */
  free() {
    for (const buffer of [...this.buffers, ...this.staging, this.uniform]) buffer.destroy();
  }
}
