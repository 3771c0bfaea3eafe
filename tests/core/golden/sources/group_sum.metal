#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)
#ifndef threadgroup_memory
#define threadgroup_memory threadgroup
#endif

[[max_total_threads_per_threadgroup(8)]]
kernel void group_sum(device float *buf0 [[buffer(0)]], device const float *buf1 [[buffer(1)]], uint3 block [[threadgroup_position_in_grid]], uint3 item [[thread_position_in_threadgroup]]) {
  threadgroup_memory float local0[8];
  int g1 = (int)block.x;
  int l2 = (int)item.x;
  float acc3 = 0.0f;
  for (int r4 = 0; r4 < 4; r4++) {
    float v0 = buf1[g1 * 32 + r4 * 8 + l2];
    acc3 += v0;
  }
  local0[l2] = acc3;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  bool is1 = l2 < 4;
  float v2 = local0[l2];
  float v3 = is1 ? local0[l2 + 4] : 0.0f;
  if (is1) local0[l2] = v2 + v3;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  bool is4 = l2 < 2;
  float v5 = local0[l2];
  float v6 = is4 ? local0[l2 + 2] : 0.0f;
  if (is4) local0[l2] = v5 + v6;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  bool is7 = l2 < 1;
  float v8 = local0[l2];
  float v9 = is7 ? local0[l2 + 1] : 0.0f;
  if (is7) local0[l2] = v8 + v9;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float v10 = local0[0];
  if (l2 == 0) buf0[g1] = v10;
}
