__kernel void symbolic_size(__global char *mem0, long at0, __global char *mem1, long at1, __global const char *mem2, long at2, long wide_var_n, long wide_var_scale) {
  __global float *buf0 = (__global float *)(mem0 + at0);
  __global float *buf1 = (__global float *)(mem1 + at1);
  __global const float *buf2 = (__global const float *)(mem2 + at2);
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
