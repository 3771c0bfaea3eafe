#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)
#ifndef threadgroup_memory
#define threadgroup_memory threadgroup
#endif

[[max_total_threads_per_threadgroup(1)]]
kernel void symbolic_size(device float *buf0 [[buffer(0)]], device float *buf1 [[buffer(1)]], device const float *buf2 [[buffer(2)]], constant long &wide_var_n [[buffer(3)]], constant long &wide_var_scale [[buffer(4)]], uint3 block [[threadgroup_position_in_grid]], uint3 item [[thread_position_in_threadgroup]]) {
  int var_n = (int)wide_var_n;
  long var_scale = (long)wide_var_scale;
  for (int r0 = 0; r0 < var_n + var_n; r0++) {
    float v0 = buf2[r0];
    buf0[r0] = v0 * (float)var_scale;
  }
  float acc1 = 5.0f;
  for (int r2 = 0; r2 < var_n - var_n; r2++) {
    float v1 = buf2[r2];
    acc1 += v1;
  }
  buf1[0] = acc1;
}
