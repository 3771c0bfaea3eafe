// What Hopper adds, on a CPU: barriers in shared memory, boxes of tensors, products of warp groups.
//
// Each happens at the time at which a kernel that relies on another one shows it. A box fills its
// place with NaN when it is asked for and arrives when somebody looks at its barrier. Accumulators
// of a product hold NaN until it is waited for, and its operands must not change until then. What
// blocks of a cluster do to one another must come between the beginning and the end of both. Part of
// `cuda_on_cpu.h`.
#pragma once

namespace aster_cpu {

// The form of a tensor, as `cuTensorMapEncodeTiled` of the tests' driver and `on_cpu.py` write it.
struct form {
  unsigned long long address;
  int rank, itemsize;
  long long sizes[5], strides[5];  // of elements, in bytes
  int box[5], swizzle;             // of elements; whether pieces of rows of 128 bytes change places
};

enum { MOST_BARRIERS = 64, MOST_BOXES = 256, MOST_SUMS = 256, MOST_SETS = 8, MOST_PENDING = 64 };

struct barrier { void *at; int count, pending, phase; long nbytes; };
// Of each block of a cluster.
static barrier barriers[MOST_BLOCKS][MOST_BARRIERS];
static int barrier_count[MOST_BLOCKS];

struct box { const form *from; char *to; barrier *at; int place[5], line; };
static box boxes[MOST_BOXES];
static int box_count;

// Sums of products of a thread that nobody has waited for, by their first accumulator.
struct sums { float *places[MOST_SUMS], values[MOST_SUMS]; int count, group; };
struct operand { const void *at[2]; int nbytes[2]; unsigned long long digest; int group; };
struct products {
  sums sets[MOST_SETS];
  int set_count, group, is_begun;
  operand read[MOST_PENDING];
  int read_count;
};
static products of_thread[MOST_FIBERS];

// Registers of each thread of a group, how many threads of it have changed them, and how often.
enum { GROUP_SIZE = 128, REGISTERS = 65536, GROUPS = MOST_THREADS / GROUP_SIZE };
static int registers_of[MOST_BLOCKS][GROUPS], changed[MOST_BLOCKS][GROUPS];

// Boxes that are stored (`stores_on_cpu.h`).
static void new_stores();
static void end_stores();

static void new_block() {
  new_stores();
  for (int b = 0; b < blocks; b++) {
    for (int i = 0; i < GROUPS; i++) {
      registers_of[b][i] = REGISTERS / count / 8 * 8;
      changed[b][i] = 0;
    }
    barrier_count[b] = 0;
  }
  box_count = 0;
  for (int k = 0; k < count * blocks; k++) {
    of_thread[k].set_count = of_thread[k].group = of_thread[k].is_begun = of_thread[k].read_count = 0;
  }
}

static void wrong(const char *what) {
  if (!error[0]) {
    __builtin_snprintf(error, sizeof error, "%s: block (%u, %u, %u), thread %d", what, blockIdx.x,
                       blockIdx.y, blockIdx.z, current % count);
  }
}

// All threads of a group run it; together they have no more than there are.
static void have_registers(int n, bool fewer) {
  int group = current % count / GROUP_SIZE, sum = 0, groups = count / GROUP_SIZE;
  int *has = registers_of[block], *changes = changed[block];
  bool is_first = changes[group]++ % GROUP_SIZE == 0;
  if (is_first && (fewer ? n > has[group] : n < has[group])) {
    wrong("registers that change the other way");
  }
  if (n % 8 || n < 24 || n > 256) wrong("no number of registers");
  has[group] = n;
  if (fewer) return;
  // What others have not given back yet is waited for: in the end there have to be so many.
  for (int i = 0; i < groups; i++) sum += (changes[i] ? has[i] : 24) * GROUP_SIZE;
  if (sum > REGISTERS) wrong("more registers than there are");
}

static int left_over() {
  for (int i = 0; i < count / GROUP_SIZE * blocks; i++) {
    if (changed[i % blocks][i / blocks] % GROUP_SIZE) wrong("a group of which only some change their registers");
  }
  if (box_count) wrong("a box that nobody waits for");
  for (int k = 0; k < count * blocks; k++) {
    current = k;
    if (of_thread[k].set_count) wrong("a product that nobody waits for");
  }
  current = 0;
  end_stores();
  return error[0] != 0;
}

static barrier *barrier_at(void *at, int b) {
  for (int i = 0; i < barrier_count[b]; i++) {
    if (barriers[b][i].at == at) return &barriers[b][i];
  }
  wrong("a barrier that was not made");
  static barrier none;
  return &none;
}

static void look(barrier *b) {
  if (b->pending == 0 && b->nbytes == 0) {
    b->phase ^= 1;
    b->pending = b->count;
    happened++;
  }
}

static char *placed(char *at, int swizzle) {
  unsigned long long x = (unsigned long long)at;
  return swizzle ? (char *)(x ^ (x >> 7 & 7) << 4) : at;
}

// Copies a box; what lies outside of the tensor is 0.
static void deliver(const box &b) {
  const form &f = *b.from;
  int at[5] = {};
  long moved = 0;
  for (char *to = b.to;; to += f.itemsize, moved += f.itemsize) {
    long long from = 0;
    bool is_inside = true;
    for (int i = 0; i < f.rank; i++) {
      long long x = (long long)b.place[i] + at[i];
      is_inside = is_inside && x >= 0 && x < f.sizes[i];
      from += x * f.strides[i];
    }
    if (is_inside) memcpy(placed(to, f.swizzle), (const char *)f.address + from, f.itemsize);
    else __builtin_memset(placed(to, f.swizzle), 0, f.itemsize);
    int i = 0;
    while (i < f.rank && ++at[i] == f.box[i]) at[i++] = 0;
    if (i == f.rank) break;
  }
  b.at->nbytes -= moved + f.itemsize;
  happened++;
}

// To all blocks that are bits of `targets`.
static void copy_box(void *to, const void *tensor, void *at, int rank, const int *place, int targets) {
  const form *f = (const form *)tensor;
  long nbytes = f->itemsize;
  for (int i = 0; i < f->rank; i++) nbytes *= f->box[i];
  if (f->rank != rank) return wrong("a box of another number of dimensions than its tensor");
  if ((unsigned long long)to % (f->swizzle ? 1024 : 128)) return wrong("a box begins between its rows");
  if (!targets || targets >> blocks) return wrong("a box for a block that is not of the cluster");
  for (int other = 0; other < blocks; other++) {
    if (!(targets >> other & 1)) continue;
    if (has_ended(other)) return wrong("a box for a block that has ended");
    if (box_count == MOST_BOXES) return wrong("more boxes on their way than the stand-in has room for");
    box &b = boxes[box_count++];
    b = {f, (char *)to, barrier_at(at, other), {}, 0};
    for (int i = 0; i < rank; i++) b.place[i] = place[i];
    __builtin_memset(in_block(other, to), 0xff, nbytes);
  }
  happened++;
}

static __attribute__((noinline)) void wait_barrier(void *at, int parity, int line) {
  for (;;) {
    barrier *b = barrier_at(at, block);
    if (error[0] || b->phase != parity) return;
    // What is on its way arrives once all of it is known.
    if (b->pending == 0) {
      int kept = 0;
      for (int i = 0; i < box_count; i++) {
        if (boxes[i].at == b) deliver(boxes[i]);
        else boxes[kept++] = boxes[i];
      }
      box_count = kept;
      if (b->nbytes < 0) return wrong("more bytes than a barrier waits for");
      look(b);
      if (b->phase != parity) return;
    }
    wait(LOOKING, line);
  }
}

// A sum of all bytes that says whether one of them has changed.
static unsigned long long digest(const operand &o) {
  unsigned long long sum = 0;
  for (int side = 0; side < 2; side++) {
    const unsigned long long *words = (const unsigned long long *)o.at[side];
    for (int i = 0; i < o.nbytes[side] / 8; i++) sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15ull;
  }
  return sum;
}

// An element of an operand: `along` the axis whose steps are neighbours, and `across` it.
struct descriptor {
  char *start;
  int leading, stride;
  descriptor(unsigned long long code, char *base)
      : start(base + ((code & 0x3fff) << 4)), leading((code >> 16 & 0x3fff) << 4),
        stride((code >> 32 & 0x3fff) << 4) {
    if (code >> 62 != 1) wrong("a descriptor of another order than the one of 128 bytes");
  }
  const char *at(int along, int across, int itemsize) const {
    int bytes = along * itemsize;
    return placed(start + bytes / 128 * leading + bytes % 128 + across / 8 * stride + across % 8 * 128, 1);
  }
  // The rows that an operand has parts of.
  const void *rows() const { return (const void *)((unsigned long long)start & ~127ull); }
  int extent(int along, int across, int itemsize) const {
    return (along * itemsize - 1) / 128 * leading + (across / 8 - 1) * stride + 1024;
  }
};

// Descriptors hold 18 bits of an address: those of the block's shared memory, from here on.
static char *shared_base();

// A number as float32: TF32 (10 bits of fraction), float16, bfloat16, fp8e4m3, fp8e5m2.
static float widened(const char *p, int kind) {
  unsigned int x = 0;
  if (kind == 0) {
    memcpy(&x, p, 4);
    return __int_as_float((int)(x & ~0x1fffu));
  }
  if (kind == 3) {
    x = (unsigned char)*p;
    int e = x >> 3 & 15, f = x & 7;
    float y = e ? (8 + f) * __builtin_ldexpf(1, e - 10) : f * __builtin_ldexpf(1, -9);
    return (x & 127) == 127 ? NAN : x & 128 ? -y : y;
  }
  if (kind == 4) x = (unsigned int)(unsigned char)*p << 8;
  else memcpy(&x, p, 2);
  if (kind == 2) return __int_as_float((int)(x << 16));
  int e = x >> 10 & 31, f = x & 1023;
  float y = e == 31 ? (f ? NAN : INFINITY)
      : e ? (1024 + f) * __builtin_ldexpf(1, e - 25) : f * __builtin_ldexpf(1, -24);
  return x & 0x8000 ? -y : y;
}

// The sums of a thread's accumulators while products of them are under way, or 0 and an error.
static sums *sums_of(float **c, int count) {
  products &mine = of_thread[current];
  sums *set = 0;
  for (int i = 0; i < mine.set_count; i++) {
    if (mine.sets[i].places[0] == c[0]) set = &mine.sets[i];
  }
  if (!set) {
    if (!mine.is_begun) return wrong("a product without wgmma.fence before it"), set;
    if (mine.set_count == MOST_SETS) return wrong("more products on their way than there is room for"), set;
    set = &mine.sets[mine.set_count++];
    set->count = count;
    for (int i = 0; i < count; i++) {
      set->places[i] = c[i];
      set->values[i] = *c[i];
      *c[i] = NAN;
    }
  }
  set->group = mine.group;
  if (mine.read_count == MOST_PENDING) wrong("more products on their way than there is room for");
  return error[0] ? 0 : set;
}

// Adds a product to a thread's accumulators: A of 64 rows, of which `left` gives elements, and B of
// n columns, k places. What is read is as it is now when the product is done.
template <class Left>
static void add_product(sums *set, operand o, int n, int k, int kind, int itemsize, int b_turned,
                        const descriptor &b, Left left) {
  products &mine = of_thread[current];
  int t = current % 128;
  // One thread looks after what all of them read.
  if (t == 0) {
    o.group = mine.group;
    o.digest = digest(o);
    mine.read[mine.read_count++] = o;
  }
  int first = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  for (int i = 0; i < set->count; i++) {
    int row = first + (i >> 1 & 1) * 8, col = column + (i & 1) + (i >> 2) * 8;
    double sum = set->values[i];
    for (int j = 0; j < k; j++) {
      float y = widened(b_turned ? b.at(col, j, itemsize) : b.at(j, col, itemsize), kind);
      sum += (double)left(row, j) * y;
    }
    set->values[i] = (float)sum;
  }
}

static void multiply(float **c, int n, int k, int kind, int itemsize, int a_turned, int b_turned,
                     unsigned long long a_code, unsigned long long b_code) {
  sums *set = sums_of(c, n / 2);
  if (!set) return;
  descriptor a(a_code, shared_base()), b(b_code, shared_base());
  operand o = {{a.rows(), b.rows()},
               {a_turned ? a.extent(64, k, itemsize) : a.extent(k, 64, itemsize),
                b_turned ? b.extent(n, k, itemsize) : b.extent(k, n, itemsize)}, 0, 0};
  add_product(set, o, n, k, kind, itemsize, b_turned, b, [&](int row, int j) {
    return widened(a_turned ? a.at(row, j, itemsize) : a.at(j, row, itemsize), kind);
  });
}

// The same of rows of A that threads have.
template <int K>
static void multiply_own(float **c, int n, int k, int kind, int itemsize, int b_turned,
                         const float (*a)[K], unsigned long long b_code) {
  sums *set = sums_of(c, n / 2);
  if (!set) return;
  descriptor b(b_code, shared_base());
  operand o = {{b.rows(), b.rows()},
               {0, b_turned ? b.extent(n, k, itemsize) : b.extent(k, n, itemsize)}, 0, 0};
  add_product(set, o, n, k, kind, itemsize, b_turned, b, [&](int row, int j) { return a[row][j]; });
}

static void wait_products(int left) {
  products &mine = of_thread[current];
  int kept = 0, done = mine.group - left;
  for (int i = 0; i < mine.read_count; i++) {
    operand &o = mine.read[i];
    if (o.group < done && digest(o) != o.digest) wrong("operands of a product that changed before it was done");
    if (o.group >= done) mine.read[kept++] = o;
  }
  mine.read_count = kept, kept = 0;
  for (int i = 0; i < mine.set_count; i++) {
    sums &s = mine.sets[i];
    if (s.group < done) {
      for (int j = 0; j < s.count; j++) *s.places[j] = s.values[j];
    } else if (kept != i) {
      mine.sets[kept++] = s;
    } else {
      kept++;
    }
  }
  mine.set_count = kept;
  mine.is_begun = 0;
}

}  // namespace aster_cpu

#include "stores_on_cpu.h"

static inline char *aster_cpu::shared_base() {
  return (char *)((unsigned long long)__start_aster_shared_memory & ~1023ull);
}
static inline unsigned int aster_shared_address(const void *p) {
  return (unsigned int)((const char *)p - aster_cpu::shared_base());
}
static inline void aster_barrier_init(unsigned long long *b, int count) {
  int &made = aster_cpu::barrier_count[aster_cpu::block];
  if (made == aster_cpu::MOST_BARRIERS) return aster_cpu::wrong("too many barriers");
  aster_cpu::barriers[aster_cpu::block][made++] = {b, count, count, 0, 0};
}
static inline void aster_barriers_made() {}
static inline void aster_barrier_expect(unsigned long long *at, int nbytes) {
  aster_cpu::barrier *b = aster_cpu::barrier_at(at, aster_cpu::block);
  b->nbytes += nbytes;
  b->pending--;
  aster_cpu::happened++;
}
static inline void aster_cluster_arrive(unsigned long long *at, int block) {
  if (block < 0 || block >= aster_cpu::blocks) return aster_cpu::wrong("a block that is not of the cluster");
  if (aster_cpu::has_ended(block)) return aster_cpu::wrong("a barrier of a block that has ended");
  aster_cpu::barrier *b = aster_cpu::barrier_at(at, block);
  if (b->pending <= 0) aster_cpu::wrong("more have come to a barrier than it waits for");
  b->pending--;
  aster_cpu::happened++;
  if (!b->nbytes) aster_cpu::look(b);
}
static inline void aster_barrier_arrive(unsigned long long *at) {
  aster_cluster_arrive(at, aster_cpu::block);
}
#define aster_cluster_meets() aster_cpu::wait(aster_cpu::CLUSTER, __LINE__)
#define aster_barrier_wait(at, parity) aster_cpu::wait_barrier(at, parity, __LINE__)
template <class... X>
static void aster_copy_box(void *to, const void *from, unsigned long long *barrier, X... x) {
  int place[] = {x...};
  aster_cpu::copy_box(to, from, barrier, sizeof...(X), place, 1 << aster_cpu::block);
}
template <int BLOCKS, class... X>
static void aster_share_box(void *to, const void *from, unsigned long long *barrier, X... x) {
  int place[] = {x...};
  aster_cpu::copy_box(to, from, barrier, sizeof...(X), place, BLOCKS);
}
static inline unsigned long long aster_descriptor(const void *p, int leading, int stride) {
  return (unsigned long long)((aster_shared_address(p) & 0x3ffff) >> 4)
      | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}
template <int N> static void aster_fewer_registers() { aster_cpu::have_registers(N, true); }
template <int N> static void aster_more_registers() { aster_cpu::have_registers(N, false); }
static inline void aster_wgmma_begin() { aster_cpu::of_thread[aster_cpu::current].is_begun = 1; }
static inline void aster_wgmma_commit() { aster_cpu::of_thread[aster_cpu::current].group++; }
template <int LEFT> static void aster_wgmma_wait() {
  asm volatile("" ::: "memory");
  aster_cpu::wait_products(LEFT);
  asm volatile("" ::: "memory");
}
