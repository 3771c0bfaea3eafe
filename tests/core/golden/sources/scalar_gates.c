#include <stdbool.h>
#include <stdint.h>

typedef float float4 __attribute__((vector_size(16)));
static inline float4 load_f32x4(const float *p) {
  float4 v; __builtin_memcpy(&v, p, sizeof v); return v;
}
static inline float4 splat_f32x4(float x) { return (float4){x, x, x, x}; }
static inline void store_f32x4(float *p, float4 v) { __builtin_memcpy(p, &v, sizeof v); }

void scalar_gates(uint64_t *args, int64_t lo, int64_t hi) {
  float *buf0 = (float *)args[0];
  const float *buf1 = (const float *)args[1];
  for (int32_t r0 = 0; r0 < 5; r0++) {
    int32_t t0 = r0 * 4;
    int32_t t1 = r0 * 4;
    bool is2 = (0 < r0) & (r0 < 6);
    float4 v3 = is2 ? load_f32x4(buf1 + t1 - 4) : splat_f32x4(0.0f);
    int32_t t4 = r0 + 1;
    int32_t t5 = t4 * 4;
    bool is6 = (0 < t4) & (t4 < 6);
    float4 v7 = is6 ? load_f32x4(buf1 + t5 - 4) : splat_f32x4(0.0f);
    int32_t t8 = r0 + 2;
    int32_t t9 = t8 * 4;
    bool is10 = (0 < t8) & (t8 < 6);
    float4 v11 = is10 ? load_f32x4(buf1 + t9 - 4) : splat_f32x4(0.0f);
    float4 t12 = v3 + v11;
    float4 t13 = t12 + v7;
    bool is14 = r0 < 4;
    if (is14) store_f32x4(buf0 + t0, t13);
  }
}
