//! Functions of Aster in CUDA C++: memory, MAX, narrow floats.
//!
//! Inline PTX, which only a device runs, stands behind `#ifndef ASTER_ON_CPU`.

//: aster_as
template <class U, class T> FN U aster_as(T x) {
  U y;
  memcpy(&y, &x, sizeof(U));
  return y;
}

//: aster_load needs aster_vec
//! Pieces of A bytes, in turn.
template <int A> struct aster_piece;
template <> struct aster_piece<16> { typedef uint4 type; };
template <> struct aster_piece<8> { typedef uint2 type; };
template <> struct aster_piece<4> { typedef unsigned int type; };
template <> struct aster_piece<2> { typedef unsigned short type; };
template <> struct aster_piece<1> { typedef unsigned char type; };
// Neighbours at a multiple of A bytes.
template <class V, int A> FN V aster_load(const typename V::element *p) {
  typedef typename aster_piece<A>::type piece;
  piece all[sizeof(V) / A];
#pragma unroll
  for (int i = 0; i < (int)sizeof(V) / A; i++) all[i] = ((const piece *)p)[i];
  V v;
  memcpy(&v, all, sizeof(V));
  return v;
}

//: aster_load_any needs aster_load
// Neighbours A bytes or a multiple of them behind the first element of a buffer.
template <class V, int A> FN V aster_load_any(const typename V::element *p) {
#if !ASTER_ALIGNED
  if ((unsigned long long)p % A) {
    enum { N = V::size };
    V r; ASTER_EACH(r.at[i] = p[i])
  }
#endif
  return aster_load<V, A>(p);
}

//: aster_store needs aster_load
template <int A, class T, int N> FN void aster_store(T *p, aster_vec<T, N> v) {
  typedef typename aster_piece<A>::type piece;
  piece all[sizeof(v) / A];
  memcpy(all, &v, sizeof(v));
#pragma unroll
  for (int i = 0; i < (int)sizeof(v) / A; i++) ((piece *)p)[i] = all[i];
}

//: aster_store_any needs aster_store
template <int A, class T, int N> FN void aster_store_any(T *p, aster_vec<T, N> v) {
#if !ASTER_ALIGNED
  if ((unsigned long long)p % A) {
#pragma unroll
    for (int i = 0; i < N; i++) p[i] = v.at[i];
    return;
  }
#endif
  aster_store<A>(p, v);
}

//: aster_max needs aster_as
#ifndef ASTER_ON_CPU
FN float aster_max(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a != a ? a : b != b ? b : a == b ? __int_as_float(__float_as_int(a) & __float_as_int(b))
                                          : fmaxf(a, b);
#endif
}
#endif
FN double aster_max(double a, double b) {
  return a != a ? a : b != b ? b : a == b ? aster_as<double>(
      aster_as<long long>(a) & aster_as<long long>(b)) : a > b ? a : b;
}

//: aster_power
//! The instruction alone: 2 to the power of numbers below -126 is 0.
FN float aster_power(float x) {
#ifdef ASTER_ON_CPU
  return x < -126 ? 0 : exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

//: aster_exchange
//! A value of the thread whose number in the warp differs in these bits; in words of 32 bits.
template <class T> FN T aster_exchange(T x, int by) {
  enum { WORDS = (sizeof(T) + 3) / 4 };
  unsigned int words[WORDS] = {};
  memcpy(words, &x, sizeof(T));
#pragma unroll
  for (int i = 0; i < WORDS; i++) words[i] = __shfl_xor_sync(0xffffffffu, words[i], by);
  T y;
  memcpy(&y, words, sizeof(T));
  return y;
}

//: aster_odd
//! Rounded to odd, so that a second rounding gives what one rounding would.
FN float aster_odd(float x) { return x; }
FN float aster_odd(double x) {
  float near = (float)x;
  double back = (double)near;
  int code = __float_as_int(near) - ((back < 0 ? -back : back) > (x < 0 ? -x : x));
  return __int_as_float(code | (back != x));
}
FN float aster_odd(long long x) {
  if (x >> 52 != 0 && x >> 52 != -1) {
    return aster_odd((double)(x >> 11 | ((x & 2047) != 0)) * 2048.0);
  }
  return aster_odd((double)x);
}
FN float aster_odd(unsigned long long x) {
  if (x >> 53) return aster_odd((double)(x >> 11 | ((x & 2047) != 0)) * 2048.0);
  return aster_odd((double)x);
}
FN float aster_odd(int x) { return aster_odd((double)x); }
FN float aster_odd(unsigned int x) { return aster_odd((double)x); }
FN float aster_odd(short x) { return (float)x; }
FN float aster_odd(unsigned short x) { return (float)x; }
FN float aster_odd(signed char x) { return (float)x; }
FN float aster_odd(unsigned char x) { return (float)x; }
FN float aster_odd(bool x) { return x ? 1.0f : 0.0f; }

//: aster_shared
#ifndef ASTER_ON_CPU
extern __shared__ __align__(1024) unsigned char aster_shared[];
#endif

//: aster_half_codes
#ifndef ASTER_ON_CPU
FN float aster_half_widen(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
FN unsigned short aster_half_narrow(float x) {
#if ASTER_ONE_BY_ONE
  unsigned int both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
  return (unsigned short)both;
#endif
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
FN unsigned short aster_half_add(unsigned short a, unsigned short b) {
  unsigned short y;
  asm("add.rn.f16 %0, %1, %2;" : "=h"(y) : "h"(a), "h"(b));
  return y;
}
FN unsigned short aster_half_mul(unsigned short a, unsigned short b) {
  unsigned short y;
  asm("mul.rn.f16 %0, %1, %2;" : "=h"(y) : "h"(a), "h"(b));
  return y;
}
FN unsigned short aster_half_muladd(unsigned short a, unsigned short b, unsigned short c) {
  unsigned short y;
  asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(y) : "h"(a), "h"(b), "h"(c));
  return y;
}
#endif

//: aster_bfloat_codes needs aster_odd
FN float aster_bfloat_widen(unsigned short x) {
  return __int_as_float((int)((unsigned int)x << 16));
}
FN unsigned short aster_bfloat_narrow(float x) {
#if ASTER_ONE_BY_ONE
  unsigned int both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
  return (unsigned short)both;
#elif __CUDA_ARCH__ >= 800
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
#else
  unsigned int code = (unsigned int)__float_as_int(x);
  return (unsigned short)((x != x ? code | 0x400000 : code + 0x7fff + (code >> 16 & 1)) >> 16);
#endif
}
FN unsigned short aster_bfloat_add(unsigned short a, unsigned short b) {
  return aster_bfloat_narrow(aster_bfloat_widen(a) + aster_bfloat_widen(b));
}
FN unsigned short aster_bfloat_mul(unsigned short a, unsigned short b) {
  return aster_bfloat_narrow(aster_bfloat_widen(a) * aster_bfloat_widen(b));
}
FN unsigned short aster_bfloat_muladd(unsigned short a, unsigned short b, unsigned short c) {
#if __CUDA_ARCH__ >= 800
  unsigned short y;
  asm("fma.rn.bf16 %0, %1, %2, %3;" : "=h"(y) : "h"(a), "h"(b), "h"(c));
  return y;
#else
  double exact = (double)aster_bfloat_widen(a) * (double)aster_bfloat_widen(b);
  return aster_bfloat_narrow(aster_odd(exact + (double)aster_bfloat_widen(c)));
#endif
}

//: aster_half needs aster_odd aster_half_codes; NAME = aster_half
//: aster_bfloat needs aster_bfloat_codes; NAME = aster_bfloat
//! A float of 16 bits: sums and products are rounded once, the rest is computed as float.
struct NAME {
  unsigned short code;
  NAME() = default;
  template <class T> __device__ __forceinline__ explicit NAME(T x) : code(NAME_narrow(aster_odd(x))) {}
  __device__ __forceinline__ operator float() const { return NAME_widen(code); }
  static __device__ __forceinline__ NAME of(unsigned short code) { NAME x; x.code = code; return x; }
};
FN NAME operator+(NAME a, NAME b) { return NAME::of(NAME_add(a.code, b.code)); }
FN NAME operator-(NAME a) { return NAME::of(a.code ^ 0x8000); }
FN NAME operator-(NAME a, NAME b) { return a + -b; }
FN NAME operator*(NAME a, NAME b) { return NAME::of(NAME_mul(a.code, b.code)); }
FN NAME operator/(NAME a, NAME b) { return (NAME)((float)a / (float)b); }
FN void operator+=(NAME &a, NAME b) { a = a + b; }
FN void operator*=(NAME &a, NAME b) { a = a * b; }

//: NAME_fma needs NAME; NAME = aster_half | aster_bfloat
FN NAME NAME_fma(NAME a, NAME b, NAME c) {
  return NAME::of(NAME_muladd(a.code, b.code, c.code));
}
