__kernel void elementwise(__global char *mem0, long at0, __global const char *mem1, long at1, __global const char *mem2, long at2) {
  __global float *buf0 = (__global float *)(mem0 + at0);
  __global const float *buf1 = (__global const float *)(mem1 + at1);
  __global const float *buf2 = (__global const float *)(mem2 + at2);
  for (int r0 = 0; r0 < 6; r0++) {
    int t0 = r0 * 16;
    float8 v1 = vload8(0, buf1 + t0);
    float8 v2 = vload8(0, buf2 + t0);
    float8 v3 = vload8(0, buf1 + t0 + 8);
    float8 v4 = vload8(0, buf2 + t0 + 8);
    float8 t5 = (v1 * v2) + (float8)(1.0f);
    float8 t6 = (v3 * v4) + (float8)(1.0f);
    vstore8(t5, 0, buf0 + t0);
    vstore8(t6, 0, buf0 + t0 + 8);
  }
}
