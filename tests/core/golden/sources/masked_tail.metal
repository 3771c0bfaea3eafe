#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)
#ifndef threadgroup_memory
#define threadgroup_memory threadgroup
#endif

// A SIMD value: operators work element by element, a comparison gives -1 where it holds.
template <class T, int N> struct aster_vec {
  typedef T element;
  enum { size = N };
  T at[N];
};
#define ASTER_VEC template <class T, int N> static inline aster_vec
#define ASTER_EACH(x) _Pragma("unroll") for (int i = 0; i < N; i++) x; return r;
#define ASTER_BINARY(op) \
  ASTER_VEC<T, N> operator op(aster_vec<T, N> a, aster_vec<T, N> b) { \
    aster_vec<T, N> r; ASTER_EACH(r.at[i] = (T)(a.at[i] op b.at[i])) \
  }
#define ASTER_COMPARE(op) \
  ASTER_VEC<signed char, N> operator op(aster_vec<T, N> a, aster_vec<T, N> b) { \
    aster_vec<signed char, N> r; ASTER_EACH(r.at[i] = a.at[i] op b.at[i] ? -1 : 0) \
  }
#define ASTER_UNARY(op) \
  ASTER_VEC<T, N> operator op(aster_vec<T, N> a) { \
    aster_vec<T, N> r; ASTER_EACH(r.at[i] = (T)(op a.at[i])) \
  }
ASTER_BINARY(+) ASTER_BINARY(-) ASTER_BINARY(*) ASTER_BINARY(/) ASTER_BINARY(%)
ASTER_BINARY(&) ASTER_BINARY(|) ASTER_BINARY(^) ASTER_UNARY(-) ASTER_UNARY(~)
ASTER_COMPARE(<) ASTER_COMPARE(!=) ASTER_COMPARE(==)
template <class T, int N> static inline void operator+=(thread aster_vec<T, N> &a, aster_vec<T, N> b) {
  a = a + b;
}
template <class T, int N> static inline void operator*=(thread aster_vec<T, N> &a, aster_vec<T, N> b) {
  a = a * b;
}
template <class V> static inline V aster_splat(typename V::element x) {
  enum { N = V::size };
  V r; ASTER_EACH(r.at[i] = x)
}
typedef aster_vec<int, 8> i32x8;
static inline i32x8 make_i32x8(int x0, int x1, int x2, int x3, int x4, int x5, int x6, int x7) {
  i32x8 v; v.at[0] = x0; v.at[1] = x1; v.at[2] = x2; v.at[3] = x3; v.at[4] = x4; v.at[5] = x5; v.at[6] = x6; v.at[7] = x7; return v;
}
typedef aster_vec<signed char, 8> i8x8;
typedef aster_vec<float, 8> f32x8;
static inline f32x8 make_f32x8(float x0, float x1, float x2, float x3, float x4, float x5, float x6, float x7) {
  f32x8 v; v.at[0] = x0; v.at[1] = x1; v.at[2] = x2; v.at[3] = x3; v.at[4] = x4; v.at[5] = x5; v.at[6] = x6; v.at[7] = x7; return v;
}

[[max_total_threads_per_threadgroup(1)]]
kernel void masked_tail(device float *buf0 [[buffer(0)]], device const float *buf1 [[buffer(1)]], uint3 block [[threadgroup_position_in_grid]], uint3 item [[thread_position_in_threadgroup]]) {
  for (int r0 = 0; r0 < 2; r0++) {
    int t0 = r0 * 8;
    i32x8 t1 = aster_splat<i32x8>(t0) + make_i32x8(0, 1, 2, 3, 4, 5, 6, 7);
    i8x8 is2 = t1 < aster_splat<i32x8>(13);
    f32x8 v3 = make_f32x8((is2.at[0] != 0) ? buf1[t0] : 0.0f, (is2.at[1] != 0) ? buf1[t0 + 1] :
        0.0f, (is2.at[2] != 0) ? buf1[t0 + 2] : 0.0f, (is2.at[3] != 0) ? buf1[t0 + 3] : 0.0f,
        (is2.at[4] != 0) ? buf1[t0 + 4] : 0.0f, (is2.at[5] != 0) ? buf1[t0 + 5] : 0.0f, (is2.at[6]
        != 0) ? buf1[t0 + 6] : 0.0f, (is2.at[7] != 0) ? buf1[t0 + 7] : 0.0f);
    f32x8 t4 = v3 * aster_splat<f32x8>(2.0f);
    if (is2.at[0] != 0) buf0[t0] = t4.at[0];
    if (is2.at[1] != 0) buf0[t0 + 1] = t4.at[1];
    if (is2.at[2] != 0) buf0[t0 + 2] = t4.at[2];
    if (is2.at[3] != 0) buf0[t0 + 3] = t4.at[3];
    if (is2.at[4] != 0) buf0[t0 + 4] = t4.at[4];
    if (is2.at[5] != 0) buf0[t0 + 5] = t4.at[5];
    if (is2.at[6] != 0) buf0[t0 + 6] = t4.at[6];
    if (is2.at[7] != 0) buf0[t0 + 7] = t4.at[7];
  }
}
