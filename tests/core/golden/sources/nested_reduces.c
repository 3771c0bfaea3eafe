#include <stdbool.h>
#include <stdint.h>

static inline int32_t f32_as_i32(float x) {
  int32_t y; __builtin_memcpy(&y, &x, sizeof y); return y;
}
static inline float i32_as_f32(int32_t x) {
  float y; __builtin_memcpy(&y, &x, sizeof y); return y;
}
static inline float max_f32(float a, float b) {
  return a > b || a != a ? a : a == b ? i32_as_f32((int32_t)(f32_as_i32(a) & f32_as_i32(b))) : b;
}

void nested_reduces(uint64_t *args, int64_t lo, int64_t hi) {
  float *buf0 = (float *)args[0];
  const float *buf1 = (const float *)args[1];
  for (int32_t r0 = 0; r0 < 3; r0++) {
    float acc1 = -__builtin_inff();
    for (int32_t r2 = 0; r2 < 4; r2++) {
      int32_t t0 = r0 * 20 + r2 * 5;
      float acc3 = 0.0f;
      for (int32_t r4 = 0; r4 < 5; r4++) {
        float v1 = buf1[t0 + r4];
        acc3 += v1;
      }
      float t2 = acc3 * acc3;
      acc1 = max_f32(acc1, t2);
    }
    buf0[r0] = acc1;
  }
}
