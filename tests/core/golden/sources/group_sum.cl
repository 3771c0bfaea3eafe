__attribute__((reqd_work_group_size(8, 1, 1)))
__kernel void group_sum(__global char *mem0, long at0, __global const char *mem1, long at1) {
  __global float *buf0 = (__global float *)(mem0 + at0);
  __global const float *buf1 = (__global const float *)(mem1 + at1);
  __local float local0[8];
  int g1 = get_group_id(0);
  int l2 = get_local_id(0);
  float acc3 = 0.0f;
  for (int r4 = 0; r4 < 4; r4++) {
    float v0 = buf1[g1 * 32 + r4 * 8 + l2];
    acc3 += v0;
  }
  local0[l2] = acc3;
  barrier(CLK_LOCAL_MEM_FENCE);
  bool is1 = l2 < 4;
  float v2 = local0[l2];
  float v3 = is1 ? local0[l2 + 4] : 0.0f;
  if (is1) local0[l2] = v2 + v3;
  barrier(CLK_LOCAL_MEM_FENCE);
  bool is4 = l2 < 2;
  float v5 = local0[l2];
  float v6 = is4 ? local0[l2 + 2] : 0.0f;
  if (is4) local0[l2] = v5 + v6;
  barrier(CLK_LOCAL_MEM_FENCE);
  bool is7 = l2 < 1;
  float v8 = local0[l2];
  float v9 = is7 ? local0[l2 + 1] : 0.0f;
  if (is7) local0[l2] = v8 + v9;
  barrier(CLK_LOCAL_MEM_FENCE);
  float v10 = local0[0];
  if (l2 == 0) buf0[g1] = v10;
}
