// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

/// The instructions that CUDA C++ has no function for. Fragment layouts are those of the PTX manual: a
/// 16 x 8 accumulator holds rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) + {0, 1}.
namespace deltaport::recurrence::cuda {

using Bf16 = __nv_bfloat16;
using Half = __half;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DELTAPORT_WGMMA 1
#endif

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- asynchronous copies ---------------------------------------------------------------------------------

/// 16 bytes from device to shared memory; zeros when `inside` is false (nothing is read then).
__device__ __forceinline__ void copy16_async(std::uint32_t shared, const void* global, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}
/// The line that holds an address, into the second-level cache.
__device__ __forceinline__ void prefetch(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int pending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
/// Arrives at the barrier once, when all copies that this thread has started are complete.
__device__ __forceinline__ void copies_arrive(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Whether one thread can copy whole blocks that complete on a barrier.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define DELTAPORT_BULK_COPY 1
/// Arrives once and lets the barrier wait for `bytes` bytes of bulk copies more.
__device__ __forceinline__ void barrier_arrive_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void copy_bulk(std::uint32_t shared, const void* global, int bytes,
                                          std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
/// 64 x 64 tile of `map` (see make_tensor_map) from element `column` of `head`, row `row`.
__device__ __forceinline__ void copy_tile_bulk(std::uint32_t shared, const void* map, int column, int head,
                                               int row, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared),
      "l"(map), "r"(column), "r"(head), "r"(row), "r"(shared_address(barrier))
      : "memory");
}
/// The same to the same places, and barriers, of all blocks of the cluster whose bits are set in `blocks`.
__device__ __forceinline__ void copy_bulk_to(std::uint32_t shared, const void* global, int bytes,
                                             std::uint64_t* barrier, std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void copy_tile_bulk_to(std::uint32_t shared, const void* map, int column, int head,
                                                  int row, std::uint64_t* barrier, std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared),
      "l"(map), "r"(column), "r"(head), "r"(row), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}
/// Into the second-level cache only.
__device__ __forceinline__ void prefetch_tile_bulk(const void* map, int column, int head, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map), "r"(column),
               "r"(head), "r"(row)
               : "memory");
}
__device__ __forceinline__ void prefetch_bulk(const void* global, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void store_tile_bulk(const void* map, int column, int head, int row,
                                                std::uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
               "r"(column), "r"(head), "r"(row), "r"(shared)
               : "memory");
}
__device__ __forceinline__ void store_bulk(void* global, std::uint32_t shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared),
               "r"(bytes)
               : "memory");
}
/// Until this thread's bulk stores have read shared memory.
__device__ __forceinline__ void bulk_stores_wait_read() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
#endif
/// The register budget of the warps of a role, where the target can move registers between warps.
template <int registers>
__device__ __forceinline__ void registers_take() {
#if defined(DELTAPORT_WGMMA)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
template <int registers>
__device__ __forceinline__ void registers_give() {
#if defined(DELTAPORT_WGMMA)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
/// Makes this thread's ordinary writes to shared memory visible to wgmma and the bulk copy engine.
__device__ __forceinline__ void fence_async_proxy() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- barriers --------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
/// Behind the init of barriers, by the thread that made them: bulk copies and other blocks of the cluster may use them.
/// Orders nothing else, and so does not wait for memory as fence_async_proxy does.
__device__ __forceinline__ void barriers_publish() {
#if defined(DELTAPORT_BULK_COPY)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier))
               : "memory");
}
/// Returns when the phase with this parity has completed. The loop is inside the assembly so that the compiler does
/// not take it for a place where products in flight must be waited for.
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra again;\n"
      "done: }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{ .reg .pred p;\n"
      "again: mbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra again;\n"
      "done: }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}
/// Barrier `id` (1 to 15) among `threads` threads of the block.
template <int id, int threads>
__device__ __forceinline__ void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

/// Counts towards barrier `id` without waiting for it.
template <int id, int threads>
__device__ __forceinline__ void named_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

// ---- clusters: blocks that see each other's shared memory ------------------------------------------------

__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
/// Every arrival is followed by a wait; all threads of the cluster take part.
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// Lets the other blocks of the cluster know that this one has begun, and its barriers are made (see barriers_publish).
__device__ __forceinline__ void cluster_announce() {
#if defined(DELTAPORT_BULK_COPY)
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
/// To the place in block `rank` that lies where `own` does here; completes on that block's barrier. No fence is needed.
__device__ __forceinline__ void cluster_send(std::uint32_t own, float x, const std::uint64_t* barrier,
                                             std::uint32_t rank) {
#if defined(DELTAPORT_BULK_COPY)
  asm volatile(
      "{ .reg .b32 to, at;\n"
      "mapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 at, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %1, [at]; }" ::"r"(own),
      "r"(__float_as_uint(x)), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
#elif defined(__CUDA_ARCH__)
  __trap();  // no clusters: see device_runs_kernels
#endif
}

/// Number of this block in its cluster.
__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
/// Blocks of this block's cluster; 1 outside of one.
__device__ __forceinline__ int cluster_blocks() {
  int blocks = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  return blocks;
}
/// Arrives at the barrier that lies at `own` in block `rank`. Releases to the own block only: a release to the cluster
/// waits for the whole memory system, and who is signalled only learns that something has been read.
__device__ __forceinline__ void cluster_barrier_arrive(std::uint64_t* own, std::uint32_t rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;"
      " mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(shared_address(own)),
      "r"(rank)
      : "memory");
#endif
}
/// What lies at `own` in the shared memory of block `rank` of a cluster of `blocks`.
template <int blocks>
__device__ __forceinline__ float2 cluster_read(const float2* own, int rank) {
  if constexpr (blocks == 1) return *own;
  float2 x = {};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
#elif defined(__CUDA_ARCH__)
  __trap();  // no clusters: see device_runs_kernels
#endif
  return x;
}

// ---- matrices in shared memory ---------------------------------------------------------------------------

/// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row_address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row_address)
               : "memory");
}
/// Stores four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(std::uint32_t row_address, const std::uint32_t (&r)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row_address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#else
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const std::uint32_t row = __shfl_sync(0xffffffffu, row_address, 8 * m + lane / 4);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(row + 4 * (lane % 4)), "r"(r[m]) : "memory");
  }
#endif
}
/// Stores four 8 x 8 matrices transposed: element (i, j) of the fragment lands in row j, column i.
__device__ __forceinline__ void store_matrices_transposed(std::uint32_t row_address,
                                                          const std::uint32_t (&r)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row_address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#else
  // Row addresses come by shuffle; every lane writes the two halves of each of its registers.
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const int column = lane / 4, row = 2 * (lane % 4);
    const std::uint32_t even = __shfl_sync(0xffffffffu, row_address, 8 * m + row);
    const std::uint32_t odd = __shfl_sync(0xffffffffu, row_address, 8 * m + row + 1);
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(even + 2 * column), "h"(static_cast<std::uint16_t>(r[m]))
                 : "memory");
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(odd + 2 * column),
                 "h"(static_cast<std::uint16_t>(r[m] >> 16))
                 : "memory");
  }
#endif
}
__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared8(std::uint32_t address, uint2 x) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(x.x), "r"(x.y) : "memory");
}
__device__ __forceinline__ void store_shared16(std::uint32_t address, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_shared16(std::uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

// ---- products of fragments -------------------------------------------------------------------------------

/// d (16 x 8) += a (16 x 16) b (16 x 8).
template <class E>
__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  if constexpr (sizeof(E) == 2 && __is_same(E, Bf16)) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
/// d (16 x 8) += a (16 x 8) b (8 x 8) in tf32; operands are float bits, rounded by to_tf32.
__device__ __forceinline__ void multiply_add_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ std::uint32_t to_tf32(float x) {
  std::uint32_t bits;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));  // one instruction; the other takes three
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
  return bits;
}

// ---- conversions -----------------------------------------------------------------------------------------

/// Two floats as two elements, `low` in the low half.
template <class E>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t r;
  if constexpr (__is_same(E, Bf16)) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}
template <class E>
__device__ __forceinline__ float2 unpack(std::uint32_t x) {
  if constexpr (__is_same(E, Bf16)) {
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&x));
  }
}
template <class E>
__device__ __forceinline__ float to_float(E x) {
  if constexpr (__is_same(E, Bf16)) {
    return __bfloat162float(x);
  } else {
    return __half2float(x);
  }
}
template <class E>
__device__ __forceinline__ E from_float(float x) {
  if constexpr (__is_same(E, Bf16)) {
    return __float2bfloat16(x);
  } else {
    return __float2half(x);
  }
}
/// 2^x, x <= 0 or so; flushes tiny results to zero, 2^-inf is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// Lets a kernel launched behind this one start; its reads wait in dependency_wait.
__device__ __forceinline__ void dependency_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace deltaport::recurrence::cuda
