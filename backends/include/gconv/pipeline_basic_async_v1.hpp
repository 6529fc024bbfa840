// basic_async_v1: one LDS buffer, filled by direct global-to-LDS copies. Per step: read all fragments into registers, wait for the
// block, start the copies of the next tile into the same buffer, multiply from registers, wait for the copies, wait for the block.
// With double_smem_buffer the copies go to the other of two buffers, without the first wait.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct BasicAsyncV1 {
  static constexpr int kLdsBuffers = S::kDoubleBuffer ? 2 : 1, kScratchBytes = 0;
  using Gemm = WaveGemm<S>;
  // Where the fragments of a whole step are too many for registers, the products come first and only then the copies.
  static constexpr bool kHolds = Gemm::kParts * Gemm::kFragmentWords <= S::kFragmentBudget;
  static constexpr int kHeldParts = kHolds ? Gemm::kParts : 1;

  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, Gemm& gemm) {
    typename Mover::Staged staged;
    mover.start(lds, 0, first, staged);
    mover.finish(lds, 0, first, staged);
    hw::barrier();
    typename Gemm::Fragment held[kHeldParts];
    int buffer = 0;
    for (int step = first; step < end; ++step) {
      if constexpr (kHolds) {
        GCONV_UNROLL
        for (int i = 0; i < Gemm::kParts; ++i) gemm.load(held[i], lds.a(buffer), lds.b(buffer), i);
      } else {
        gemm.step(lds.a(buffer), lds.b(buffer));
      }
      if (step + 1 < end) {
        if constexpr (kLdsBuffers == 2) buffer ^= 1;
        else hw::barrier();  // every wave holds its fragments
        mover.start(lds, buffer, step + 1, staged);
      }
      if constexpr (kHolds) {
        GCONV_UNROLL
        for (int i = 0; i < Gemm::kParts; ++i) gemm.multiply(held[i], i);
      }
      if (step + 1 < end) {
        mover.finish(lds, buffer, step + 1, staged);
        hw::barrier();
      }
    }
  }
};

}  // namespace gconv
