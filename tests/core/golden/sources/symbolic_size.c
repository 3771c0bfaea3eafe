#include <stdbool.h>
#include <stdint.h>

void symbolic_size(uint64_t *args, int64_t lo, int64_t hi) {
  float *buf0 = (float *)args[0];
  float *buf1 = (float *)args[1];
  const float *buf2 = (const float *)args[2];
  int32_t var_n = (int32_t)args[3];
  int64_t var_scale = (int64_t)args[4];
  for (int32_t r0 = 0; r0 < var_n + var_n; r0++) {
    float v0 = buf2[r0];
    buf0[r0] = v0 * (float)var_scale;
  }
  float acc1 = 5.0f;
  for (int32_t r2 = 0; r2 < var_n - var_n; r2++) {
    float v1 = buf2[r2];
    acc1 += v1;
  }
  buf1[0] = acc1;
}
