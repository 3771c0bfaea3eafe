// Runs Metal's language on a CPU, on the fibers of `cuda_on_cpu.h`: what Apple calls things by.
//
// Checks syntax and types as C++ sees them; address spaces are words without a meaning here.
#pragma once

#define kernel __global__
#define device
#define constant const
#define thread
#define threadgroup
#define threadgroup_memory __shared__
#define max_total_threads_per_threadgroup(n) maybe_unused
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef aster_half half;
typedef aster_bfloat bfloat;
typedef aster_dim uint3;

// Vectors whose elements lie as those of an array, and begin wherever one of them may.
template <class T, int N> struct aster_packed {
  T at[N];
  T &operator[](int i) { return at[i]; }
};
#define ASTER_PACKED(T, name) \
  typedef aster_packed<T, 2> packed_##name##2; \
  typedef aster_packed<T, 4> packed_##name##4;
ASTER_PACKED(float, float) ASTER_PACKED(half, half) ASTER_PACKED(bfloat, bfloat)
ASTER_PACKED(int, int) ASTER_PACKED(unsigned int, uint)

template <class U, class T> static inline U as_type(T x) {
  static_assert(sizeof(U) == sizeof(T), "as_type: sizes differ");
  U y;
  memcpy(&y, &x, sizeof y);
  return y;
}
#define threadgroup_barrier(flags) __syncthreads()
#define simdgroup_barrier(flags) __syncwarp()
#define simd_shuffle_xor(value, by) __shfl_xor_sync(~0u, value, by)

// A matrix of a simdgroup: each thread has two elements of a row. Which ones Apple does not say; what
// programs that ship with its own frameworks rely on is written here in words of its own.
static inline void aster_simdgroup_place(int lane, int *row, int *column) {
  int quad = lane / 4;
  *row = quad / 4 * 4 + lane / 2 % 4;
  *column = quad / 2 % 2 * 4 + lane % 2 * 2;
}
template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "simdgroup_matrix: only 8 x 8");
  struct pair {
    T at[2];
    T &operator[](int i) { return at[i]; }
  } own;
  pair &thread_elements() { return own; }
};
template <class D, class A, class B, class S>
static inline void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> &a, simdgroup_matrix<B, 8, 8> &b,
    simdgroup_matrix<S, 8, 8> &c) {
  static float left[2][8][8], right[2][8][8];
  aster_cpu::fiber &me = aster_cpu::fibers[aster_cpu::current];
  int turn = me.turn, row, column;
  me.turn = !turn;
  aster_simdgroup_place(ASTER_LANE, &row, &column);
  for (int i = 0; i < 2; i++) left[turn][row][column + i] = (float)a.own.at[i];
  for (int i = 0; i < 2; i++) right[turn][row][column + i] = (float)b.own.at[i];
  __syncwarp();
  for (int i = 0; i < 2; i++) {
    double sum = (double)(float)c.own.at[i];
    for (int k = 0; k < 8; k++) sum += (double)left[turn][row][k] * right[turn][k][column + i];
    d.own.at[i] = (D)(float)sum;
  }
}

// Overloads of float, which the macros of CUDA's names are not.
#undef exp2
#undef log2
#undef sin
#undef tanh
#undef sqrt
#undef trunc
#undef pow
#undef fma
namespace metal {
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
static inline float trunc(float x) { return __builtin_truncf(x); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
namespace precise {
static inline float exp2(float x) { return __builtin_exp2f(x); }
static inline float log2(float x) { return __builtin_log2f(x); }
static inline float sin(float x) { return __builtin_sinf(x); }
static inline float tanh(float x) { return __builtin_tanhf(x); }
static inline float sqrt(float x) { return __builtin_sqrtf(x); }
static inline float pow(float x, float y) { return __builtin_powf(x, y); }
}  // namespace precise
}  // namespace metal

// For who calls a kernel with places of memory alone: how many it takes, and a bit for each that is a
// pointer to its elements; the others are variables that lie there.
template <class T> struct aster_is_pointer { enum { value = 0 }; };
template <class T> struct aster_is_pointer<T *> { enum { value = 1 }; };
template <class... A> constexpr unsigned long aster_pointers(void (*)(A...)) {
  unsigned long mask = 0, bit = 1;
  ((mask |= aster_is_pointer<A>::value * bit, bit <<= 1), ...);
  return mask;
}

// Behind the buffers and variables a kernel is told which threadgroup and thread it is.
#define ASTER_METAL_ENTRY(name) \
  extern "C" __attribute__((visibility("default"))) const int name##_params = \
      aster_count(name) - 2; \
  extern "C" __attribute__((visibility("default"))) const unsigned long name##_pointers = \
      aster_pointers(name); \
  extern "C" __attribute__((visibility("default"))) int name##_on_cpu( \
      void **args, const unsigned *grid, const unsigned *block, unsigned count) { \
    void *all[64]; \
    for (unsigned i = 0; i < count; i++) all[i] = args[i]; \
    all[count] = &blockIdx, all[count + 1] = &threadIdx; \
    return aster_cpu::launch_kernel(name, all, grid, block, 1); \
  }
