// compv4: two LDS buffers in turn (ping-pong). While one buffer is multiplied from, the other is filled from registers, and the tile
// after that is on its way from global memory. One barrier a step.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct CompV4 {
  static_assert(S::kDoubleBuffer, "compv4 needs double_smem_buffer");
  static constexpr int kLdsBuffers = 2, kScratchBytes = 0;

  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, WaveGemm<S>& gemm) {
    typename Mover::Staged staged;
    mover.load(first, staged);
    mover.store(lds, 0, first, staged);
    if (first + 1 < end) mover.load(first + 1, staged);
    hw::barrier();
    int step = first, buffer = 0;
    for (; step + 2 < end; ++step, buffer ^= 1) {
      mover.store(lds, buffer ^ 1, step + 1, staged);
      mover.load(step + 2, staged);
      gemm.step(lds.a(buffer), lds.b(buffer));
      hw::barrier();
    }
    if (step + 1 < end) {
      mover.store(lds, buffer ^ 1, step + 1, staged);
      gemm.step(lds.a(buffer), lds.b(buffer));
      hw::barrier();
      buffer ^= 1;
    }
    gemm.step(lds.a(buffer), lds.b(buffer));
  }
};

}  // namespace gconv
