// The copy engine on NVIDIA GPUs; ../copy_engine.hpp has the contract.
#pragma once

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define GCONV_COPY_ENGINE 1
#endif
#define GCONV_TENSOR_MAP(i) , const __grid_constant__ gconv::hw::TensorMap map##i
#define GCONV_TENSOR_MAP_ARGUMENT(i) , map##i

namespace gconv {
namespace hw {

// A CUtensorMap.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

__device__ __forceinline__ void wave_sync() { __syncwarp(); }

#if defined(GCONV_COPY_ENGINE)
typedef unsigned long long Mbarrier;

__device__ __forceinline__ void mbarrier_init(Mbarrier& b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(lds_address(&b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void mbarrier_expect(Mbarrier& b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(lds_address(&b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(Mbarrier& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(lds_address(&b)) : "memory");
}
__device__ __forceinline__ bool mbarrier_try(Mbarrier& b, int parity) {
  unsigned done;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done) : "r"(lds_address(&b)), "r"(parity) : "memory");
  return done != 0;
}
__device__ __forceinline__ void mbarrier_wait(Mbarrier& b, int parity) {
  while (!mbarrier_try(b, parity)) {
  }
}

#define GCONV_LOAD_BOX(rank, coordinates, ...)                                                                                  \
  asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" coordinates \
               "}], [%2];" ::"r"(lds_address(lds)), "l"(&map), "r"(lds_address(&b)), __VA_ARGS__ : "memory")
__device__ __forceinline__ void load_box(void* lds, const TensorMap& map, Mbarrier& b, int c0, int c1) {
  GCONV_LOAD_BOX("2d", "%3, %4", "r"(c0), "r"(c1));
}
__device__ __forceinline__ void load_box(void* lds, const TensorMap& map, Mbarrier& b, int c0, int c1, int c2) {
  GCONV_LOAD_BOX("3d", "%3, %4, %5", "r"(c0), "r"(c1), "r"(c2));
}
__device__ __forceinline__ void load_box(void* lds, const TensorMap& map, Mbarrier& b, int c0, int c1, int c2, int c3) {
  GCONV_LOAD_BOX("4d", "%3, %4, %5, %6", "r"(c0), "r"(c1), "r"(c2), "r"(c3));
}
__device__ __forceinline__ void load_box(void* lds, const TensorMap& map, Mbarrier& b, int c0, int c1, int c2, int c3, int c4) {
  GCONV_LOAD_BOX("5d", "%3, %4, %5, %6, %7", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4));
}
#undef GCONV_LOAD_BOX

__device__ __forceinline__ void prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

}  // namespace hw
}  // namespace gconv
