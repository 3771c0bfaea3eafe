__attribute__((reqd_work_group_size(4, 4, 1)))
__kernel void group_transpose(__global char *mem0, long at0, __global const char *mem1, long at1) {
  __global float *buf0 = (__global float *)(mem0 + at0);
  __global const float *buf1 = (__global const float *)(mem1 + at1);
  __local float local0[16];
  int g1 = get_group_id(0);
  int g2 = get_group_id(1);
  int l3 = get_local_id(0);
  int l4 = get_local_id(1);
  int t0 = g1 * 4;
  int t1 = g2 * 4;
  float v2 = buf1[(((t0 + l3) * 8) + t1) + l4];
  local0[l3 * 4 + l4] = v2;
  barrier(CLK_LOCAL_MEM_FENCE);
  float v3 = local0[l4 * 4 + l3];
  buf0[(((t1 + l3) * 12) + t0) + l4] = v3;
}
