// basic_v1: one tile in flight. Per step: issue the global loads of the next tile, wait for the block, multiply the current tile
// from LDS, wait for the block, write the next tile to LDS. One LDS buffer, two barriers a step, staging in registers. With
// double_smem_buffer the next tile goes to the other of two buffers, which nobody reads any more: one barrier a step.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct BasicV1 {
  static constexpr int kLdsBuffers = S::kDoubleBuffer ? 2 : 1, kScratchBytes = 0;

  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, WaveGemm<S>& gemm) {
    typename Mover::Staged staged;
    mover.load(first, staged);
    mover.store(lds, 0, first, staged);
    int buffer = 0;
    for (int step = first + 1; step < end; ++step) {
      mover.load(step, staged);
      hw::barrier();
      gemm.step(lds.a(buffer), lds.b(buffer));
      if constexpr (kLdsBuffers == 2) buffer ^= 1;
      else hw::barrier();
      mover.store(lds, buffer, step, staged);
    }
    hw::barrier();
    gemm.step(lds.a(buffer), lds.b(buffer));
  }
};

}  // namespace gconv
