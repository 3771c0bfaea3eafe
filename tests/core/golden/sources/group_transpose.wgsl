// {"buffers":[[4,1],[4,0]],"variables":[]}
struct Args {
  zero: u32,
  at0: i32,
  at1: i32,
}
@group(0) @binding(0) var<uniform> args: Args;
@group(0) @binding(1) var<storage, read_write> buf0: array<f32>;
@group(0) @binding(2) var<storage, read> buf1: array<f32>;
var<workgroup> local0: array<f32, 16>;
@compute @workgroup_size(4, 4)
fn main(@builtin(workgroup_id) wid: vec3<u32>,
        @builtin(local_invocation_id) lid: vec3<u32>) {
  let at0 = args.at0;
  let at1 = args.at1;
  let g1 = i32(wid.x);
  let g2 = i32(wid.y);
  let l3 = i32(lid.x);
  let l4 = i32(lid.y);
  let t0 = g1 * 4;
  let t1 = g2 * 4;
  let v2 = buf1[at1 + ((((t0 + l3) * 8) + t1) + l4)];
  local0[(l3 * 4) + l4] = v2;
  workgroupBarrier();
  let v3 = local0[(l4 * 4) + l3];
  buf0[at0 + ((((t1 + l3) * 12) + t0) + l4)] = v3;
}
