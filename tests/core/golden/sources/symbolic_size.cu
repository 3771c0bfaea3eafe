extern "C" __global__ void __launch_bounds__(1, 1)
symbolic_size(float *__restrict__ buf0, float *__restrict__ buf1, const float *__restrict__ buf2, long long wide_var_n, long long wide_var_scale, const unsigned long long *table) {
  if (table) {
    buf0 = (float *)table[0];
    buf1 = (float *)table[1];
    buf2 = (const float *)table[2];
    wide_var_n = (long long)table[3];
    wide_var_scale = (long long)table[4];
  }
  int var_n = (int)wide_var_n;
  long long var_scale = (long long)wide_var_scale;
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
