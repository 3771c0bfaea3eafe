// {"buffers":[[4,1],[4,1],[4,0]],"variables":[1,2]}
struct Args {
  zero: u32,
  at0: i32,
  at1: i32,
  at2: i32,
  var_n: i32,
  var_scale: u32,
  var_scale_high: u32,
}
@group(0) @binding(0) var<uniform> args: Args;
@group(0) @binding(1) var<storage, read_write> buf0: array<f32>;
@group(0) @binding(2) var<storage, read_write> buf1: array<f32>;
@group(0) @binding(3) var<storage, read> buf2: array<f32>;
fn float_of_int64(x: vec2<u32>) -> f32 {
  if ((x.y >> 31u) == 0u) { return float_of_uint64(x); }
  return -float_of_uint64(sub_words(vec2<u32>(0u, 0u), x));
}
fn sub_words(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
fn float_of_uint64(x: vec2<u32>) -> f32 {
  if (x.y == 0u) { return float_of_uint32(x.x); }
  let left = countLeadingZeros(x.y);
  let moved = shl_words(x, left);
  let top = moved.y | select(0u, 1u, moved.x != 0u);
  return float_of_uint32(top) * bitcast<f32>((159u - left) << 23u);
}
fn float_of_uint32(x: u32) -> f32 {
  return f32(x >> 16u) * 65536.0 + f32(x & 0xffffu);
}
fn shl_words(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n >= 64u) { return vec2<u32>(0u, 0u); }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  if (n == 0u) { return a; }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) wid: vec3<u32>,
        @builtin(local_invocation_id) lid: vec3<u32>) {
  let at0 = args.at0;
  let at1 = args.at1;
  let at2 = args.at2;
  let var_n = args.var_n;
  let var_scale = vec2<u32>(args.var_scale, args.var_scale_high);
  for (var r0 = i32(0); r0 < (var_n + var_n); r0++) {
    let v0 = buf2[at2 + r0];
    buf0[at0 + r0] = v0 * float_of_int64(var_scale);
  }
  var acc1: f32 = 5.0f;
  for (var r2 = i32(0); r2 < (var_n - var_n); r2++) {
    let v1 = buf2[at2 + r2];
    acc1 += v1;
  }
  buf1[at1] = acc1;
}
