extern "C" __global__ void __launch_bounds__(8, 1)
group_sum(float *__restrict__ buf0, const float *__restrict__ buf1, const unsigned long long *table) {
  if (table) {
    buf0 = (float *)table[0];
    buf1 = (const float *)table[1];
  }
  __shared__ __align__(16) float local0[8];
  int g1 = (int)blockIdx.x;
  int l2 = (int)threadIdx.x;
  float acc3 = 0.0f;
  for (int r4 = 0; r4 < 4; r4++) {
    float v0 = buf1[g1 * 32 + r4 * 8 + l2];
    acc3 += v0;
  }
  local0[l2] = acc3;
  __syncthreads();
  bool is1 = l2 < 4;
  float v2 = local0[l2];
  float v3 = is1 ? local0[l2 + 4] : 0.0f;
  if (is1) local0[l2] = v2 + v3;
  __syncthreads();
  bool is4 = l2 < 2;
  float v5 = local0[l2];
  float v6 = is4 ? local0[l2 + 2] : 0.0f;
  if (is4) local0[l2] = v5 + v6;
  __syncthreads();
  bool is7 = l2 < 1;
  float v8 = local0[l2];
  float v9 = is7 ? local0[l2 + 1] : 0.0f;
  if (is7) local0[l2] = v8 + v9;
  __syncthreads();
  float v10 = local0[0];
  if (l2 == 0) buf0[g1] = v10;
}
