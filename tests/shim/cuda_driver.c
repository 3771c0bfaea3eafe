/* A driver library for NVIDIA devices that are not there: what the runtime calls, on the CPU.

   Its device memory is memory of the host. Streams do nothing until somebody waits, and only as far
   as he waits for, so that what relies on an order that the real driver does not promise fails here.
   A module is a shared library in which `NAME_on_cpu` runs the whole grid of a kernel, `NAME_params`
   is the number of its parameters and `NAME_sizes` are their bytes.
   Faults are injected by the functions `stub_...`; those of the driver's own names are as in its
   reference. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
       NOT_READY = 600, OUT_OF_RESOURCES = 701, LAUNCH_FAILED = 719,
       INVALID_CLUSTER_SIZE = 912 };
enum { DEVICES = 2, PARAMS = 128, PARAM_BYTES = 4096 };

typedef struct Site Site;
struct Site { const char *name; long calls; int known; Site *next; };
typedef struct { char name[64]; int code, after; } Fault;
typedef struct Stream Stream;
typedef struct Event { Stream *stream; long mark; double time; int done, device, untimed; } Event;
typedef struct { int (*run)(void **, const unsigned *, const unsigned *, unsigned); int params;
                 const int *sizes; int dynamic, device, cluster; } Function;
typedef struct { Function *f; unsigned grid[3], block[3], shared; int enabled;
                 unsigned char values[PARAM_BYTES]; } Launch;
typedef struct Op { int kind; void *to; const void *from; size_t n; Event *event; Launch *launches;
                    int count; long mark; struct Op *next; } Op;
enum { COPY, FILL, RECORD, WAIT, RUN };
struct Stream { Op *first, *last; long issued, done; int device; Stream *next; };
typedef struct Block { void *at; size_t n; int kind, device; struct Block *next; } Block;
typedef struct { void *library; Function *functions[64]; int count; } Module;
typedef struct { Launch *nodes; int count; } Nodes;
typedef struct { int device; } Context;

static Site *sites;
static Stream *streams;
static Block *blocks;
static Context contexts[DEVICES] = {{0}, {1}};
static __thread Context *current;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static size_t memory_limit = (size_t)1 << 30, memory_used[DEVICES];
static int version = 13000, device_count = DEVICES, lost, lose_next, started, max_threads = 1024;
static int major = 9, peers = 1, fixed_shared, local_nbytes;
static pid_t process; /* that has called cuInit: a child of it may ask for nothing */
enum { MOST_SHARED = 227 << 10 };
static long live[8];
enum { MEMORY, PINNED, STREAMS, EVENTS, MODULES, GRAPHS, EXECS };

static Fault faults[8];

static int enter(Site *s) {
  if (!s->known) { s->known = 1; s->next = sites; sites = s; }
  s->calls++;
  if (lost) return lost;
  if ((!started && strcmp(s->name, "cuInit")) || (process && process != getpid())) return NOT_INITIALIZED;
  for (Fault *f = faults; f < faults + 8; f++)
    if (f->after > 0 && !strcmp(f->name, s->name) && --f->after == 0) return f->code;
  return OK;
}
static void leave(const int *held) { (void)held; pthread_mutex_unlock(&turn); }

/* One call at a time; one that gives something back does so whatever has happened. */
#define HELD(f)                                     \
  static Site site = {f, 0, 0, 0};                  \
  pthread_mutex_lock(&turn);                        \
  __attribute__((cleanup(leave), unused)) int held; \
  int bad_before = enter(&site);
#define ENTER(f) HELD(f) if (bad_before) return bad_before;
#define FREEING(f) HELD(f) (void)bad_before;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

/* Streams */

static void run_to(Stream *s, long mark);

/* Where parameters lie: those of more than eight bytes at multiples of 64. */
static int place_of(const Function *f, int p) {
  int at = 0;
  for (int i = 0; i <= p; i++) {
    int whole = f->sizes[i] > 8 ? 64 : 8;
    at = (at + whole - 1) / whole * whole;
    if (i < p) at += f->sizes[i];
  }
  return at;
}

static void perform(Op *op) {
  if (op->kind == COPY) memmove(op->to, op->from, op->n);
  if (op->kind == FILL) memset(op->to, (int)op->mark, op->n);
  if (op->kind == RECORD) { op->event->time = now(); op->event->done = 1; }
  if (op->kind == WAIT && op->event->stream) run_to(op->event->stream, op->n);
  for (int i = 0; op->kind == RUN && i < op->count && !lost; i++) {
    Launch *k = &op->launches[i];
    void *params[PARAMS];
    if (!k->enabled) continue;
    if (lose_next) { lost = lose_next; lose_next = 0; break; }
    unsigned char room[PARAM_BYTES] __attribute__((aligned(64)));
    memcpy(room, k->values, sizeof room);
    for (int p = 0; p < k->f->params; p++) params[p] = room + place_of(k->f, p);
    if (k->f->run(params, k->grid, k->block, k->shared)) lost = LAUNCH_FAILED;
  }
}

static void run_to(Stream *s, long mark) {
  while (s->first && s->done < mark && !lost) {
    Op *op = s->first;
    s->first = op->next;
    if (!s->first) s->last = 0;
    s->done++;
    perform(op);
    if (op->kind == COPY && op->mark) free((void *)op->from);
    if (op->kind == WAIT) free(op->event);
    free(op->launches);
    free(op);
  }
}

static int finish_all(void) {
  for (Stream *s = streams; s; s = s->next) run_to(s, s->issued);
  return lost;
}

static Op *put(Stream *s, int kind) {
  Op *op = calloc(1, sizeof(Op));
  op->kind = kind;
  if (s->last) s->last->next = op; else s->first = op;
  s->last = op;
  s->issued++;
  return op;
}

/* Memory */

static Block *block_of(const void *at, size_t n, int kind) {
  for (Block *b = blocks; b; b = b->next)
    if (b->kind == kind && (char *)at >= (char *)b->at && (char *)at + n <= (char *)b->at + b->n)
      return b;
  return 0;
}

static void *take(size_t n, int kind) {
  Block *b = calloc(1, sizeof(Block));
  if (posix_memalign(&b->at, 256, n ? n : 1)) return 0;
  memset(b->at, 0xA5, n); /* no particular content */
  b->n = n; b->kind = kind; b->device = current ? current->device : 0;
  b->next = blocks; blocks = b; live[kind]++;
  return b->at;
}

static int give(void *at, int kind) {
  for (Block **b = &blocks; *b; b = &(*b)->next)
    if ((*b)->at == at && (*b)->kind == kind) {
      Block *gone = *b;
      if (kind == MEMORY) memory_used[gone->device] -= gone->n;
      *b = gone->next; live[kind]--;
      memset(gone->at, 0xDD, gone->n); /* who still reads it is found out */
      free(gone->at); free(gone);
      return OK;
    }
  return INVALID_VALUE;
}

API int cuMemAlloc_v2(uint64_t *at, size_t n) {
  ENTER("cuMemAlloc")
  if (!current) return INVALID_CONTEXT;
  if (!n) return INVALID_VALUE;
  if (memory_used[current->device] + n > memory_limit) return OUT_OF_MEMORY;
  memory_used[current->device] += n;
  *at = (uint64_t)take(n, MEMORY);
  return OK;
}
API int cuMemFree_v2(uint64_t at) {
  FREEING("cuMemFree")
  if (!current) return INVALID_CONTEXT;
  finish_all(); /* as the driver's does */
  return give((void *)at, MEMORY);
}
API int cuMemAllocHost_v2(void **at, size_t n) {
  ENTER("cuMemAllocHost")
  if (!current) return INVALID_CONTEXT;
  *at = take(n, PINNED);
  return OK;
}
API int cuMemFreeHost(void *at) { FREEING("cuMemFreeHost") finish_all(); return give(at, PINNED); }
API int cuMemGetInfo_v2(size_t *left, size_t *total) {
  ENTER("cuMemGetInfo")
  if (!current) return INVALID_CONTEXT;
  *total = memory_limit; *left = memory_limit - memory_used[current->device];
  return OK;
}

static int copy(uint64_t to, uint64_t from, size_t n, Stream *s, int to_device, int from_device) {
  if (!current || current->device != s->device) return INVALID_CONTEXT;
  if (to_device && !block_of((void *)to, n, MEMORY)) return INVALID_VALUE;
  if (from_device && !block_of((void *)from, n, MEMORY)) return INVALID_VALUE;
  Op *op = put(s, COPY);
  op->to = (void *)to; op->from = (void *)from; op->n = n;
  if (to_device && !from_device && !block_of((void *)from, n, PINNED)) {
    op->from = memcpy(malloc(n), (void *)from, n); /* pageable memory is read at once */
    op->mark = 1;
  }
  if (from_device && !to_device && !block_of((void *)to, n, PINNED)) run_to(s, s->issued);
  return lost;
}
API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, Stream *s) {
  ENTER("cuMemcpyHtoDAsync") return copy(to, (uint64_t)from, n, s, 1, 0);
}
API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, Stream *s) {
  ENTER("cuMemcpyDtoHAsync") return copy((uint64_t)to, from, n, s, 0, 1);
}
API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, Stream *s) {
  ENTER("cuMemcpyDtoDAsync") return copy(to, from, n, s, 1, 1);
}
API int cuMemcpyPeerAsync(uint64_t to, Context *there, uint64_t from, Context *here, size_t n,
                          Stream *s) {
  ENTER("cuMemcpyPeerAsync")
  Block *target = block_of((void *)to, n, MEMORY), *source = block_of((void *)from, n, MEMORY);
  if (!target || !source || target->device != there->device || source->device != here->device)
    return INVALID_VALUE;
  return copy(to, from, n, s, 1, 1);
}

/* Devices and contexts */

API int cuInit(unsigned flags) {
  ENTER("cuInit")
  (void)flags;
  started = 1; process = getpid();
  if (!device_count) return NO_DEVICE;
  return OK;
}
API int cuDriverGetVersion(int *v) { *v = version; return OK; }
API int cuDeviceGetCount(int *n) { ENTER("cuDeviceGetCount") *n = device_count; return OK; }
API int cuDeviceGet(int *d, int n) { ENTER("cuDeviceGet") *d = n; return n < device_count ? OK : INVALID_DEVICE; }
API int cuDeviceGetName(char *name, int n, int d) { snprintf(name, n, "Stub of a GPU %d", d); return OK; }
API int cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = memory_limit; return OK; }
API int cuDeviceGetAttribute(int *value, int attribute, int d) {
  ENTER("cuDeviceGetAttribute")
  switch (attribute) {
    case 1: *value = 1024; break;         /* threads of a block */
    case 5: *value = 2147483647; break;   /* blocks in x, then y and z */
    case 6: case 7: *value = 65535; break;
    case 8: *value = 48 << 10; break;     /* shared memory of a block */
    case 10: *value = 32; break;          /* warp */
    case 12: *value = 65536; break;       /* registers of a block */
    case 16: *value = 4; break;           /* processors */
    case 38: *value = 4 << 20; break;     /* second cache */
    case 75: *value = major; break;
    case 76: *value = 0; break;
    case 97: *value = MOST_SHARED; break;   /* shared memory of a block that asks for it */
    default: (void)d; *value = 0;
  }
  return OK;
}
API int cuDeviceCanAccessPeer(int *can, int a, int b) { *can = peers && a != b; return OK; }
API int cuDevicePrimaryCtxRetain(Context **c, int d) { ENTER("cuDevicePrimaryCtxRetain") *c = &contexts[d]; return OK; }
API int cuDevicePrimaryCtxRelease_v2(int d) { (void)d; return OK; }
API int cuCtxSetCurrent(Context *c) { ENTER("cuCtxSetCurrent") current = c; return OK; }
API int cuCtxGetCurrent(Context **c) { *c = current; return OK; }
API int cuCtxEnablePeerAccess(Context *c, unsigned f) { ENTER("cuCtxEnablePeerAccess") (void)c; (void)f; return OK; }
API int cuCtxSynchronize(void) { ENTER("cuCtxSynchronize") return finish_all(); }
API int cuGetErrorName(int code, const char **name) { static char t[32]; snprintf(t, 32, "CUDA_ERROR_%d", code); *name = t; return OK; }
API int cuGetErrorString(int code, const char **text) { static char t[32]; snprintf(t, 32, "error %d of the stub", code); *text = t; return OK; }

/* Streams and events */

API int cuStreamCreate(Stream **s, unsigned flags) {
  ENTER("cuStreamCreate")
  (void)flags;
  if (!current) return INVALID_CONTEXT;
  *s = calloc(1, sizeof(Stream));
  (*s)->device = current->device; (*s)->next = streams; streams = *s; live[STREAMS]++;
  return OK;
}
API int cuStreamDestroy_v2(Stream *s) { FREEING("cuStreamDestroy") run_to(s, s->issued); live[STREAMS]--; return OK; }
API int cuStreamSynchronize(Stream *s) { ENTER("cuStreamSynchronize") run_to(s, s->issued); return lost; }
API int cuStreamQuery(Stream *s) { ENTER("cuStreamQuery") return s->first ? NOT_READY : OK; }
API int cuStreamWaitEvent(Stream *s, Event *e, unsigned flags) {
  ENTER("cuStreamWaitEvent")
  (void)flags;
  Op *op = put(s, WAIT);
  op->event = calloc(1, sizeof(Event));
  *op->event = *e;
  op->n = e->mark;
  return OK;
}
API int cuEventCreate(Event **e, unsigned flags) {
  ENTER("cuEventCreate")
  if (!current) return INVALID_CONTEXT;
  *e = calloc(1, sizeof(Event));
  (*e)->device = current->device; (*e)->untimed = flags & 2;
  live[EVENTS]++;
  return OK;
}
API int cuEventDestroy_v2(Event *e) { FREEING("cuEventDestroy") if (e->stream) run_to(e->stream, e->mark); live[EVENTS]--; free(e); return OK; }
API int cuEventRecord(Event *e, Stream *s) {
  ENTER("cuEventRecord")
  if (e->device != s->device) return INVALID_HANDLE;
  if (e->stream) run_to(e->stream, e->mark);
  Op *op = put(s, RECORD);
  op->event = e; e->done = 0; e->stream = s; e->mark = s->issued;
  return OK;
}
API int cuEventQuery(Event *e) { ENTER("cuEventQuery") return e->done || !e->stream ? OK : NOT_READY; }
API int cuEventSynchronize(Event *e) { ENTER("cuEventSynchronize") if (e->stream) run_to(e->stream, e->mark); return lost; }
API int cuEventElapsedTime_v2(float *ms, Event *a, Event *b) {
  ENTER("cuEventElapsedTime")
  if (a->untimed || b->untimed || !a->stream || !b->stream || a->device != b->device) return INVALID_HANDLE;
  if (!a->done || !b->done) return NOT_READY;
  *ms = (float)(b->time - a->time);
  return OK;
}
API int cuEventElapsedTime(float *ms, Event *a, Event *b) { return cuEventElapsedTime_v2(ms, a, b); }

/* Modules and launches */

API int cuModuleLoadData(Module **m, const void *image) {
  ENTER("cuModuleLoadData")
  if (!current) return INVALID_CONTEXT;
  const Elf64_Ehdr *h = image;
  char path[64];
  if (memcmp(h->e_ident, ELFMAG, SELFMAG)) return INVALID_IMAGE;
  size_t n = h->e_shoff + (size_t)h->e_shnum * h->e_shentsize;
  strcpy(path, "/tmp/aster-module-XXXXXX"); /* a name of its own: a loaded one is not read again */
  int file = mkstemp(path);
  if (write(file, image, n) != (ssize_t)n) return INVALID_IMAGE;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  close(file);
  unlink(path);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return INVALID_IMAGE; }
  *m = calloc(1, sizeof(Module));
  (*m)->library = library; live[MODULES]++;
  return OK;
}
API int cuModuleUnload(Module *m) {
  FREEING("cuModuleUnload")
  finish_all();
  dlclose(m->library);
  for (int i = 0; i < m->count; i++) m->functions[i]->run = 0; /* who still launches one is told */
  free(m); live[MODULES]--;
  return OK;
}
API int cuModuleGetFunction(Function **f, Module *m, const char *name) {
  ENTER("cuModuleGetFunction")
  char symbol[512];
  snprintf(symbol, sizeof symbol, "%s_on_cpu", name);
  void *run = dlsym(m->library, symbol);
  snprintf(symbol, sizeof symbol, "%s_params", name);
  int *params = dlsym(m->library, symbol);
  snprintf(symbol, sizeof symbol, "%s_sizes", name);
  const int **sizes = dlsym(m->library, symbol);
  snprintf(symbol, sizeof symbol, "%s_cluster", name);
  const int *cluster = dlsym(m->library, symbol);
  if (!run || !params || !sizes || m->count == 64) return NOT_FOUND;
  *f = m->functions[m->count++] = calloc(1, sizeof(Function));
  (*f)->run = run; (*f)->params = *params; (*f)->sizes = *sizes; (*f)->device = current ? current->device : 0;
  (*f)->cluster = cluster ? *cluster : 1;
  return OK;
}
API int cuFuncGetAttribute(int *value, int attribute, Function *f) {
  ENTER("cuFuncGetAttribute")
  *value = attribute == 0 ? max_threads : attribute == 1 ? fixed_shared : attribute == 3 ? local_nbytes : attribute == 4 ? 40 : attribute == 8 ? f->dynamic
         : attribute == 11 && f->cluster > 1 ? f->cluster : 0;
  return OK;
}
API int cuFuncSetAttribute(Function *f, int attribute, int value) {
  ENTER("cuFuncSetAttribute")
  if (attribute != 8 || value + fixed_shared > MOST_SHARED) return INVALID_VALUE;
  f->dynamic = value;
  return OK;
}
static int fill(Launch *k, Function *f, const unsigned *sizes, unsigned shared, void **params) {
  /* CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". */
  static const unsigned most[] = {2147483647, 65535, 65535, 1024, 1024, 64};
  if (!f->run || !current || f->device != current->device) return INVALID_HANDLE;
  for (int i = 0; i < 6; i++) {
    if (!sizes[i] || sizes[i] > most[i]) return INVALID_VALUE;
    if (i < 3) k->grid[i] = sizes[i]; else k->block[i - 3] = sizes[i];
  }
  unsigned threads = k->block[0] * k->block[1] * k->block[2];
  if (threads > 1024) return INVALID_VALUE;
  if ((int)threads > max_threads) return OUT_OF_RESOURCES;
  if (shared > 48 << 10 && (int)shared > f->dynamic) return INVALID_VALUE;
  /* A grid is whole clusters, and of 8 blocks at most where nobody has asked for more. */
  if (k->grid[0] % f->cluster || f->cluster > 8 || (f->cluster > 1 && major < 9)) return INVALID_CLUSTER_SIZE;
  if (f->params > PARAMS) return INVALID_VALUE;
  k->f = f; k->shared = shared; k->enabled = 1;
  for (int p = 0; p < f->params; p++) {
    int at = place_of(f, p);
    if (at + f->sizes[p] > PARAM_BYTES) return INVALID_VALUE;
    memcpy(k->values + at, params[p], f->sizes[p]);
  }
  return OK;
}
static Launch *copied(const Launch *k, int n) {
  return memcpy(malloc(n * sizeof(Launch) + 1), k, n * sizeof(Launch));
}
API int cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, Stream *s, void **params, void **extra) {
  ENTER("cuLaunchKernel")
  (void)extra;
  Launch k;
  unsigned sizes[6] = {gx, gy, gz, bx, by, bz};
  if (!current || current->device != s->device) return INVALID_CONTEXT;
  int bad = fill(&k, f, sizes, shared, params);
  if (bad) return bad;
  Op *op = put(s, RUN);
  op->launches = copied(&k, 1); op->count = 1;
  return OK;
}

/* Tensors, in the form of `hopper_on_cpu.h`. */

typedef struct { uint64_t address; int rank, itemsize; int64_t sizes[5], strides[5]; int box[5], swizzle; } Form;
API int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                               const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                               int interleave, int swizzle, int promotion, int fill_with) {
  ENTER("cuTensorMapEncodeTiled")
  static const int nbytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  (void)promotion;
  if (type < 0 || type > 12 || rank < 1 || rank > 5 || (uint64_t)address % 16 || (uint64_t)map % 64)
    return INVALID_VALUE;
  if (interleave || fill_with || (swizzle != 3 && swizzle != 0)) return INVALID_VALUE;
  Form *f = memset(map, 0, 128);
  f->address = (uint64_t)address; f->rank = (int)rank; f->itemsize = nbytes[type]; f->swizzle = swizzle == 3;
  for (uint32_t i = 0; i < rank; i++) {
    f->sizes[i] = (int64_t)sizes[i];
    f->box[i] = (int)box[i];
    f->strides[i] = i ? (int64_t)strides[i - 1] : f->itemsize;
    if (i == 0 && box[0] * f->itemsize % 16) return INVALID_VALUE;
    if (!sizes[i] || sizes[i] > (uint64_t)1 << 32 || !box[i] || box[i] > 256 || steps[i] != 1) return INVALID_VALUE;
    if (i && (strides[i - 1] % 16 || strides[i - 1] >= (uint64_t)1 << 40)) return INVALID_VALUE;
  }
  return swizzle == 3 && f->box[0] * f->itemsize > 128 ? INVALID_VALUE : OK;
}

/* Graphs: nodes in the order in which they were made, which has to be that of what they wait for. */

typedef struct { Function *func; unsigned sizes[6], shared; void **params, **extra; void *kern, *ctx; } NodeParams;
API int cuGraphCreate(Nodes **g, unsigned flags) { ENTER("cuGraphCreate") (void)flags; *g = calloc(1, sizeof(Nodes)); live[GRAPHS]++; return OK; }
API int cuGraphDestroy(Nodes *g) { FREEING("cuGraphDestroy") free(g->nodes); free(g); live[GRAPHS]--; return OK; }
API int cuGraphAddKernelNode_v2(void **node, Nodes *g, void **waits, size_t n, const NodeParams *p) {
  ENTER("cuGraphAddKernelNode")
  for (size_t i = 0; i < n; i++)
    if ((long)waits[i] < 1 || (long)waits[i] > g->count) return INVALID_VALUE;
  g->nodes = realloc(g->nodes, (g->count + 1) * sizeof(Launch));
  int bad = fill(&g->nodes[g->count], p->func, p->sizes, p->shared, p->params);
  if (!bad) *node = (void *)(long)++g->count;
  return bad;
}
API int cuGraphInstantiateWithFlags(Nodes **e, Nodes *g, unsigned long long flags) {
  ENTER("cuGraphInstantiate")
  (void)flags;
  *e = calloc(1, sizeof(Nodes));
  (*e)->nodes = copied(g->nodes, g->count); (*e)->count = g->count; live[EXECS]++;
  return OK;
}
API int cuGraphExecDestroy(Nodes *e) { FREEING("cuGraphExecDestroy") free(e->nodes); free(e); live[EXECS]--; return OK; }
API int cuGraphExecKernelNodeSetParams_v2(Nodes *e, void *node, const NodeParams *p) {
  ENTER("cuGraphExecKernelNodeSetParams")
  Launch *k = &e->nodes[(long)node - 1];
  int enabled = k->enabled, bad = fill(k, p->func, p->sizes, p->shared, p->params);
  k->enabled = enabled;
  return bad;
}
API int cuGraphNodeSetEnabled(Nodes *e, void *node, unsigned enabled) {
  ENTER("cuGraphNodeSetEnabled") e->nodes[(long)node - 1].enabled = (int)enabled; return OK;
}
API int cuGraphLaunch(Nodes *e, Stream *s) {
  ENTER("cuGraphLaunch")
  if (!current || current->device != s->device) return INVALID_CONTEXT;
  Op *op = put(s, RUN);
  op->launches = copied(e->nodes, e->count); op->count = e->count;
  return OK;
}

/* How the bindings find all of it. NVRTC, too, asks a driver that is there for tables of its own. */

API int cuGetExportTable(const void **table, const void *id) { (void)id; *table = 0; return NOT_FOUND; }

API int cuGetProcAddress_v2(const char *name, void **f, int v, uint64_t flags, int *status) {
  char versioned[256];
  (void)v; (void)flags;
  Dl_info own;
  dladdr((void *)&cuGetProcAddress_v2, &own);
  void *self = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  snprintf(versioned, sizeof versioned, "%s_v2", name);
  *f = dlsym(self, versioned);
  if (!*f) *f = dlsym(self, name);
  if (!*f && !strcmp(name, "cuGraphInstantiate")) *f = (void *)&cuGraphInstantiateWithFlags;
  if (status) *status = *f ? 0 : 1;
  return *f ? OK : NOT_FOUND;
}
API int cuGetProcAddress(const char *name, void **f, int v, uint64_t flags) { return cuGetProcAddress_v2(name, f, v, flags, 0); }

/* Faults */

/* The call number `after` from now on of a function gives this code. */
API void stub_fail(const char *name, int code, int after) {
  for (Fault *f = faults; f < faults + 8; f++)
    if (!f->after) { snprintf(f->name, sizeof f->name, "%s", name); f->code = code; f->after = after; return; }
}
API void stub_lose(int code) { lose_next = code; }
API void stub_reset(void) {
  lost = lose_next = 0; version = 13000; device_count = DEVICES; memory_limit = (size_t)1 << 30;
  max_threads = 1024; major = 9; fixed_shared = local_nbytes = 0;
  memset(faults, 0, sizeof faults);
  for (Site *s = sites; s; s = s->next) s->calls = 0;
}
API void stub_version(int v) { version = v; }
API void stub_devices(int n) { device_count = n; }
API void stub_memory(size_t n) { memory_limit = n; }
API void stub_max_threads(int n) { max_threads = n; }
API void stub_major(int n) { major = n; }
/* Bytes of shared memory that kernels have in their code, with what aligns the rest. */
API void stub_fixed_shared(int n) { fixed_shared = n; }
API void stub_local_nbytes(int n) { local_nbytes = n; }
API long stub_live(int kind) { return live[kind]; }
API long stub_calls(const char *name) {
  for (Site *s = sites; s; s = s->next) if (!strcmp(s->name, name)) return s->calls;
  return 0;
}
