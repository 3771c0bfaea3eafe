//! Functions of Aster in CUDA C++ for tensor cores of Hopper: TMA, barriers, clusters, descriptors.
//!
//! Source: PTX ISA 8.7, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor copy",
//! "mbarrier", "setmaxnreg", "barrier.cluster", "mapa", "fence.proxy", "cp.async.bulk.wait_group".

//: aster_tensor
//! What a launch is given of each tensor: the driver's description of its layout, and how many
//! elements before its first one that begins, as it can only begin at multiples of 16 bytes.
struct __align__(64) aster_tensor {
  unsigned char form[128];
  long long before;
};

//: aster_settled
// Nobody reads these before this point.
FN void aster_settled() {}
template <class... X> FN void aster_settled(float &c, X &...more) {
#ifndef ASTER_ON_CPU
  asm volatile("" : "+f"(c) :: "memory");
#endif
  aster_settled(more...);
}

//: aster_shared_address
#ifndef ASTER_ON_CPU
FN unsigned int aster_shared_address(const void *p) {
  return (unsigned int)__cvta_generic_to_shared(p);
}
#endif

//: aster_barriers needs aster_shared_address
#ifndef ASTER_ON_CPU
// Barriers that count arrivals, and bytes that are on their way.
FN void aster_barrier_init(unsigned long long *barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
      :: "r"(aster_shared_address(barrier)), "r"(count) : "memory");
}
FN void aster_barriers_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
FN void aster_barrier_expect(unsigned long long *barrier, int nbytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
      :: "r"(aster_shared_address(barrier)), "r"(nbytes) : "memory");
}
FN void aster_barrier_arrive(unsigned long long *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
      :: "r"(aster_shared_address(barrier)) : "memory");
}
FN void aster_barrier_wait(unsigned long long *barrier, int parity) {
  unsigned int done;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.b32 %0, 1, 0, p;}"
        : "=r"(done) : "r"(aster_shared_address(barrier)), "r"(parity) : "memory");
  } while (!done);
}
#endif

//: aster_descriptor needs aster_shared_address
#ifndef ASTER_ON_CPU
// Where an operand begins, and how many bytes lie between its parts along both axes.
FN unsigned long long aster_descriptor(const void *p, int leading, int stride) {
  return (unsigned long long)((aster_shared_address(p) & 0x3ffff) >> 4)
      | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32
      | 1ull << 62;
}
FN void aster_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void aster_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> FN void aster_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
#endif

//: aster_fewer_registers
//! All threads of a warp group have fewer registers.
#ifndef ASTER_ON_CPU
template <int N> FN void aster_fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}
#endif

//: aster_more_registers
//! All threads of a warp group have more registers.
#ifndef ASTER_ON_CPU
template <int N> FN void aster_more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}
#endif

//: aster_copy_box needs aster_barriers aster_tensor
//! Copies a tile of a tensor of two to five dimensions, neighbours first.
#ifndef ASTER_ON_CPU
FN void aster_copy_box(void *to, const aster_tensor *from, unsigned long long *barrier,
    int x0, int x1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx"
      "::bytes [%0], [%1, {%3, %4}], [%2];"
      :: "r"(aster_shared_address(to)), "l"(from), "r"(aster_shared_address(barrier)),
      "r"(x0), "r"(x1) : "memory");
}
FN void aster_copy_box(void *to, const aster_tensor *from, unsigned long long *barrier,
    int x0, int x1, int x2) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx"
      "::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      :: "r"(aster_shared_address(to)), "l"(from), "r"(aster_shared_address(barrier)),
      "r"(x0), "r"(x1), "r"(x2) : "memory");
}
FN void aster_copy_box(void *to, const aster_tensor *from, unsigned long long *barrier,
    int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx"
      "::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      :: "r"(aster_shared_address(to)), "l"(from), "r"(aster_shared_address(barrier)),
      "r"(x0), "r"(x1), "r"(x2), "r"(x3) : "memory");
}
FN void aster_copy_box(void *to, const aster_tensor *from, unsigned long long *barrier,
    int x0, int x1, int x2, int x3, int x4) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx"
      "::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      :: "r"(aster_shared_address(to)), "l"(from), "r"(aster_shared_address(barrier)),
      "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
}
#endif

//: aster_share_box needs aster_barriers aster_tensor
//! Copies a tile to the same place of all blocks of a cluster that are bits of a number, and
//! counts its bytes at the same barrier of each.
#ifndef ASTER_ON_CPU
template <int BLOCKS> FN void aster_share_box(void *to, const aster_tensor *from, unsigned long long *barrier,
    int x0, int x1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx"
      "::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
      :: "r"(aster_shared_address(to)), "l"(from), "r"(aster_shared_address(barrier)),
      "r"(x0), "r"(x1), "h"((short)BLOCKS) : "memory");
}
template <int BLOCKS> FN void aster_share_box(void *to, const aster_tensor *from, unsigned long long *barrier,
    int x0, int x1, int x2) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx"
      "::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
      :: "r"(aster_shared_address(to)), "l"(from), "r"(aster_shared_address(barrier)),
      "r"(x0), "r"(x1), "r"(x2), "h"((short)BLOCKS) : "memory");
}
template <int BLOCKS> FN void aster_share_box(void *to, const aster_tensor *from, unsigned long long *barrier,
    int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx"
      "::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      :: "r"(aster_shared_address(to)), "l"(from), "r"(aster_shared_address(barrier)),
      "r"(x0), "r"(x1), "r"(x2), "r"(x3), "h"((short)BLOCKS) : "memory");
}
template <int BLOCKS> FN void aster_share_box(void *to, const aster_tensor *from, unsigned long long *barrier,
    int x0, int x1, int x2, int x3, int x4) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx"
      "::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
      :: "r"(aster_shared_address(to)), "l"(from), "r"(aster_shared_address(barrier)),
      "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "h"((short)BLOCKS) : "memory");
}
#endif

//: aster_cluster needs aster_shared_address
#ifndef ASTER_ON_CPU
// All threads of a cluster meet; what they have done before is done for all of it.
FN void aster_cluster_meets() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
// Comes to the barrier that lies in the same place of a block of the cluster.
FN void aster_cluster_arrive(unsigned long long *barrier, int block) {
  asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there];}"
      :: "r"(aster_shared_address(barrier)), "r"(block) : "memory");
}
#endif

//: aster_store_box needs aster_shared_address aster_tensor
//! Stores a tile of a tensor; each store is a group of copies.
#ifndef ASTER_ON_CPU
FN void aster_store_box(const aster_tensor *to, const void *from, int x0, int x1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3}], [%1];"
      :: "l"(to), "r"(aster_shared_address(from)), "r"(x0), "r"(x1) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
FN void aster_store_box(const aster_tensor *to, const void *from, int x0, int x1, int x2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4}], [%1];"
      :: "l"(to), "r"(aster_shared_address(from)), "r"(x0), "r"(x1), "r"(x2) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
FN void aster_store_box(const aster_tensor *to, const void *from, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];"
      :: "l"(to), "r"(aster_shared_address(from)), "r"(x0), "r"(x1), "r"(x2), "r"(x3) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
FN void aster_store_box(const aster_tensor *to, const void *from, int x0, int x1, int x2, int x3, int x4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5, %6}], [%1];"
      :: "l"(to), "r"(aster_shared_address(from)), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
#endif

//: aster_fence
//! Makes what threads have written to shared memory visible to copies of TMA behind a barrier.
#ifndef ASTER_ON_CPU
FN void aster_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

//: aster_drain
//! Waits until all tiles whose stores this thread has begun have been read.
#ifndef ASTER_ON_CPU
FN void aster_drain() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
#endif

//: aster_sync
//! A barrier of the first N threads.
#ifndef ASTER_ON_CPU
template <int N> FN void aster_sync() {
  asm volatile("bar.sync 1, %0;" :: "n"(N) : "memory");
}
#endif
