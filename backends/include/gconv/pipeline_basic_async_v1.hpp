// basic_async_v1: one LDS buffer, filled by direct global-to-LDS copies. Per step: read all fragments into registers, wait for the
// block, start the copies of the next tile into the same buffer, multiply from registers, wait for the copies, wait for the block.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct BasicAsyncV1 {
  static constexpr int kLdsBuffers = 1, kScratchBytes = 0;
  using Gemm = WaveGemm<S>;

  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, Gemm& gemm) {
    typename Mover::Staged staged;
    mover.start(lds, 0, first, staged);
    mover.finish(lds, 0, first, staged);
    hw::barrier();
    typename Gemm::Fragment held[Gemm::kParts];
    for (int step = first; step < end; ++step) {
      GCONV_UNROLL
      for (int i = 0; i < Gemm::kParts; ++i) gemm.load(held[i], lds.a(), lds.b(), i);
      if (step + 1 < end) {
        hw::barrier();  // every wave holds its fragments
        mover.start(lds, 0, step + 1, staged);
      }
      GCONV_UNROLL
      for (int i = 0; i < Gemm::kParts; ++i) gemm.multiply(held[i], i);
      if (step + 1 < end) {
        mover.finish(lds, 0, step + 1, staged);
        hw::barrier();
      }
    }
  }
};

}  // namespace gconv
