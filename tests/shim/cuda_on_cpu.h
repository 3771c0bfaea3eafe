// Runs CUDA C++ kernels on a CPU: the threads of a block are fibers that take turns at barriers.
//
// Included before a generated kernel by `tests/shim/on_cpu.py`, which says how one is called. Blocks
// run one after the other, but those of a cluster in turns: each has its own contents of shared
// memory, which lie at its addresses while it runs and aside while others do. Threads run in an order that differs from one barrier to the next, and
// shared memory holds NaN when a block begins, so that a barrier that is missing shows in results.
// Threads of a block that wait for different things are an error: `aster_error` says which.
#pragma once

#define ASTER_ON_CPU 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
// All of it stands in one section, which can be filled between blocks.
#define __shared__ static __attribute__((section("aster_shared_memory")))
#define __syncthreads() aster_cpu::wait(aster_cpu::BLOCK, __LINE__)
#define __syncwarp(...) aster_cpu::wait(aster_cpu::WARP, __LINE__)

#define memcpy __builtin_memcpy
#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
#define exp2f __builtin_exp2f
#define log2f __builtin_log2f
#define sinf __builtin_sinf
#define tanhf __builtin_tanhf
#define sqrtf __builtin_sqrtf
#define truncf __builtin_truncf
#define powf __builtin_powf
#define fmaf __builtin_fmaf
#define fmaxf __builtin_fmaxf
#define exp2 __builtin_exp2
#define log2 __builtin_log2
#define sin __builtin_sin
#define tanh __builtin_tanh
#define sqrt __builtin_sqrt
#define trunc __builtin_trunc
#define pow __builtin_pow
#define fma __builtin_fma

// Moves of neighbours, which begin at multiples of what they move.
namespace aster_cpu { static bool is_aligned(const void *p, int nbytes); }
#define ASTER_MOVED(name, nbytes, ...) \
  struct __attribute__((aligned(nbytes))) name { \
    unsigned int __VA_ARGS__; \
    name() = default; \
    name(const name &other) { *this = other; } \
    name &operator=(const name &other) { \
      if (aster_cpu::is_aligned(&other, nbytes) && aster_cpu::is_aligned(this, nbytes)) \
        __builtin_memcpy(this, &other, nbytes); \
      return *this; \
    } \
  };
ASTER_MOVED(uint2, 8, x, y)
ASTER_MOVED(uint4, 16, x, y, z, w)
struct aster_dim { unsigned int x, y, z; };
static aster_dim threadIdx, blockIdx, blockDim, gridDim;

static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }

namespace aster_cpu {

// LOOKING waits for a barrier in shared memory, at which it looks again in each round, CLUSTER for
// all threads of a cluster that have not ended.
enum state { READY, WARP, BLOCK, DONE, LOOKING, CLUSTER };
// A copy to shared memory that is under way, in the group that a thread was at when it began it.
struct copy {
  char *to;
  const char *from;
  int there, nbytes, group;
};
enum { MOST_COPIES = 1024 };

enum { MOST_THREADS = 1024, MOST_BLOCKS = 4, MOST_FIBERS = 2048, WARP_SIZE = 32,
       STACK_NBYTES = 64 << 10 };

struct fiber {
  void *stack;
  aster_dim index;
  state at;
  int line;
  // What it hands to the others of its warp, and to which of two places next.
  unsigned long long given[2];
  int turn;
  // Copies under way, the first and what comes after the last, and the group that is open.
  copy copies[MOST_COPIES];
  int oldest, newest, group;
};
// The threads of a block, and then those of the next one of its cluster.
static fiber fibers[MOST_FIBERS];
// The thread that runs, among those of all blocks; threads of a block; blocks of a cluster, and the
// one of which shared memory holds the contents.
static int current, count, blocks = 1, block;
static void *scheduler;
static unsigned int order = 1;
// What has happened at barriers in shared memory: while it grows, who looks at them has hope.
static unsigned long happened;
static char error[256];
static int failure;

// Saves what a function has to keep, and goes on on the other stack.
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
aster_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
enum { SAVED = 6 };
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
aster_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "fibers are written for x86-64 and aarch64"
#endif
extern "C" __attribute__((visibility("hidden"))) void aster_switch(void **save, void *go_on);

// The thread that runs waits; others run until what it waits for has come.
static __attribute__((noinline)) void wait(state what, int line) {
  fiber &me = fibers[current];
  me.at = what;
  me.line = line;
  asm volatile("" ::: "memory");
  aster_switch(&me.stack, scheduler);
  asm volatile("" ::: "memory");
}

typedef void (*body)(const void *kernel, void **args);
static body run_body;
static const void *run_kernel;
static void **run_args;

static void begin() {
  run_body(run_kernel, run_args);
  fibers[current].at = DONE;
  aster_switch(&fibers[current].stack, scheduler);
}

static void make(fiber &f, char *stack) {
  void **top = (void **)(stack + STACK_NBYTES - 64);
#if defined(__x86_64__)
  // As after a call: the place to return to lies 8 bytes before a multiple of 16.
  *--top = 0;
  *--top = (void *)begin;
  top -= SAVED;
  for (int i = 0; i < SAVED; i++) top[i] = 0;
#else
  top -= 20;
  for (int i = 0; i < 20; i++) top[i] = 0;
  top[11] = (void *)begin;
#endif
  f.stack = top;
  f.at = READY;
  f.turn = 0;
  f.oldest = f.newest = f.group = 0;
}

static unsigned int draw() { return order = order * 1664525u + 1013904223u; }

static void say(const char *what, int a, int b) {
  const char *names[] = {"is ready", "waits for its warp", "waits for its block", "has ended",
                         "waits for a barrier in shared memory", "waits for its cluster"};
  blockIdx.x += a / count - block;
  __builtin_snprintf(error, sizeof error,
    "%s: block (%u, %u, %u), thread %d %s at line %d, thread %d %s at line %d", what, blockIdx.x,
    blockIdx.y, blockIdx.z, a % count, names[fibers[a].at], fibers[a].line, b % count,
    names[fibers[b].at], fibers[b].line);
  blockIdx.x -= a / count - block;
}

// Runs what is ready of a warp; true where all of it has come to one place that only a warp waits
// for and may go on.
static bool run_warp(int first, int size) {
  unsigned int start = draw() >> 8, backwards = draw() >> 31;
  for (int i = 0; i < size; i++) {
    int k = first + (backwards ? size - 1 - (i + start) % size : (i + start) % size);
    if (fibers[k].at != READY) continue;
    current = k;
    threadIdx = fibers[k].index;
    asm volatile("" ::: "memory");
    aster_switch(&scheduler, fibers[k].stack);
    asm volatile("" ::: "memory");
  }
  for (int k = first; k < first + size; k++) {
    if (fibers[k].at != fibers[first].at || fibers[k].line != fibers[first].line) return false;
  }
  if (fibers[first].at != WARP) return false;
  for (int k = first; k < first + size; k++) fibers[k].at = READY;
  return true;
}

// Forgets barriers in shared memory and what is on its way (see `hopper_on_cpu.h`).
static void new_block();
// Whether something is on its way to or from shared memory at the end of a block, which is noted.
static int left_over();
// Threads have come to a barrier together (`stores_on_cpu.h`).
static void pass_barrier(int first, int last);

extern "C" char __start_aster_shared_memory[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_aster_shared_memory[] __attribute__((weak, visibility("hidden")));

extern "C" void *mmap(void *, unsigned long, int, int, int, long);
extern "C" int munmap(void *, unsigned long);

// What blocks that do not run have in shared memory.
static char *aside;
static unsigned long shared_nbytes() { return __stop_aster_shared_memory - __start_aster_shared_memory; }

// What lies at an address of shared memory for a block of the cluster.
static char *in_block(int b, const void *at) {
  return b == block ? (char *)at : aside + b * shared_nbytes() + ((char *)at - __start_aster_shared_memory);
}

// From here on this block of the cluster runs.
static void enter(int b) {
  if (b == block) return;
  memcpy(aside + block * shared_nbytes(), __start_aster_shared_memory, shared_nbytes());
  memcpy(__start_aster_shared_memory, aside + b * shared_nbytes(), shared_nbytes());
  blockIdx.x += b - block;
  block = b;
}

static bool has_ended(int b) {
  for (int k = b * count; k < (b + 1) * count; k++) {
    if (fibers[k].at != DONE) return false;
  }
  return true;
}

// What the threads of a block wait for, of those that have not ended where it is not for others of
// the block: DONE where all have. Sets `error` where they wait for different things.
static state meet(int b) {
  int first = b * count, waiting = -1;
  for (int k = first; k < first + count; k++) {
    if (fibers[k].at == LOOKING) return LOOKING;
    if (waiting < 0 && fibers[k].at == CLUSTER) waiting = k;
  }
  if (waiting < 0) waiting = first;
  for (int k = first; k < first + count; k++) {
    fiber &f = fibers[k], &other = fibers[waiting];
    if (f.at == DONE && other.at == CLUSTER) continue;
    if (f.at != other.at) return say("threads part", waiting, k), DONE;
    if (f.at != DONE && f.line != other.line) {
      return say("threads wait at different places", waiting, k), DONE;
    }
  }
  if (fibers[waiting].at == WARP) say("warps wait at different places", first, first + count - 1);
  return fibers[waiting].at;
}

static void go_on(state from, int first, int size) {
  for (int k = first; k < first + size; k++) {
    if (fibers[k].at == from) fibers[k].at = READY;
  }
}

// Runs a block as far as it comes without others of its cluster; what its threads wait for then.
static state run_block(int b) {
  enter(b);
  for (;;) {
    int warps = (count + WARP_SIZE - 1) / WARP_SIZE;
    unsigned int start = draw() >> 8, backwards = draw() >> 31;
    unsigned long before = happened;
    go_on(LOOKING, b * count, count);
    for (int i = 0; i < warps; i++) {
      int turn = (i + start) % warps, first = (backwards ? warps - 1 - turn : turn) * WARP_SIZE;
      int size = count - first < WARP_SIZE ? count - first : WARP_SIZE;
      while (run_warp(b * count + first, size)) {}
    }
    state at = error[0] ? DONE : meet(b);
    if (error[0] || (at != BLOCK && (at != LOOKING || happened == before))) return at;
    if (at == BLOCK) pass_barrier(b * count, (b + 1) * count);
    go_on(BLOCK, b * count, at == BLOCK ? count : 0);
  }
}

// 0 where all threads of the blocks of a cluster have come to their end.
static int run_blocks() {
  for (;;) {
    int met[CLUSTER + 1] = {}, first = 0;
    unsigned int turn = blocks > 1 ? draw() >> 8 : 0;
    unsigned long before = happened;
    for (int i = 0; i < blocks; i++) {
      met[run_block((i + turn) % blocks)]++;
      if (error[0]) return 1;
    }
    if (met[DONE] == blocks) return left_over();
    if (!met[LOOKING]) {
      while (fibers[first].at != CLUSTER) first++;
      for (int k = first; k < blocks * count; k++) {
        if (fibers[k].at == CLUSTER && fibers[k].line != fibers[first].line) {
          return say("threads wait at different places", first, k), 1;
        }
      }
      go_on(CLUSTER, 0, blocks * count);
    } else if (happened == before) {
      while (fibers[first].at != LOOKING) first++;
      int start = first / count * count;
      return say("nobody can go on", first, first > start ? start : start + count - 1), 1;
    }
  }
}

extern "C" void (*signal(int, void (*)(int)))(int);
extern "C" int sigaction(int, const void *, void *);
extern "C" int sigprocmask(int, const void *, void *);
enum { SEGMENT_FAULT = 11, SET_MASK = 2 };

// A thread that touches memory that is not there ends, and with it the launch.
static void say_fault(int) {
  if (!error[0]) {
    __builtin_snprintf(error, sizeof error, "block (%u, %u, %u), thread %d touches memory that is "
                       "not its own", blockIdx.x, blockIdx.y, blockIdx.z, current % count);
  }
  unsigned char none[256] = {};
  sigprocmask(SET_MASK, none, 0);
  fibers[current].at = DONE;
  aster_switch(&fibers[current].stack, scheduler);
}

static int launch(body run, const void *kernel, void **args, const unsigned *grid,
                  const unsigned *threads, int cluster) {
  error[0] = 0;
  failure = 0;
  unsigned long long many = (unsigned long long)threads[0] * threads[1] * threads[2];
  if (many > MOST_THREADS) {
    __builtin_snprintf(error, sizeof error, "a block of %u x %u x %u threads; %d are the most",
                       threads[0], threads[1], threads[2], (int)MOST_THREADS);
    return 1;
  }
  if (cluster > 1 && (grid[0] % cluster || many % WARP_SIZE || cluster > MOST_BLOCKS ||
                      many * cluster > MOST_FIBERS)) {
    __builtin_snprintf(error, sizeof error, "clusters of %d blocks of %d threads, of %u in a row",
                       cluster, (int)many, grid[0]);
    return 1;
  }
  run_body = run, run_kernel = kernel, run_args = args;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {threads[0], threads[1], threads[2]};
  count = (int)many, blocks = cluster;
  unsigned long nbytes = (unsigned long)count * blocks * STACK_NBYTES;
  // Private, from nowhere, readable and writable.
  char *stacks = (char *)mmap(0, nbytes, 3, 0x22, -1, 0);
  if (stacks == (char *)-1) {
    __builtin_snprintf(error, sizeof error, "no memory for %d stacks", count * blocks);
    return 1;
  }
  unsigned long away = blocks > 1 ? blocks * shared_nbytes() + 1 : 0;
  if (away) aside = (char *)mmap(0, away, 3, 0x22, -1, 0);
#if defined(ASTER_FLUSH) && defined(__x86_64__)
  // Subnormal numbers are 0, both as operands and as results.
  unsigned int before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040);
#endif
  int failed = 0;
  unsigned char handler[512];
  sigaction(SEGMENT_FAULT, 0, handler);
  signal(SEGMENT_FAULT, say_fault);
  for (unsigned z = 0; z < grid[2] && !failed; z++)
    for (unsigned y = 0; y < grid[1] && !failed; y++)
      for (unsigned x = 0; x < grid[0] && !failed; x += blocks) {
        blockIdx = {x, y, z}, block = 0;
        __builtin_memset(__start_aster_shared_memory, 0xff, shared_nbytes());
        if (away) __builtin_memset(aside, 0xff, away);
        new_block();
        for (int i = 0; i < count * blocks; i++) {
          int k = i % count, wide = threads[0], high = threads[1];
          fibers[i].index = {(unsigned)(k % wide), (unsigned)(k / wide % high), (unsigned)(k / wide / high)};
          make(fibers[i], stacks + (unsigned long)i * STACK_NBYTES);
        }
        failed = run_blocks() || failure;
      }
#if defined(ASTER_FLUSH) && defined(__x86_64__)
  __builtin_ia32_ldmxcsr(before);
#endif
  sigaction(SEGMENT_FAULT, handler, 0);
  munmap(stacks, nbytes);
  if (away) munmap(aside, away);
  return failed;
}

struct call {
  template <class... A, class... B> call(void (*kernel)(A...), B &&...args) { kernel(args...); }
};
template <class T> struct bare { typedef T type; };
template <class T> struct bare<T &> { typedef T type; };
template <class... A> static void call_with(const void *kernel, void **args) {
  int i = 0;
  call{(void (*)(A...))kernel, *(typename bare<A>::type *)args[i++]...};
}
template <class... A>
static int launch_kernel(void (*kernel)(A...), void **args, const unsigned *grid,
                         const unsigned *threads, int cluster) {
  return launch(call_with<A...>, (const void *)kernel, args, grid, threads, cluster);
}

static bool is_aligned(const void *p, int nbytes) {
  unsigned long long at = (unsigned long long)p;
  // The compiler believes of a pointer to a type that it is.
  asm volatile("" : "+r"(at));
  if (at % nbytes == 0) return true;
  if (!error[0]) {
    __builtin_snprintf(error, sizeof error, "thread %d moves %d bytes at %p, which is no multiple of "
                       "them", current, nbytes, p);
  }
  failure = 1;
  return false;
}
static bool is_shared(const void *p) {
  return (const char *)p >= __start_aster_shared_memory && (const char *)p < __stop_aster_shared_memory;
}

// The copy is made as late as it may be; until then there is nothing that anybody may read.
static void begin_copy(void *to, const void *from, bool there, int nbytes) {
  fiber &me = fibers[current];
  if ((unsigned long long)to % nbytes || (unsigned long long)from % nbytes) {
    __builtin_snprintf(error, sizeof error, "thread %d copies %d bytes from %p to %p, which is no "
                       "multiple of them", current, nbytes, from, to);
    failure = 1;
    return;
  }
  if (!is_shared(to)) {
    __builtin_snprintf(error, sizeof error, "thread %d copies to %p, which is no shared memory", current, to);
    failure = 1;
    return;
  }
  if (me.newest - me.oldest == MOST_COPIES) {
    __builtin_snprintf(error, sizeof error, "thread %d has %d copies under way", current,
                       (int)MOST_COPIES);
    failure = 1;
    return;
  }
  me.copies[me.newest++ % MOST_COPIES] = {(char *)to, (const char *)from, there, nbytes, me.group};
  __builtin_memset(to, 0xff, nbytes);
}
static void end_copies(int left) {
  fiber &me = fibers[current];
  for (; me.oldest < me.newest; me.oldest++) {
    copy &c = me.copies[me.oldest % MOST_COPIES];
    if (c.group >= me.group - left) break;
    if (c.there) memcpy(c.to, c.from, c.nbytes);
    else __builtin_memset(c.to, 0, c.nbytes);
  }
}

// Lane `lane` of this warp gives its value to who asks.
template <class T> static T ask_lane(unsigned int mask, T value, int lane, int line) {
  fiber &me = fibers[current];
  if (!(mask >> current % WARP_SIZE & 1)) {
    __builtin_snprintf(error, sizeof error, "thread %d exchanges and is not in the mask", current);
    failure = 1;
  }
  int turn = me.turn, mine = current;
  me.turn = !turn;
  me.given[turn] = 0;
  memcpy(&me.given[turn], &value, sizeof value);
  wait(WARP, line);
  int first = mine / WARP_SIZE * WARP_SIZE;
  T result = value;
  // What a lane has that is not there nobody knows.
  if (lane >= 0 && first + lane < count * blocks) memcpy(&result, &fibers[first + lane].given[turn], sizeof result);
  else if (lane >= 0) __builtin_memset(&result, 0xff, sizeof result);
  return result;
}

// Matrices of 8 rows of 16 bytes, of which eight threads each name one; `word` is what a thread has.
static void load_matrices(unsigned int *const *words, int count, const void *from, bool transposed) {
  int mine = current, lane = mine % WARP_SIZE, first = mine - lane;
  // Up to sm_75 also those have to name a place whose rows are not taken.
  if ((unsigned long long)from % 16 || !is_shared(from)) {
    __builtin_snprintf(error, sizeof error, "thread %d loads a row of a matrix at %p, which is no "
                       "multiple of 16 in shared memory", mine, from);
    failure = 1;
    return;
  }
  int turn = fibers[mine].turn;
  fibers[mine].turn = !turn;
  fibers[mine].given[turn] = (unsigned long long)from;
  wait(WARP, __LINE__);
  for (int i = 0; i < count; i++) {
    const char *rows[8];
    for (int row = 0; row < 8; row++) rows[row] = (const char *)fibers[first + 8 * i + row].given[turn];
    if (transposed) {
      for (int j = 0; j < 2; j++) memcpy((char *)words[i] + 2 * j, rows[lane % 4 * 2 + j] + lane / 4 * 2, 2);
    } else {
      memcpy(words[i], rows[lane / 4] + lane % 4 * 4, 4);
    }
  }
}

}  // namespace aster_cpu

#define ASTER_LDMATRIX(name, transposed) \
  static inline void name(unsigned int &a, const void *from) { \
    unsigned int *const words[] = {&a}; \
    aster_cpu::load_matrices(words, 1, from, transposed); \
  } \
  static inline void name(unsigned int &a, unsigned int &b, const void *from) { \
    unsigned int *const words[] = {&a, &b}; \
    aster_cpu::load_matrices(words, 2, from, transposed); \
  } \
  static inline void name(unsigned int &a, unsigned int &b, unsigned int &c, unsigned int &d, \
                          const void *from) { \
    unsigned int *const words[] = {&a, &b, &c, &d}; \
    aster_cpu::load_matrices(words, 4, from, transposed); \
  }
ASTER_LDMATRIX(aster_ldmatrix, false)
ASTER_LDMATRIX(aster_ldmatrix_trans, true)

#define ASTER_LANE (aster_cpu::current % aster_cpu::WARP_SIZE)
#define __shfl_xor_sync(mask, value, by) aster_cpu::ask_lane(mask, value, ASTER_LANE ^ (by), __LINE__)
#define __shfl_down_sync(mask, value, by) \
  aster_cpu::ask_lane(mask, value, ASTER_LANE + (by) < 32 ? ASTER_LANE + (by) : -1, __LINE__)
#define __shfl_sync(mask, value, lane) aster_cpu::ask_lane(mask, value, lane, __LINE__)

template <int N> static inline void aster_copy_piece(void *to, const void *from, bool there) {
  aster_cpu::begin_copy(to, from, there, N);
}
static inline void aster_commit() { aster_cpu::fibers[aster_cpu::current].group++; }
template <int LEFT> static inline void aster_wait() { aster_cpu::end_copies(LEFT); }

#ifdef ASTER_SHARED_NBYTES
// Shared memory that the launch asks for.
static __attribute__((section("aster_shared_memory"), aligned(1024))) unsigned char
    aster_shared[ASTER_SHARED_NBYTES];
#endif

#include "hopper_on_cpu.h"

static inline float aster_half_widen(unsigned short x) {
  int sign = (x & 0x8000) << 16, code = x & 0x7fff;
  if (code >= 0x7c00) return __int_as_float(sign | 0x7f800000 | (code & 0x3ff) << 13);
  float magnitude = __int_as_float(code << 13) * 5.192296858534828e33f;  // 2 ** 112
  return __int_as_float(__float_as_int(magnitude) | sign);
}
// Half of the bits of a half; and one of 3 bits of fraction, whose exponents are 8 less.
static inline float aster_fp8e5m2_widen(unsigned char x) {
  return aster_half_widen((unsigned short)(x << 8));
}
static inline float aster_fp8e4m3_widen(unsigned char x) {
  if ((x & 0x7f) == 0x7f) return NAN;
  return aster_half_widen((unsigned short)((x & 0x80) << 8 | (x & 0x7f) << 7)) * 256.0f;
}
static inline unsigned short aster_half_narrow(float x) {
  unsigned int code = (unsigned int)__float_as_int(x), a = code & 0x7fffffff, y;
  if (a > 0x7f800000) y = 0x7e00;
  else if (a >= 0x47800000) y = 0x7c00;
  else if (a < 0x38800000) y = (unsigned int)__float_as_int(__int_as_float((int)a) + 0.5f) - 0x3f000000;
  else y = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
  return (unsigned short)(y | (code >> 16 & 0x8000));
}
static inline unsigned short aster_half_add(unsigned short a, unsigned short b) {
  return aster_half_narrow(aster_half_widen(a) + aster_half_widen(b));
}
static inline unsigned short aster_half_mul(unsigned short a, unsigned short b) {
  return aster_half_narrow(aster_half_widen(a) * aster_half_widen(b));
}
// a * b + c of halves, exact but for a last bit that is 1 where something is left.
static inline unsigned short aster_half_muladd(unsigned short a, unsigned short b, unsigned short c) {
  double p = (double)aster_half_widen(a) * aster_half_widen(b), q = aster_half_widen(c), s = p + q;
  double back = s - p, left = (p - (s - back)) + (q - back);
  long long code = __double_as_longlong(s);
  if (left != 0 && left == left && !(code & 1)) code += (left > 0) == (s > 0) ? 1 : -1;
  s = __longlong_as_double(code);
  float near = (float)s;
  double far = near;
  int odd = __float_as_int(near) - ((far < 0 ? -far : far) > (s < 0 ? -s : s));
  return aster_half_narrow(__int_as_float(odd | (far != s)));
}

extern "C" __attribute__((visibility("default"))) const char *aster_error() {
  return aster_cpu::error;
}
template <class... A> constexpr int aster_count(void (*)(A...)) { return sizeof...(A); }
// Bytes of each parameter.
template <class... A> struct aster_sizes_of { static constexpr int at[sizeof...(A)] = {(int)sizeof(A)...}; };
template <class... A> constexpr const int *aster_sizes(void (*)(A...)) { return aster_sizes_of<A...>::at; }
#define ASTER_ENTRY(name, cluster) \
  extern "C" __attribute__((visibility("default"))) const int name##_cluster = cluster; \
  extern "C" __attribute__((visibility("default"))) const int *const name##_sizes = aster_sizes(name); \
  extern "C" __attribute__((visibility("default"))) const int name##_params = aster_count(name); \
  extern "C" __attribute__((visibility("default"))) int name##_on_cpu( \
      void **args, const unsigned *grid, const unsigned *block, unsigned shared) { \
    return aster_cpu::launch_kernel(name, args, grid, block, cluster); \
  }
