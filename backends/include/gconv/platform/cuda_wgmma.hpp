// Warpgroup matrix instructions of sm_90a and what goes with them; the instructions themselves are written out by the lowering, which knows
// the number of columns. A warpgroup is 4 waves that start at a multiple of 4.
#pragma once

namespace gconv {
namespace hw {

__device__ __forceinline__ unsigned operand_address(const void* p) { return lds_address(p); }

// Before the first product of a group: orders earlier accesses to registers and LDS before it.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// The products since the last call become one group.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most so many groups are unfinished.
template <int Groups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
}
// The sums are read after whatever stands before this call.
template <int Count>
__device__ __forceinline__ void wgmma_take(float (&sums)[Count]) {
  GCONV_UNROLL
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// A value that is the same in all lanes, told to the compiler: operands are described in uniform registers.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// The registers of each of the warpgroup's threads from now on: fewer, or as soon as others have given them up, more.
template <int Count>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}


}  // namespace hw
}  // namespace gconv
