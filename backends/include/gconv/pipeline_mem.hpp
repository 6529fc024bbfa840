// mem: for problems bound by memory. kPrefetch (2 to 8) tiles are on their way in registers at any time, behind the one in LDS.
// Per step: write the oldest staged tile to LDS, reissue its registers' loads kPrefetch steps ahead, multiply. One LDS buffer, two
// barriers a step; with double_smem_buffer two in turn and one barrier. The loop is unrolled over the staging registers, which must
// be named at compile time.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct Mem {
  static constexpr int kLdsBuffers = S::kDoubleBuffer ? 2 : 1, kScratchBytes = 0, kStages = S::kPrefetch;

  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, WaveGemm<S>& gemm) {
    typename Mover::Staged staged[kStages];
    GCONV_UNROLL
    for (int i = 0; i < kStages; ++i)
      if (first + i < end) mover.load(first + i, staged[i]);
    int buffer = 0;
    GCONV_KEEP_LOOP
    for (int base = first; base < end; base += kStages) {
      GCONV_UNROLL
      for (int i = 0; i < kStages; ++i) {
        int step = base + i;
        if (step < end) advance(mover, lds, buffer, step, end, staged[i], gemm);
        if constexpr (kLdsBuffers == 2) buffer ^= 1;
      }
    }
  }

 private:
  template <class Mover, class Lds>
  static GCONV_DEVICE void advance(const Mover& mover, const Lds& lds, int buffer, int step, int end, typename Mover::Staged& staged,
                                   WaveGemm<S>& gemm) {
    if constexpr (kLdsBuffers == 1) hw::barrier();  // the previous tile is no longer read
    mover.store(lds, buffer, step, staged);
    if (step + kStages < end) mover.load(step + kStages, staged);
    hw::barrier();
    gemm.step(lds.a(buffer), lds.b(buffer));
  }
};

}  // namespace gconv
