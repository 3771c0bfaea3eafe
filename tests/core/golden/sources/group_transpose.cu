extern "C" __global__ void __launch_bounds__(16, 1)
group_transpose(float *__restrict__ buf0, const float *__restrict__ buf1, const unsigned long long *table) {
  if (table) {
    buf0 = (float *)table[0];
    buf1 = (const float *)table[1];
  }
  __shared__ __align__(16) float local0[16];
  int g1 = (int)blockIdx.x;
  int g2 = (int)blockIdx.y;
  int l3 = (int)threadIdx.x;
  int l4 = (int)threadIdx.y;
  int t0 = g1 * 4;
  int t1 = g2 * 4;
  float v2 = buf1[(((t0 + l3) * 8) + t1) + l4];
  local0[l3 * 4 + l4] = v2;
  __syncthreads();
  float v3 = local0[l4 * 4 + l3];
  buf0[(((t1 + l3) * 12) + t0) + l4] = v3;
}
