// Inputs are typed arrays or arrays of numbers, row-major; outputs are typed arrays. Elements of
// float16 and bfloat16 are their bits, in a Uint16Array.

const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  float16: Uint16Array, bfloat16: Uint16Array, float32: Float32Array,
};
const UP = (n, to) => Math.ceil(n / to) * to;

export const name = PLAN.name;
export const inputs = PLAN.inputs;
export const outputs = PLAN.outputs;

/** What a browser or machine lacks, in words for people. */
export class Missing extends Error {}

/** The bytes that an address has; Node reads files by itself. */
async function read(url) {
  if (url.protocol === "file:" && globalThis.process?.versions?.node) {
    const { readFile } = await import("node:fs/promises");
    return Uint8Array.from(await readFile(url)).buffer;
  }
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

/** The bytes of all tensors by name, from safetensors files. */
async function readTensors(base) {
  const found = new Map();
  await Promise.all(Object.entries(PLAN.files).map(async ([file, digest]) => {
    const url = new URL(file, base);
    const data = await read(url);
    const length = Number(new DataView(data).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 8, length)));
    if (header.__metadata__.digest !== digest) {
      throw new Error(`${url} is of another export than this module`);
    }
    for (const [key, entry] of Object.entries(header)) {
      if (key === "__metadata__") continue;
      const [begin, end] = entry.data_offsets;
      found.set(key, new Uint8Array(data, 8 + length + begin, end - begin));
    }
  }));
  return found;
}

/** The bytes of one input. Throws TypeError for what does not fit. */
function bytesOf({ name, dtype, shape, nbytes }, given) {
  const Kind = ARRAYS[dtype];
  let value = given?.[name];
  if (Array.isArray(value)) value = Kind.from(value.flat(Infinity));
  if (!(value instanceof Kind) || value.byteLength !== nbytes) {
    const what = value === undefined ? "nothing"
      : `${value?.constructor?.name} of ${value?.length} elements`;
    throw new TypeError(`input ${name} wants a ${Kind.name} of ${nbytes / Kind.BYTES_PER_ELEMENT} `
      + `elements (${dtype}, ${shape.join(" x ") || "one number"}); ${what} was given`);
  }
  return new Uint8Array(value.buffer, value.byteOffset, nbytes);
}
