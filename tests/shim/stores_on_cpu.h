// Boxes that are stored, matrices that are stored, and what orders them, on a CPU. Part of
// `hopper_on_cpu.h`.
//
// A box is read from shared memory when its thread waits for that, and written when its block has
// ended. All who were at the last barrier before it have to have a fence before that and behind the
// one before, and what it copies must stay as it is until it is read.
#pragma once

namespace aster_cpu {

enum { MOST_STORED = 1024 };

struct stored { const form *to; const char *from; int place[5], owner, nbytes; unsigned long long digest; char *read; };
static stored all_stored[MOST_STORED];
static int stored_count;
// Whether a thread had a fence before the last barrier, and whether it has one since.
static bool was_fenced[MOST_FIBERS], is_fenced[MOST_FIBERS];
// Barriers of some threads of each block: how many have come, how often it was complete, and of how
// many it is.
static int some_count[MOST_BLOCKS], some_turn[MOST_BLOCKS], some_size[MOST_BLOCKS];

extern "C" void *malloc(unsigned long);
extern "C" void free(void *);

static unsigned long long sum_of(const char *at, int nbytes) {
  unsigned long long sum = 0;
  for (int i = 0; i < nbytes; i++) sum = (sum ^ (unsigned char)at[i]) * 0x9e3779b97f4a7c15ull;
  return sum;
}

static void new_stores() {
  for (int i = 0; i < stored_count; i++) free(all_stored[i].read);
  stored_count = 0;
  for (int b = 0; b < MOST_BLOCKS; b++) some_count[b] = some_turn[b] = 0;
  for (int k = 0; k < MOST_FIBERS; k++) was_fenced[k] = is_fenced[k] = false;
}

static void pass_barrier(int first, int last) {
  for (int k = first; k < last; k++) was_fenced[k] = is_fenced[k], is_fenced[k] = false;
}

static void store_box(const void *tensor, const void *from, int rank, const int *place) {
  const form *f = (const form *)tensor;
  int nbytes = f->itemsize;
  for (int i = 0; i < f->rank; i++) nbytes *= f->box[i];
  if (f->rank != rank) return wrong("a box of another number of dimensions than its tensor");
  if ((unsigned long long)from % (f->swizzle ? 1024 : 128)) return wrong("a box begins between its rows");
  if (stored_count == MOST_STORED) return wrong("more boxes on their way than the stand-in has room for");
  int own = some_turn[block] ? some_size[block] : count;
  for (int k = block * count; k < block * count + own; k++) {
    if (!was_fenced[k]) return wrong("a box is stored of what a thread has written without a fence");
  }
  stored &s = all_stored[stored_count++];
  s = {f, (const char *)from, {}, current, nbytes, sum_of((const char *)from, nbytes), 0};
  for (int i = 0; i < rank; i++) s.place[i] = place[i];
}

// All boxes that this thread has begun to store are read.
static void read_boxes() {
  for (int i = 0; i < stored_count; i++) {
    stored &s = all_stored[i];
    if (s.read || s.owner != current) continue;
    if (sum_of(s.from, s.nbytes) != s.digest) wrong("shared memory of a box that changed before it was read");
    s.read = (char *)malloc(s.nbytes);
    memcpy(s.read, s.from, s.nbytes);
  }
}

// Writes a box; what lies outside of the tensor is left out.
static void write_box(const stored &s) {
  const form &f = *s.to;
  int at[5] = {};
  for (long moved = 0;; moved += f.itemsize) {
    long long to = 0;
    bool is_inside = true;
    for (int i = 0; i < f.rank; i++) {
      long long x = (long long)s.place[i] + at[i];
      is_inside = is_inside && x >= 0 && x < f.sizes[i];
      to += x * f.strides[i];
    }
    // Boxes begin where the order of pieces does.
    long long from = f.swizzle ? moved ^ (moved >> 7 & 7) << 4 : moved;
    if (is_inside) memcpy((char *)f.address + to, s.read + from, f.itemsize);
    int i = 0;
    while (i < f.rank && ++at[i] == f.box[i]) at[i++] = 0;
    if (i == f.rank) break;
  }
}

// All boxes are written, the last one first.
static void end_stores() {
  for (int i = stored_count - 1; i >= 0; i--) {
    if (all_stored[i].read) write_box(all_stored[i]);
    else wrong("a box is stored that nobody waits for before its block ends");
  }
}

// The first n threads of a block have come here before any goes on.
static __attribute__((noinline)) void sync_some(int n, int line) {
  int b = block, turn = some_turn[b];
  if (current % count >= n) return wrong("a thread at a barrier of others");
  happened++;
  some_size[b] = n;
  if (++some_count[b] == n) {
    pass_barrier(b * count, b * count + n);
    some_count[b] = 0;
    some_turn[b]++;
  }
  while (some_turn[b] == turn && !error[0]) wait(LOOKING, line);
}

// Words of matrices go to the rows that eight threads each name.
static void store_matrices(const unsigned int *words, int n, void *to, bool transposed) {
  int mine = current, lane = mine % WARP_SIZE, first = mine - lane;
  if ((unsigned long long)to % 16 && lane < 8 * n) return wrong("a row of a matrix at no multiple of 16");
  int turn = fibers[mine].turn;
  fibers[mine].turn = !turn;
  fibers[mine].given[turn] = (unsigned long long)to;
  wait(WARP, __LINE__);
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < 2; j++) {
      int row = transposed ? lane % 4 * 2 + j : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + j;
      char *at = (char *)fibers[first + 8 * i + row].given[turn] + column * 2;
      memcpy(at, (const char *)&words[i] + 2 * j, 2);
    }
  }
}

}  // namespace aster_cpu

template <class... X>
static __attribute__((noinline)) void aster_store_box(const void *to, const void *from, X... x) {
  int place[] = {x...};
  asm volatile("" ::: "memory");
  aster_cpu::store_box(to, from, sizeof...(X), place);
}
static inline void aster_fence() { aster_cpu::is_fenced[aster_cpu::current] = true; }
static inline void aster_drain() {
  asm volatile("" ::: "memory");
  aster_cpu::read_boxes();
}
template <int N> static inline void aster_sync() { aster_cpu::sync_some(N, __LINE__); }

#define ASTER_STMATRIX(name, transposed) \
  template <class... W> static inline void name(void *to, W... w) { \
    unsigned int words[] = {w...}; \
    aster_cpu::store_matrices(words, sizeof...(W), to, transposed); \
  }
ASTER_STMATRIX(aster_stmatrix, false)
ASTER_STMATRIX(aster_stmatrix_trans, true)
