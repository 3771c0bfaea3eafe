#include <stdbool.h>
#include <stdint.h>

typedef float float8 __attribute__((vector_size(32)));
static inline float8 load_f32x8(const float *p) {
  float8 v; __builtin_memcpy(&v, p, sizeof v); return v;
}
static inline float8 splat_f32x8(float x) { return (float8){x, x, x, x, x, x, x, x}; }
static inline void store_f32x8(float *p, float8 v) { __builtin_memcpy(p, &v, sizeof v); }

void elementwise(uint64_t *args, int64_t lo, int64_t hi) {
  float *buf0 = (float *)args[0];
  const float *buf1 = (const float *)args[1];
  const float *buf2 = (const float *)args[2];
  for (int32_t r0 = 0; r0 < 6; r0++) {
    int32_t t0 = r0 * 16;
    float8 v1 = load_f32x8(buf1 + t0);
    float8 v2 = load_f32x8(buf2 + t0);
    float8 v3 = load_f32x8(buf1 + t0 + 8);
    float8 v4 = load_f32x8(buf2 + t0 + 8);
    float8 t5 = (v1 * v2) + splat_f32x8(1.0f);
    float8 t6 = (v3 * v4) + splat_f32x8(1.0f);
    store_f32x8(buf0 + t0, t5);
    store_f32x8(buf0 + t0 + 8, t6);
  }
}
