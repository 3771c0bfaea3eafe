// Runs PLAN, a recorded function, in WebAssembly: in browsers and in Node.
//
//   import { load } from "./{{NAME}}.js";
//   const model = await load();                       // or load({ base: "https://..." })
//   const found = await model.run({{EXAMPLE}});

const PAGE = 65536, LINE = 64;

/** A function ready to run, with memory of its own. */
export async function load({ base = import.meta.url } = {}) {
  if (!globalThis.WebAssembly) throw new Missing("There is no WebAssembly here.");
  const [code, tensors] = await Promise.all([
    read(new URL(PLAN.code, base)), readTensors(base),
  ]);
  let made;
  try {
    made = await WebAssembly.instantiate(code, {});
  } catch (problem) {
    throw new Missing(`This WebAssembly has no SIMD (every browser since 2023 has it): ${problem.message}`);
  }
  return new Model(made.instance, tensors);
}

class Model {
  constructor({ exports }, tensors) {
    this.exports = exports;
    this.end = Number(exports.__heap_base.value);
    const weights = this.take(PLAN.weightBytes), states = this.take(PLAN.stateBytes);
    const arena = this.take(PLAN.arenaBytes);
    this.inputs = PLAN.inputs.map(({ nbytes }) => this.take(nbytes));
    this.outputs = PLAN.outputs.map(({ nbytes }) => this.take(nbytes));
    const missing = this.end - exports.memory.buffer.byteLength;
    if (missing > 0) exports.memory.grow(Math.ceil(missing / PAGE));
    const memory = new Uint8Array(exports.memory.buffer);
    for (const [tensor, at] of PLAN.weights) memory.set(tensors.get(tensor), weights + at);
    for (const [tensor, at] of PLAN.states) memory.set(tensors.get(tensor), states + at);
    this.arguments = [weights, states, arena, ...this.inputs, ...this.outputs];
  }

  /** The address of as many bytes. */
  take(nbytes) {
    const at = UP(this.end, LINE);
    this.end = at + nbytes;
    return at;
  }

  /** The outputs by name. */
  async run(given) {
    const memory = new Uint8Array(this.exports.memory.buffer);
    PLAN.inputs.forEach((input, i) => memory.set(bytesOf(input, given), this.inputs[i]));
    this.exports.steps(...this.arguments);
    const results = {};
    PLAN.outputs.forEach(({ name, dtype, nbytes }, i) => {
      const at = this.outputs[i];
      results[name] = new ARRAYS[dtype](memory.slice(at, at + nbytes).buffer);
    });
    return results;
  }

  /** There is nothing to give back: the memory goes with the model. */
  free() {}
}
