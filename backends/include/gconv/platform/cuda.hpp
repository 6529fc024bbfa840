// The platform layer for NVIDIA GPUs: nvcc, PTX for what CUDA C++ has no spelling for.
#pragma once

#define GCONV_DEVICE __device__ __forceinline__
#define GCONV_DEVICE_INLINE GCONV_DEVICE
#define GCONV_KERNEL extern "C" __global__
#define GCONV_LAUNCH_BOUNDS(threads, blocks_per_cu) __launch_bounds__(threads, blocks_per_cu)
// One dynamic array serves all block-shared arrays of a kernel, at offsets known at compile time: static shared memory ends at 48 KB.
extern __shared__ __align__(16) unsigned char gconv_dynamic_lds[];
#define GCONV_LDS(T, name, count, byte_offset) T* name = (T*)(gconv_dynamic_lds + (byte_offset))
#define GCONV_UNROLL _Pragma("unroll")
#define GCONV_KEEP_LOOP _Pragma("unroll 1")

namespace gconv {
namespace hw {

constexpr int kWave = 32;

__device__ __forceinline__ int thread_id() { return threadIdx.x; }
__device__ __forceinline__ int block_id_x() { return blockIdx.x; }
__device__ __forceinline__ int block_id_y() { return blockIdx.y; }
__device__ __forceinline__ int block_id_z() { return blockIdx.z; }
__device__ __forceinline__ int lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ int wave_id() { return threadIdx.x >> 5; }
__device__ __forceinline__ void barrier() { __syncthreads(); }
__device__ __forceinline__ void raise_priority() {}
__device__ __forceinline__ void lower_priority() {}
#define GCONV_SCHED_GROUP_BARRIER(mask, size, group)
#define GCONV_SCHED_BARRIER()
// A launch that overlaps the one before it (plan.Launch.overlaps): the first kernel lets it start, the second waits for what the first
// has written.
__device__ __forceinline__ void let_launches_start() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_launches() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ bool any_lane(bool value) { return __any_sync(0xffffffffu, value) != 0; }
// Clusters of blocks, consecutive in x: they meet, and read from the LDS of block `rank` what it has at the address of their own.
#define GCONV_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define GCONV_CLUSTERS 1
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void load_of_block(float (&to)[4], const void* own, int rank) {
  asm volatile("{\n.reg .u32 at;\nmapa.shared::cluster.u32 at, %4, %5;\nld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];\n}"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"((unsigned)__cvta_generic_to_shared(own)), "r"(rank) : "memory");
}
#endif
// The same value, which the compiler then keeps in a register instead of computing it again where it is used.
template <class T>
__device__ __forceinline__ T kept(T value) {
  static_assert(sizeof(T) == 4, "one register");
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ unsigned shfl_xor(unsigned v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
// Byte i of the result is the byte of `value` that digit i of the selector names, 4: zero.
__device__ __forceinline__ unsigned permute(unsigned value, unsigned selector) { return __byte_perm(value, 0, selector); }
__device__ __forceinline__ unsigned multiply_high(unsigned a, unsigned b) { return __umulhi(a, b); }

__device__ __forceinline__ float f16_to_float(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ unsigned short float_to_f16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ __forceinline__ float bf16_to_float(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
__device__ __forceinline__ unsigned short float_to_bf16(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
// Two values in one register, the first in its low half.
__device__ __forceinline__ unsigned float_to_f16x2(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ unsigned float_to_bf16x2(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

template <int Bytes, class Offset>
__device__ __forceinline__ Raw<Bytes> load_or_zero(const void* base, Offset offset, bool valid) {
  Raw<Bytes> value = {};
  if (valid) value = *(const Raw<Bytes>*)((const char*)base + offset);
  return value;
}

__device__ __forceinline__ unsigned lds_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(lds_address(row)) : "memory");
}
// An address in LDS that is worth a register of its own, and the same matrices from there.
typedef unsigned LdsAddress;
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], LdsAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(lds_address(row)) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(unsigned (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(lds_address(row)) : "memory");
}

// Direct copies to shared memory (cp.async): see platform/hip.hpp for the contract.
constexpr int kAsyncBytes = 16;
constexpr bool kAsyncWideOffsets = true;
template <class Offset>
__device__ __forceinline__ void async_copy_or_zero(void* lds_wave_base, const void* base, Offset offset, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(lds_address(lds_wave_base) + lane_id() * 16),
               "l"((const char*)base + (valid ? offset : 0)), "r"(valid ? 16 : 0) : "memory");
}
// The same for 8 or 16 bytes of one lane, wherever it likes.
template <int Bytes>
__device__ __forceinline__ void async_copy_to(void* lds, const void* from, bool valid) {
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(lds_address(lds)), "l"(from), "r"(valid ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(lds_address(lds)), "l"(from), "r"(valid ? 8 : 0) : "memory");
}
__device__ __forceinline__ void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Groups>
__device__ __forceinline__ void async_wait_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}
__device__ __forceinline__ void async_wait() { async_wait_but<0>(); }

#define GCONV_MMA_K16(name, type)                                                                            \
  __device__ __forceinline__ void name(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {      \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                        \
  }
GCONV_MMA_K16(mma_m16n8k16_f16, "f16")
GCONV_MMA_K16(mma_m16n8k16_bf16, "bf16")
#undef GCONV_MMA_K16
#define GCONV_MMA_K8(name, type)                                                                             \
  __device__ __forceinline__ void name(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {      \
    asm("mma.sync.aligned.m16n8k8.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));                 \
  }
GCONV_MMA_K8(mma_m16n8k8_f16, "f16")
GCONV_MMA_K8(mma_m16n8k8_bf16, "bf16")
#undef GCONV_MMA_K8

__device__ __forceinline__ unsigned to_tf32(unsigned bits) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(to_tf32(a[0])), "r"(to_tf32(a[1])), "r"(to_tf32(a[2])), "r"(to_tf32(a[3])), "r"(to_tf32(b[0])), "r"(to_tf32(b[1])));
}

}  // namespace hw
}  // namespace gconv
