/* Objective-C and Metal that are not there: the functions and messages that the runtime uses, on the
   CPU. Messages are told apart by their names; each name has one receiver's kind here, but for those
   that all objects take.

   Buffers are memory of the host. A command buffer does nothing until somebody waits for it, and
   then what was committed before it runs first. An indirect command is read when it runs, and fails
   if a buffer of it was not named by `useResources`. A library's source goes to a function of the
   test, which gives the path of a shared library: there `NAME_on_cpu` runs the whole grid of a kernel
   and takes for each argument the address of its memory; if there is a `NAME_params`, it is as in
   `metal_on_cpu.h`. Objects are counted, and what nobody owns
   goes with the pool in which it was made. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
enum { MOST = 31, NODES = 4096 };
typedef struct { unsigned long width, height, depth; } Size;
typedef struct { unsigned long location, length; } Range;
typedef int (*Kernel)(void **, const unsigned *, const unsigned *, unsigned);

typedef struct Object Object;
typedef struct { Object *pipeline, *buffers[MOST]; unsigned long offsets[MOST]; long bytes[MOST];
                 Size grid, block; int barrier; } Launch;
typedef struct Op { int kind; Launch launch; Object *from, *to; unsigned long at, there, n;
                    Object *commands; Object **used; int used_count; struct Op *next; } Op;
enum { DISPATCH, COPY, EXECUTE };
struct Object {
  const char *kind;
  long references;
  void *memory;            /* of a buffer; the handle of a library */
  char *text;              /* of a string, or an error */
  unsigned long n;         /* bytes of a buffer, commands of an indirect buffer, code of an error */
  Kernel kernel;
  const int *params;       /* of a kernel: how many, and which are pointers */
  const unsigned long *pointers;
  Object *parent, *next;   /* queue of a command buffer, command buffer of an encoder; the next of a queue */
  Op *first, *last;
  Launch state, *launches;
  Object **used; int used_count, status, flag;
  double start, end;
};
typedef struct { void *run; const char *name; } Selector;

static long live;
static Object *pool[NODES];
static long empty; /* dispatches of nothing */
static int pooled, fail_next, fail_code, no_memory, no_device;
static unsigned long max_threads = 1024, largest = 1ul << 28;
static unsigned long static_shared = 1024;
static long family = 1008; /* M2; 0 is none of Apple's */
static int (*compiler)(const char *source, char *result, int n);
static Object *device_object;

static Object *new_object(const char *kind) {
  Object *o = calloc(1, sizeof(Object));
  o->kind = kind; o->references = 1; live++;
  return o;
}
static Object *unowned(Object *o) {
  if (pooled < NODES) pool[pooled++] = o;
  return o;
}
static void drop(Object *o) {
  if (!o || --o->references > 0) return;
  live--;
  if (!strcmp(o->kind, "buffer")) { memset(o->memory, 0xDD, o->n); free(o->memory); }
  if (!strcmp(o->kind, "pipeline") || !strcmp(o->kind, "function")) drop(o->parent);
  if (!strcmp(o->kind, "indirect")) free(o->launches);
  free(o->text); free(o->used); free(o);
}
static Object *hold(Object *o) { if (o) o->references++; return o; }
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
static Object *error_of(const char *text, long code) {
  Object *o = unowned(new_object("error"));
  o->text = strdup(text); o->n = code;
  return o;
}

/* What is run */

static int run_launch(Launch *k) {
  void *args[MOST];
  unsigned grid[3] = {k->grid.width, k->grid.height, k->grid.depth};
  unsigned block[3] = {k->block.width, k->block.height, k->block.depth};
  if (!k->pipeline || !grid[0] || !block[0]) return 1;
  for (int i = 0; i < MOST; i++)
    args[i] = k->buffers[i] ? (char *)k->buffers[i]->memory + k->offsets[i] : (void *)&k->bytes[i];
  Object *p = k->pipeline;
  if (!p->params) return p->kernel(args, grid, block, 0);
  void *places[MOST];
  for (int i = 0; i < *p->params; i++) {
    places[i] = args[i];
    if (*p->pointers >> i & 1) args[i] = &places[i];
  }
  return p->kernel(args, grid, block, *p->params);
}
static int is_used(Op *op, Object *o) {
  for (int i = 0; i < op->used_count; i++) if (op->used[i] == o) return 1;
  return !o;
}
static int run_commands(Op *op) {
  for (unsigned long c = op->at; c < op->at + op->n; c++) {
    Launch *k = &op->commands->launches[c];
    for (int i = 0; i < MOST; i++) if (!is_used(op, k->buffers[i])) return 9;
    if (!k->pipeline) continue; /* was reset */
    if (!k->barrier || run_launch(k)) return 3;
  }
  return 0;
}
static void run(Object *buffer) {
  buffer->start = now();
  for (Op *op = buffer->first, *next; op; op = next) {
    next = op->next;
    int bad = fail_next && op->kind != COPY ? fail_code : 0;
    if (bad) fail_next = 0;
    else if (op->kind == DISPATCH) bad = run_launch(&op->launch);
    else if (op->kind == EXECUTE) bad = run_commands(op);
    else memmove((char *)op->to->memory + op->there, (char *)op->from->memory + op->at, op->n);
    if (bad && buffer->status != 5) { buffer->status = 5; buffer->n = bad; }
    for (int i = 0; i < MOST && op->kind == DISPATCH; i++) drop(op->launch.buffers[i]);
    if (op->kind == DISPATCH) drop(op->launch.pipeline);
    drop(op->from); drop(op->to); drop(op->commands);
    free(op->used); free(op);
  }
  buffer->first = buffer->last = 0;
  buffer->end = now() + 1e-6;
  if (buffer->status != 5) buffer->status = 4;
}
static void run_to(Object *buffer) {
  Object *queue = buffer->parent;
  while (queue->next && buffer->status == 2) {
    Object *first = queue->next;
    queue->next = first->next;
    run(first);
    drop(first);
  }
}
static Op *put(Object *buffer, int kind) {
  Op *op = calloc(1, sizeof(Op));
  op->kind = kind;
  if (buffer->last) buffer->last->next = op; else buffer->first = op;
  buffer->last = op;
  return op;
}

/* Messages */

#define M(name) static __attribute__((used)) name
typedef const void *S;
M(Object *m_retain(Object *o, S s)) { (void)s; return hold(o); }
M(void m_release(Object *o, S s)) { (void)s; drop(o); }
M(Object *m_new(Object *c, S s)) { (void)s; return new_object(c->text); }
M(Object *m_string(Object *c, S s, const char *text)) { (void)c; (void)s; Object *o = unowned(new_object("string")); o->text = strdup(text); return o; }
M(const char *m_text(Object *o, S s)) { (void)s; return o->text; }
M(Object *m_description(Object *o, S s)) { return m_string(o, s, o->text); }
M(long m_code(Object *o, S s)) { (void)s; return (long)o->n; }
M(_Bool m_supports(Object *o, S s, long f)) { (void)o; (void)s; return f <= family; }
M(Object *m_name(Object *o, S s)) { (void)o; return m_string(o, s, "Stub of a GPU"); }
M(unsigned long m_largest(Object *o, S s)) { (void)o; (void)s; return largest; }
M(unsigned long m_working(Object *o, S s)) { (void)o; (void)s; return 1ul << 30; }
M(unsigned long m_shared(Object *o, S s)) { (void)o; (void)s; return 32768; }
M(Object *m_new_queue(Object *o, S s, unsigned long n)) { (void)o; (void)s; (void)n; return new_object("queue"); }
M(Object *m_new_buffer(Object *o, S s, unsigned long n, unsigned long options)) {
  (void)o; (void)s; (void)options;
  if (no_memory || n > largest) return 0;
  Object *b = new_object("buffer");
  b->n = n; b->memory = malloc(n); memset(b->memory, 0xA5, n);
  return b;
}
M(void *m_contents(Object *o, S s)) { (void)s; return o->memory; }
M(void m_set_flag(Object *o, S s, _Bool value)) { (void)s; o->flag = value; }
M(void m_set_number(Object *o, S s, unsigned long value)) { (void)s; o->n = value; }
M(Object *m_new_library(Object *o, S s, Object *source, Object *options, Object **error)) {
  static char result[1 << 16];
  (void)o; (void)s;
  if (options->flag) { *error = error_of("fast mathematics", 1); return 0; }
  if (compiler(source->text, result, sizeof result)) { *error = error_of(result, 3); return 0; }
  Object *library = new_object("library");
  library->memory = dlopen(result, RTLD_NOW | RTLD_LOCAL);
  return library;
}
M(Object *m_new_function(Object *o, S s, Object *name)) {
  char symbol[512];
  (void)s;
  snprintf(symbol, sizeof symbol, "%s_on_cpu", name->text);
  void *found = dlsym(o->memory, symbol);
  if (!found) return 0;
  Object *f = new_object("function");
  f->kernel = (Kernel)found; f->parent = hold(o);
  snprintf(symbol, sizeof symbol, "%s_params", name->text);
  f->params = dlsym(o->memory, symbol);
  snprintf(symbol, sizeof symbol, "%s_pointers", name->text);
  f->pointers = dlsym(o->memory, symbol);
  return f;
}
M(void m_set_function(Object *o, S s, Object *f)) { (void)s; o->kernel = f->kernel; o->parent = f->parent; o->params = f->params; o->pointers = f->pointers; }
M(Object *m_new_pipeline(Object *o, S s, Object *d, unsigned long options, void *reflection, Object **error)) {
  (void)o; (void)s; (void)options; (void)reflection;
  if (!d->flag) { *error = error_of("no pipeline for indirect commands", 1); return 0; }
  Object *p = new_object("pipeline");
  p->kernel = d->kernel; p->parent = hold(d->parent);
  p->params = d->params; p->pointers = d->pointers;
  return p;
}
M(unsigned long m_max_threads(Object *o, S s)) { (void)o; (void)s; return max_threads; }
M(unsigned long m_static(Object *o, S s)) { (void)o; (void)s; return static_shared; }
M(Object *m_command_buffer(Object *o, S s)) { (void)s; Object *b = unowned(new_object("commands")); b->parent = o; return b; }
M(Object *m_encoder(Object *o, S s)) { (void)s; Object *e = unowned(new_object("encoder")); e->parent = o; return e; }
M(void m_set_pipeline(Object *o, S s, Object *p)) {
  (void)s;
  Launch *k = o->launches ? o->launches : &o->state;
  k->pipeline = p;
}
M(void m_set_buffer(Object *o, S s, Object *b, unsigned long offset, unsigned long i)) {
  (void)s;
  Launch *k = o->launches ? o->launches : &o->state;
  k->buffers[i] = b; k->offsets[i] = offset;
}
M(void m_set_bytes(Object *o, S s, const void *at, unsigned long n, unsigned long i)) {
  (void)s; (void)n;
  o->state.buffers[i] = 0;
  memcpy(&o->state.bytes[i], at, 8);
}
M(void m_dispatch(Object *o, S s, Size grid, Size block)) {
  (void)s;
  if (!grid.width) { empty++; return; }
  Op *op = put(o->parent, DISPATCH);
  op->launch = o->state; op->launch.grid = grid; op->launch.block = block;
  for (int i = 0; i < MOST; i++) hold(op->launch.buffers[i]);
  hold(op->launch.pipeline);
}
M(void m_copy(Object *o, S s, Object *from, unsigned long at, Object *to, unsigned long there, unsigned long n)) {
  (void)s;
  Op *op = put(o->parent, COPY);
  op->from = hold(from); op->to = hold(to); op->at = at; op->there = there; op->n = n;
  /* As macOS has it: multiples of 4, and nothing of one buffer to where it overlaps. */
  if ((at | there | n) % 4 || !n || from == to || at + n > from->n || there + n > to->n) {
    fprintf(stderr, "a copy that Metal does not take\n");
    abort();
  }
}
M(void m_nothing(Object *o, S s)) { (void)o; (void)s; }
M(void m_commit(Object *o, S s)) {
  (void)s;
  Object **last = &o->parent->next;
  while (*last) last = &(*last)->next;
  *last = hold(o); o->next = 0; o->status = 2;
}
M(void m_wait(Object *o, S s)) { (void)s; if (!o->status) { fprintf(stderr, "waits for commands that were not committed\n"); abort(); } run_to(o); }
M(unsigned long m_status(Object *o, S s)) { (void)s; return o->status; }
M(Object *m_error(Object *o, S s)) {
  (void)s;
  return o->n == 9 ? error_of("memory that was not named", 9) : error_of("Caused GPU Address Fault Error", (long)o->n);
}
M(double m_start(Object *o, S s)) { (void)s; return o->start; }
M(double m_end(Object *o, S s)) { (void)s; return o->end; }
M(Object *m_new_commands(Object *o, S s, Object *d, unsigned long n, unsigned long options)) {
  (void)o; (void)s; (void)options;
  if (d->n > MOST || n > 16384) return 0;
  Object *c = new_object("indirect");
  c->n = n; c->launches = calloc(n + 1, sizeof(Launch));
  return c;
}
M(Object *m_command(Object *o, S s, unsigned long i)) {
  (void)s;
  Object *c = unowned(new_object("command"));
  c->launches = &o->launches[i];
  return c;
}
M(void m_set_sizes(Object *o, S s, Size grid, Size block)) { (void)s; o->launches->grid = grid; o->launches->block = block; }
M(void m_reset(Object *o, S s)) { (void)s; memset(o->launches, 0, sizeof(Launch)); }
M(void m_barrier(Object *o, S s)) { (void)s; o->launches->barrier = 1; }
M(void m_use(Object *o, S s, Object **all, unsigned long n, unsigned long usage)) {
  (void)s; (void)usage;
  o->used = realloc(o->used, (o->used_count + n) * sizeof(Object *));
  memcpy(o->used + o->used_count, all, n * sizeof(Object *));
  o->used_count += (int)n;
}
M(void m_execute(Object *o, S s, Object *commands, Range range)) {
  (void)s;
  Op *op = put(o->parent, EXECUTE);
  op->commands = hold(commands); op->at = range.location; op->n = range.length;
  op->used_count = o->used_count;
  op->used = memcpy(malloc(o->used_count * sizeof(Object *) + 1), o->used, o->used_count * sizeof(Object *));
}

static Selector selectors[] = {
  {m_retain, "retain"}, {m_release, "release"}, {m_new, "new"}, {m_string, "stringWithUTF8String:"},
  {m_text, "UTF8String"}, {m_description, "localizedDescription"}, {m_code, "code"}, {m_name, "name"},
  {m_largest, "maxBufferLength"}, {m_working, "recommendedMaxWorkingSetSize"},
  {m_shared, "maxThreadgroupMemoryLength"}, {m_new_queue, "newCommandQueueWithMaxCommandBufferCount:"},
  {m_new_buffer, "newBufferWithLength:options:"}, {m_contents, "contents"},
  {m_new_library, "newLibraryWithSource:options:error:"}, {m_set_flag, "setFastMathEnabled:"},
  {m_new_function, "newFunctionWithName:"}, {m_set_function, "setComputeFunction:"},
  {m_set_flag, "setSupportIndirectCommandBuffers:"},
  {m_new_pipeline, "newComputePipelineStateWithDescriptor:options:reflection:error:"},
  {m_max_threads, "maxTotalThreadsPerThreadgroup"}, {m_static, "staticThreadgroupMemoryLength"},
  {m_command_buffer, "commandBuffer"}, {m_encoder, "computeCommandEncoder"},
  {m_encoder, "blitCommandEncoder"}, {m_set_pipeline, "setComputePipelineState:"},
  {m_set_buffer, "setBuffer:offset:atIndex:"}, {m_set_bytes, "setBytes:length:atIndex:"},
  {m_dispatch, "dispatchThreadgroups:threadsPerThreadgroup:"},
  {m_copy, "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"},
  {m_nothing, "endEncoding"}, {m_commit, "commit"}, {m_wait, "waitUntilCompleted"},
  {m_status, "status"}, {m_error, "error"}, {m_start, "GPUStartTime"}, {m_end, "GPUEndTime"},
  {m_set_flag, "setInheritBuffers:"}, {m_set_flag, "setInheritPipelineState:"},
  {m_set_number, "setCommandTypes:"}, {m_set_number, "setMaxKernelBufferBindCount:"},
  {m_new_commands, "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"},
  {m_command, "indirectComputeCommandAtIndex:"}, {m_set_buffer, "setKernelBuffer:offset:atIndex:"},
  {m_set_sizes, "concurrentDispatchThreadgroups:threadsPerThreadgroup:"},
  {m_barrier, "setBarrier"}, {m_reset, "reset"}, {m_supports, "supportsFamily:"}, {m_use, "useResources:count:usage:"},
  {m_execute, "executeCommandsInBuffer:withRange:"},
};

API const void *sel_registerName(const char *name) {
  for (Selector *s = selectors; s < selectors + sizeof selectors / sizeof *selectors; s++)
    if (!strcmp(s->name, name)) return s;
  fprintf(stderr, "no message %s\n", name);
  abort();
}
API void *objc_getClass(const char *name) {
  static Object classes[16];
  static int count;
  for (int i = 0; i < count; i++) if (!strcmp(classes[i].text, name)) return &classes[i];
  classes[count].kind = "class"; classes[count].text = strdup(name);
  return &classes[count++];
}
API long objc_autoreleasePoolPush(void) { return pooled + 1; }
API void objc_autoreleasePoolPop(long mark) { while (pooled >= mark) drop(pool[--pooled]); }
API void *MTLCreateSystemDefaultDevice(void) {
  if (no_device) return 0;
  if (!device_object) device_object = new_object("device");
  return hold(device_object);
}

/* A message of nobody is nothing; else it is the function that its name begins with. */
#if defined(__x86_64__)
asm(".globl objc_msgSend\nobjc_msgSend:\n test %rdi, %rdi\n jz 1f\n jmp *(%rsi)\n"
    "1: xor %eax, %eax\n pxor %xmm0, %xmm0\n ret\n");
#elif defined(__aarch64__)
asm(".globl objc_msgSend\nobjc_msgSend:\n cbz x0, 1f\n ldr x16, [x1]\n br x16\n"
    "1: fmov d0, xzr\n ret\n");
#endif

API void stub_family(int n) { family = n; }
API void stub_static_shared(int n) { static_shared = n; }
API long stub_empty(void) { return empty; }
API void stub_reset(void) { family = 1008; static_shared = 1024; empty = 0; fail_next = no_memory = no_device = 0; max_threads = 1024; largest = 1ul << 28; }
API void stub_fail(int code) { fail_next = 1; fail_code = code; }
API void stub_no_memory(int yes) { no_memory = yes; }
API void stub_no_device(int yes) { no_device = yes; }
API void stub_max_threads(int n) { max_threads = n; }
API void stub_compiler(int (*f)(const char *, char *, int)) { compiler = f; }
API long stub_live(void) { return live; }
API long stub_pooled(void) { return pooled; }
