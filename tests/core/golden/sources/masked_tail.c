#include <stdbool.h>
#include <stdint.h>

typedef int32_t int8 __attribute__((vector_size(32)));
static inline int8 splat_i32x8(int32_t x) { return (int8){x, x, x, x, x, x, x, x}; }
typedef int8_t char8 __attribute__((vector_size(8)));
typedef float float8 __attribute__((vector_size(32)));
static inline float8 load_masked_f32x8(const float *p, char8 m) {
  float8 v = {0};
  for (int i = 0; i < 8; i++) if (m[i]) v[i] = p[i];
  return v;
}
static inline float8 splat_f32x8(float x) { return (float8){x, x, x, x, x, x, x, x}; }
static inline void store_masked_f32x8(float *p, float8 v, char8 m) {
  for (int i = 0; i < 8; i++) if (m[i]) p[i] = v[i];
}

void masked_tail(uint64_t *args, int64_t lo, int64_t hi) {
  float *buf0 = (float *)args[0];
  const float *buf1 = (const float *)args[1];
  for (int32_t r0 = 0; r0 < 2; r0++) {
    int32_t t0 = r0 * 8;
    char8 is1 = __builtin_convertvector(((splat_i32x8(t0) + (int8){0, 1, 2, 3, 4, 5, 6, 7}) <
        splat_i32x8(13)), char8);
    float8 v2 = load_masked_f32x8(buf1 + t0, is1);
    float8 t3 = v2 * splat_f32x8(2.0f);
    store_masked_f32x8(buf0 + t0, t3, is1);
  }
}
