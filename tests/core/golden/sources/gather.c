#include <stdbool.h>
#include <stdint.h>

typedef int32_t int4 __attribute__((vector_size(16)));
static inline int4 load_i32x4(const int32_t *p) {
  int4 v; __builtin_memcpy(&v, p, sizeof v); return v;
}
static inline int4 splat_i32x4(int32_t x) { return (int4){x, x, x, x}; }
typedef int8_t char4 __attribute__((vector_size(4)));
typedef float float4 __attribute__((vector_size(16)));
static inline void store_f32x4(float *p, float4 v) { __builtin_memcpy(p, &v, sizeof v); }

void gather(uint64_t *args, int64_t lo, int64_t hi) {
  float *buf0 = (float *)args[0];
  const float *buf1 = (const float *)args[1];
  const int32_t *buf2 = (const int32_t *)args[2];
  for (int32_t r0 = 0; r0 < 4; r0++) {
    int32_t t0 = r0 * 4;
    int4 v1 = load_i32x4(buf2 + t0);
    char4 is2 = __builtin_convertvector((splat_i32x4((-1)) < v1), char4);
    float4 v3 = (float4){((bool)is2[0] ? buf1[v1[0]] : 0.0f), ((bool)is2[1] ? buf1[v1[1]] : 0.0f),
        ((bool)is2[2] ? buf1[v1[2]] : 0.0f), ((bool)is2[3] ? buf1[v1[3]] : 0.0f)};
    store_f32x4(buf0 + t0, v3);
  }
}
