static inline float fold_add_f32x8(float8 v) {
  return ((v.s0 + v.s4) + (v.s2 + v.s6)) + ((v.s1 + v.s5) + (v.s3 + v.s7));
}

__kernel void sum_with_accumulators(__global char *mem0, long at0, __global const char *mem1, long at1) {
  __global float *buf0 = (__global float *)(mem0 + at0);
  __global const float *buf1 = (__global const float *)(mem1 + at1);
  float8 acc2_0 = (float8)(0.0f);
  float8 acc2_1 = (float8)(0.0f);
  for (int r3 = 0; r3 < 4; r3++) {
    int t0 = r3 * 64;
    float8 v1 = vload8(0, buf1 + t0);
    acc2_0 += v1;
    float8 v2 = vload8(0, buf1 + t0 + 8);
    acc2_1 += v2;
    float8 v3 = vload8(0, buf1 + t0 + 16);
    acc2_0 += v3;
    float8 v4 = vload8(0, buf1 + t0 + 24);
    acc2_1 += v4;
    float8 v5 = vload8(0, buf1 + t0 + 32);
    acc2_0 += v5;
    float8 v6 = vload8(0, buf1 + t0 + 40);
    acc2_1 += v6;
    float8 v7 = vload8(0, buf1 + t0 + 48);
    acc2_0 += v7;
    float8 v8 = vload8(0, buf1 + t0 + 56);
    acc2_1 += v8;
  }
  float8 t9 = acc2_0 + acc2_1;
  float t10 = fold_add_f32x8(t9);
  buf0[0] = t10;
}
