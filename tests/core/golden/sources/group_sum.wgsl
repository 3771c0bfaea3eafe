// {"buffers":[[4,1],[4,0]],"variables":[]}
struct Args {
  zero: u32,
  at0: i32,
  at1: i32,
}
@group(0) @binding(0) var<uniform> args: Args;
@group(0) @binding(1) var<storage, read_write> buf0: array<f32>;
@group(0) @binding(2) var<storage, read> buf1: array<f32>;
var<workgroup> local0: array<f32, 8>;
@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) wid: vec3<u32>,
        @builtin(local_invocation_id) lid: vec3<u32>) {
  let at0 = args.at0;
  let at1 = args.at1;
  let g1 = i32(wid.x);
  let l2 = i32(lid.x);
  var acc3: f32 = 0.0f;
  for (var r4 = i32(0); r4 < 4; r4++) {
    let v0 = buf1[at1 + (((g1 * 32) + (r4 * 8)) + l2)];
    acc3 += v0;
  }
  local0[l2] = acc3;
  workgroupBarrier();
  let is1 = l2 < 4;
  let v2 = local0[l2];
  let v3 = select(0.0f, local0[l2 + 4], is1);
  if (is1) { local0[l2] = v2 + v3; }
  workgroupBarrier();
  let is4 = l2 < 2;
  let v5 = local0[l2];
  let v6 = select(0.0f, local0[l2 + 2], is4);
  if (is4) { local0[l2] = v5 + v6; }
  workgroupBarrier();
  let is7 = l2 < 1;
  let v8 = local0[l2];
  let v9 = select(0.0f, local0[l2 + 1], is7);
  if (is7) { local0[l2] = v8 + v9; }
  workgroupBarrier();
  let v10 = local0[0];
  if (l2 == 0) { buf0[at0 + g1] = v10; }
}
