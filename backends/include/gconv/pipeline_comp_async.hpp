// comp_async: two LDS buffers in turn, filled by direct global-to-LDS copies. While one buffer is multiplied from, the copies into
// the other are under way; one wait for the copies and one barrier a step. Operands that cannot be copied directly go through
// registers at the same points.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct CompAsync {
  static_assert(S::kDoubleBuffer, "comp_async needs double_smem_buffer");
  static constexpr int kLdsBuffers = 2, kScratchBytes = 0;

  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, WaveGemm<S>& gemm) {
    typename Mover::Staged staged;
    mover.start(lds, 0, first, staged);
    mover.finish(lds, 0, first, staged);
    hw::barrier();
    int step = first, buffer = 0;
    for (; step + 1 < end; ++step, buffer ^= 1) {
      mover.start(lds, buffer ^ 1, step + 1, staged);
      gemm.step(lds.a(buffer), lds.b(buffer));
      mover.finish(lds, buffer ^ 1, step + 1, staged);
      hw::barrier();
    }
    gemm.step(lds.a(buffer), lds.b(buffer));
  }
};

}  // namespace gconv
