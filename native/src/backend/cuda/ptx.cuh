// The instructions that CUDA C++ has no word for: ldmatrix, mma.sync, cp.async, mbarrier, bulk and tensor copies,
// wgmma, clusters, programmatic dependent launch.
//
// Thin: one function per instruction, no policy. sm_80 forms work everywhere; what is inside QWEN3_SM90A needs
// compute_90a (the macro is false on every other target, 120 included) and is used by kernels whose whole body is
// guarded by it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QWEN3_SM90A 1
#else
#define QWEN3_SM90A 0
#endif

namespace qwen3::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// threadIdx.x % 32 that stays in a register, instead of being asked for again in a loop.
__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// ---- programmatic dependent launch; no-ops before sm_90
__device__ __forceinline__ void griddep_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void griddep_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- mma.sync
// Four 8x8 matrices of 16 bits; lane l gives the shared address of row l % 8 of matrix l / 8 (16 bytes, aligned).
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// c[16 x 8] += a[16 x 16] * b[16 x 8]. Lane (g = lane / 4, t = lane % 4): a0 (row g, k 2t..), a1 (g + 8, 2t..),
// a2 (g, 2t + 8..), a3 (g + 8, 2t + 8..); b0 (k 2t.., column g), b1 (k 2t + 8.., column g);
// c0, c1 (row g, columns 2t, 2t + 1), c2, c3 (row g + 8).
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- cp.async (sm_80)
// Copies `bytes` (0..16) of 16 to shared memory and fills the rest with zeros. `source` must be a valid pointer.
__device__ __forceinline__ void cp_async_16(uint32_t destination, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int n>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// ---- shared memory by address
__device__ __forceinline__ uint32_t shared_load(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ uint4 shared_load_uint4(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

#if QWEN3_SM90A
// ---- mbarrier
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the inits, before other threads or the copy engine use them (and a barrier among the threads).
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Where the copy engine will write what this warp has read from shared memory, not before those loads are over: they
// may still be on their way when the arrival is counted, behind a wgmma for long. Use what they brought before, or call
// fence_to_copy_engine().
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Waits until the phase of that parity is complete; a fresh barrier counts as complete in parity 1.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE_%=;\n"
      "bra WAIT_%=;\nDONE_%=:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether that phase is complete; asked for early, the answer costs no time.
__device__ __forceinline__ bool mbarrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

// A place in a ring of n stages, each with a barrier: which stage, and the parity of the phase that completes next.
template <int n>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == n) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// ---- copies by the copy engine, completing on an mbarrier
// What the second-level cache does with the lines that a load brings.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// `bytes` contiguous bytes, multiple of 16, both ends aligned to 16.
__device__ __forceinline__ void bulk_load(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void bulk_load(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
      "%4;" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// Orders this thread's ordinary accesses to shared memory before later ones by the copy engine or wgmma.
__device__ __forceinline__ void fence_to_copy_engine() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void tensor_prefetch(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void tensor_load_2d(uint32_t destination, const void* map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(destination),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void tensor_load_3d(uint32_t destination, const void* map, int x, int y, int z,
                                               uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(destination),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
      : "memory");
}
// ---- shared memory by address, floats and writing
__device__ __forceinline__ void shared_store(uint32_t address, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ __forceinline__ void shared_store_float2(uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void shared_store_float4(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ __forceinline__ float4 shared_load_float4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// ---- copies from shared memory by the copy engine, in groups of the issuing thread. Before: writes to shared memory,
// fence_to_copy_engine() in each writing thread, a barrier. What is outside the tensor is not written.
__device__ __forceinline__ void tensor_store_2d(const void* map, int x, int y, uint32_t source) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
               "r"(y), "r"(source)
               : "memory");
}
// `bytes` contiguous bytes, multiple of 16, both ends aligned to 16.
__device__ __forceinline__ void bulk_store(void* destination, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes)
               : "memory");
}
// memory += source, float32, one rounded addition per element.
__device__ __forceinline__ void tensor_add_2d(const void* map, int x, int y, uint32_t source) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(x), "r"(y), "r"(source)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but the last n groups of this thread have read their sources.
template <int n>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory");
}
// ---- clusters
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all CTAs of the cluster; orders shared memory among them. Warps must be converged.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same in two parts: what follows the wait begins when all threads have arrived.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
// Arrives at a barrier of another CTA of the cluster.
__device__ __forceinline__ void mbarrier_arrive_at(uint32_t remote) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
// tensor_load_3d() into both CTAs of a cluster of two, at the same address of each; counts on the barrier of each.
__device__ __forceinline__ void tensor_load_3d_for_both(uint32_t destination, const void* map, int x, int y, int z,
                                                        uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(destination),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(static_cast<uint16_t>(3)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tensor_load_2d_for_both(uint32_t destination, const void* map, int x, int y,
                                                        uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(destination),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(static_cast<uint16_t>(3))
      : "memory");
}
__device__ __forceinline__ float4 cluster_load_float4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
// Stores into the shared memory of a CTA of the cluster and counts the bytes on a barrier of that CTA, which waits by
// mbarrier_wait_cluster().
__device__ __forceinline__ void cluster_store_async(uint32_t address, float4 v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void cluster_store_async(uint32_t address, float v, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address), "f"(v),
               "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Barrier `id` (1..15) among `threads` threads of the CTA: wait for it, or count as there and go on.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int n>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

// ---- wgmma
// Descriptors of K-major operands in shared memory. Adding (bytes >> 4) moves the start.
// No swizzle: core matrices of 8 rows x 16 bytes, contiguous; the next along K 128 bytes on, the next 8 rows 1,024.
__device__ __forceinline__ uint64_t plain_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(128 >> 4) << 16 |
         static_cast<uint64_t>(1024 >> 4) << 32;
}
// 128-byte swizzle: rows of 64 elements (128 bytes), 8 rows an atom of 1,024 bytes, aligned to 1,024.
__device__ __forceinline__ uint64_t swizzled_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(1) << 16 |
         static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int n>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
// Keeps the compiler from reading accumulators before the wait above it.
template <int n>
__device__ __forceinline__ void wgmma_results(float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; i++) asm volatile("" : "+f"(d[i])::"memory");
}
// d[64 x n] (+)= a[64 x 16] * b[16 x n], all of a warpgroup; `add` 0 ignores the old d. Accumulator i of a lane
// (g = lane / 4, t = lane % 4) of warp w: row 16 w + g + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 t + i % 2.
#define QWEN3_S10(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"
#define QWEN3_L8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define QWEN3_L16 QWEN3_S10() ",%10,%11,%12,%13,%14,%15"
#define QWEN3_L24 QWEN3_S10() "," QWEN3_S10(1) ",%20,%21,%22,%23"
#define QWEN3_L32 QWEN3_S10() "," QWEN3_S10(1) "," QWEN3_S10(2) ",%30,%31"
#define QWEN3_L40 QWEN3_S10() "," QWEN3_S10(1) "," QWEN3_S10(2) "," QWEN3_S10(3)
#define QWEN3_L48 QWEN3_L40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define QWEN3_L64 QWEN3_L40 "," QWEN3_S10(4) "," QWEN3_S10(5) ",%60,%61,%62,%63"
#define QWEN3_L72 QWEN3_L40 "," QWEN3_S10(4) "," QWEN3_S10(5) "," QWEN3_S10(6) ",%70,%71"
#define QWEN3_L80 QWEN3_L40 "," QWEN3_S10(4) "," QWEN3_S10(5) "," QWEN3_S10(6) "," QWEN3_S10(7)
#define QWEN3_L96 QWEN3_L80 "," QWEN3_S10(8) ",%90,%91,%92,%93,%94,%95"
#define QWEN3_L104 QWEN3_L80 "," QWEN3_S10(8) "," QWEN3_S10(9) ",%100,%101,%102,%103"
#define QWEN3_L128 \
  QWEN3_L80        \
  "," QWEN3_S10(8) "," QWEN3_S10(9) "," QWEN3_S10(10) "," QWEN3_S10(11) ",%120,%121,%122,%123,%124,%125,%126,%127"
#define QWEN3_D4(m, i) m(d[i]), m(d[i + 1]), m(d[i + 2]), m(d[i + 3])
#define QWEN3_D8(m, i) QWEN3_D4(m, i), QWEN3_D4(m, i + 4)
#define QWEN3_D16(m, i) QWEN3_D8(m, i), QWEN3_D8(m, i + 8)
#define QWEN3_D24(m, i) QWEN3_D16(m, i), QWEN3_D8(m, i + 16)
#define QWEN3_D32(m, i) QWEN3_D16(m, i), QWEN3_D16(m, i + 16)
#define QWEN3_D48(m, i) QWEN3_D32(m, i), QWEN3_D16(m, i + 32)
#define QWEN3_D64(m, i) QWEN3_D32(m, i), QWEN3_D32(m, i + 32)
#define QWEN3_D72(m, i) QWEN3_D64(m, i), QWEN3_D8(m, i + 64)
#define QWEN3_D96(m, i) QWEN3_D64(m, i), QWEN3_D32(m, i + 64)
#define QWEN3_D104(m, i) QWEN3_D96(m, i), QWEN3_D8(m, i + 96)
#define QWEN3_D128(m, i) QWEN3_D64(m, i), QWEN3_D64(m, i + 64)
// n: columns; c: accumulators per thread; a, b, s: numbers of the operands after them.
#define QWEN3_WGMMA(n, c, a, b, s)                                                                             \
  if constexpr (kN == n) {                                                                                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #s                                                       \
                 ", 0;\n"                                                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" QWEN3_L##c "}, %" #a ", %" #b    \
                                                                                         ", p, 1, 1, 0, 0;\n}" \
                 : QWEN3_D##c("+f", 0)                                                                         \
                 : "l"(descriptor_a), "l"(descriptor_b), "r"(add)                                              \
                 : "memory");                                                                                  \
  }
template <int kN>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], uint64_t descriptor_a, uint64_t descriptor_b, int add) {
  static_assert(kN == 16 || kN == 32 || kN == 48 || kN == 64 || kN == 128 || kN == 144 || kN == 192 || kN == 208 ||
                kN == 256);
  QWEN3_WGMMA(16, 8, 8, 9, 10)
  QWEN3_WGMMA(32, 16, 16, 17, 18)
  QWEN3_WGMMA(48, 24, 24, 25, 26)
  QWEN3_WGMMA(64, 32, 32, 33, 34)
  QWEN3_WGMMA(128, 64, 64, 65, 66)
  QWEN3_WGMMA(144, 72, 72, 73, 74)
  QWEN3_WGMMA(192, 96, 96, 97, 98)
  QWEN3_WGMMA(208, 104, 104, 105, 106)
  QWEN3_WGMMA(256, 128, 128, 129, 130)
}
// The same with a in registers, laid out as for mma_bf16: warp w has rows 16 w .. 16 w + 15. They must stay as they are
// until the wait.
#define QWEN3_WGMMA_A(n, c, a0, a1, a2, a3, b, s)                                          \
  if constexpr (kN == n) {                                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #s                                   \
                 ", 0;\n"                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" QWEN3_L##c   \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, 0;\n}"    \
                 : QWEN3_D##c("+f", 0)                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor_b), "r"(add) \
                 : "memory");                                                              \
  }
template <int kN>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t descriptor_b, int add) {
  static_assert(kN == 32 || kN == 64 || kN == 96 || kN == 128 || kN == 192 || kN == 256);
  QWEN3_WGMMA_A(32, 16, 16, 17, 18, 19, 20, 21)
  QWEN3_WGMMA_A(64, 32, 32, 33, 34, 35, 36, 37)
  QWEN3_WGMMA_A(96, 48, 48, 49, 50, 51, 52, 53)
  QWEN3_WGMMA_A(128, 64, 64, 65, 66, 67, 68, 69)
  QWEN3_WGMMA_A(192, 96, 96, 97, 98, 99, 100, 101)
  QWEN3_WGMMA_A(256, 128, 128, 129, 130, 131, 132, 133)
}
// Keeps the registers of operand a from being written before the wait above it.
__device__ __forceinline__ void wgmma_operands(const uint32_t (&a)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; i++) asm volatile("" ::"r"(a[i / 4][i % 4]) : "memory");
}
// The same with `add` 0, known at compile time: no registers are kept for the old d before it.
#define QWEN3_WGMMA_FIRST(n, c, a, b)                                                                 \
  if constexpr (kN == n) {                                                                            \
    asm volatile(                                                                                     \
        "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                    \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" QWEN3_L##c "}, %" #a ", %" #b    \
                                                                                ", p, 1, 1, 0, 0;\n}" \
        : QWEN3_D##c("=f", 0)                                                                         \
        : "l"(descriptor_a), "l"(descriptor_b)                                                        \
        : "memory");                                                                                  \
  }
template <int kN>
__device__ __forceinline__ void wgmma_first(float (&d)[kN / 2], uint64_t descriptor_a, uint64_t descriptor_b) {
  static_assert(kN == 128 || kN == 192 || kN == 256);
  QWEN3_WGMMA_FIRST(128, 64, 64, 65)
  QWEN3_WGMMA_FIRST(192, 96, 96, 97)
  QWEN3_WGMMA_FIRST(256, 128, 128, 129)
}
#endif  // QWEN3_SM90A

}  // namespace qwen3::cuda
