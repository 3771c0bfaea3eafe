// CUDA C++ without barriers on the CPU: thread by thread, block by block, for the stub of the driver.
#include <cstddef>
#include <utility>

struct Place { unsigned x, y, z; };
static Place blockIdx, threadIdx, gridDim, blockDim;
#define __global__ static
#define __launch_bounds__(n)

template <class... A, std::size_t... I>
static int run_grid(void (*f)(A...), void **p, const unsigned *g, const unsigned *b,
                    std::index_sequence<I...>) {
  gridDim = {g[0], g[1], g[2]};
  blockDim = {b[0], b[1], b[2]};
  for (unsigned i = 0; i < g[0] * g[1] * g[2]; i++)
    for (unsigned j = 0; j < b[0] * b[1] * b[2]; j++) {
      blockIdx = {i % g[0], i / g[0] % g[1], i / g[0] / g[1]};
      threadIdx = {j % b[0], j / b[0] % b[1], j / b[0] / b[1]};
      f(*(A *)p[I]...);
    }
  return 0;
}
template <class... A> constexpr int count_of(void (*)(A...)) { return sizeof...(A); }
template <class... A>
static int run_all(void (*f)(A...), void **p, const unsigned *g, const unsigned *b) {
  return run_grid(f, p, g, b, std::index_sequence_for<A...>());
}
#define KERNEL(name)                                                                    \
  extern "C" const int name##_params = count_of(name);                            \
  extern "C" int name##_on_cpu(void **p, const unsigned *g, const unsigned *b, unsigned) { \
    return run_all(name, p, g, b);                                                      \
  }
