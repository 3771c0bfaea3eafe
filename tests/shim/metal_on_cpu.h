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

template <class U, class T> static inline U as_type(T x) {
  static_assert(sizeof(U) == sizeof(T), "as_type: sizes differ");
  U y;
  memcpy(&y, &x, sizeof y);
  return y;
}
#define threadgroup_barrier(flags) __syncthreads()
#define simdgroup_barrier(flags) __syncwarp()
#define simd_shuffle_xor(value, by) __shfl_xor_sync(~0u, value, by)

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
    return aster_cpu::launch_kernel(name, all, grid, block); \
  }
