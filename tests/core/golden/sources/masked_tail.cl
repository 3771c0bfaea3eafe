__kernel void masked_tail(__global char *mem0, long at0, __global const char *mem1, long at1) {
  __global float *buf0 = (__global float *)(mem0 + at0);
  __global const float *buf1 = (__global const float *)(mem1 + at1);
  for (int r0 = 0; r0 < 2; r0++) {
    int t0 = r0 * 8;
    char8 is1 = convert_char8(((int8)(t0) + (int8)(0, 1, 2, 3, 4, 5, 6, 7)) < (int8)(13));
    float8 v2 = (float8)(((is1.s0 != 0) ? buf1[t0] : 0.0f), ((is1.s1 != 0) ? buf1[t0 + 1] : 0.0f),
        ((is1.s2 != 0) ? buf1[t0 + 2] : 0.0f), ((is1.s3 != 0) ? buf1[t0 + 3] : 0.0f), ((is1.s4 != 0)
        ? buf1[t0 + 4] : 0.0f), ((is1.s5 != 0) ? buf1[t0 + 5] : 0.0f), ((is1.s6 != 0) ? buf1[t0 + 6]
        : 0.0f), ((is1.s7 != 0) ? buf1[t0 + 7] : 0.0f));
    float8 t3 = v2 * (float8)(2.0f);
    if (is1.s0 != 0) buf0[t0] = t3.s0;
    if (is1.s1 != 0) buf0[t0 + 1] = t3.s1;
    if (is1.s2 != 0) buf0[t0 + 2] = t3.s2;
    if (is1.s3 != 0) buf0[t0 + 3] = t3.s3;
    if (is1.s4 != 0) buf0[t0 + 4] = t3.s4;
    if (is1.s5 != 0) buf0[t0 + 5] = t3.s5;
    if (is1.s6 != 0) buf0[t0 + 6] = t3.s6;
    if (is1.s7 != 0) buf0[t0 + 7] = t3.s7;
  }
}
