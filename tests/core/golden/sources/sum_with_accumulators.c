#include <stdbool.h>
#include <stdint.h>

typedef float float8 __attribute__((vector_size(32)));
static inline float8 splat_f32x8(float x) { return (float8){x, x, x, x, x, x, x, x}; }
static inline float8 load_f32x8(const float *p) {
  float8 v; __builtin_memcpy(&v, p, sizeof v); return v;
}
static inline float fold_add_f32x8(float8 v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

void sum_with_accumulators(uint64_t *args, int64_t lo, int64_t hi) {
  float *buf0 = (float *)args[0];
  const float *buf1 = (const float *)args[1];
  float8 acc2_0 = splat_f32x8(0.0f);
  float8 acc2_1 = splat_f32x8(0.0f);
  for (int32_t r3 = 0; r3 < 4; r3++) {
    int32_t t0 = r3 * 64;
    float8 v1 = load_f32x8(buf1 + t0);
    acc2_0 += v1;
    float8 v2 = load_f32x8(buf1 + t0 + 8);
    acc2_1 += v2;
    float8 v3 = load_f32x8(buf1 + t0 + 16);
    acc2_0 += v3;
    float8 v4 = load_f32x8(buf1 + t0 + 24);
    acc2_1 += v4;
    float8 v5 = load_f32x8(buf1 + t0 + 32);
    acc2_0 += v5;
    float8 v6 = load_f32x8(buf1 + t0 + 40);
    acc2_1 += v6;
    float8 v7 = load_f32x8(buf1 + t0 + 48);
    acc2_0 += v7;
    float8 v8 = load_f32x8(buf1 + t0 + 56);
    acc2_1 += v8;
  }
  float8 t9 = acc2_0 + acc2_1;
  float t10 = fold_add_f32x8(t9);
  buf0[0] = t10;
}
