// compv5: two groups of waves alternate. In each phase one group multiplies its tile from its own LDS buffer while the other writes
// its next tile there and issues the loads of the one after; then they swap. Group g takes the steps first + g, first + g + 2, ...;
// both cover the whole block tile, and at the end the second group's sums reach the first through LDS.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct CompV5 {
  static_assert(S::kWaveGroups == 2, "compv5 needs num_wave_groups = 2");
  using Gemm = WaveGemm<S>;
  static constexpr int kThreads = S::kWavesM * S::kWavesN * hw::kWave;  // of one group
  static constexpr int kLdsBuffers = 2, kScratchBytes = kThreads * Gemm::I::kAcc * 4;

  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, Gemm& gemm) {
    int group = hw::wave_id() / (S::kWavesM * S::kWavesN);
    typename Mover::Staged staged;
    if (first + group < end) mover.load(first + group, staged);
    // Phase p: group (p + 1) % 2 multiplies step p - 1, the other one fetches step p.
    for (int step = first; step <= end; ++step) {
      if ((step - first) % 2 == group) fetch(mover, lds, group, step, end, staged);
      else if (step > first) gemm.step(lds.a(group), lds.b(group));
      hw::barrier();
    }
    gather(gemm, group, (float*)lds.memory);
  }

 private:
  template <class Mover, class Lds>
  static GCONV_DEVICE void fetch(const Mover& mover, const Lds& lds, int group, int step, int end, typename Mover::Staged& staged) {
    if (step >= end) return;
    mover.store(lds, group, step, staged);
    if (step + 2 < end) mover.load(step + 2, staged);
  }
  // One instruction's accumulators at a time, lane by lane.
  static GCONV_DEVICE void gather(Gemm& gemm, int group, float* scratch) {
    float* mine = scratch + hw::thread_id() % kThreads;
    GCONV_UNROLL
    for (int g = 0; g < Gemm::GI; ++g)
      GCONV_UNROLL
      for (int m = 0; m < Gemm::MI; ++m)
        GCONV_UNROLL
        for (int n = 0; n < Gemm::NI; ++n) {
          GCONV_UNROLL
          for (int e = 0; e < Gemm::I::kAcc; ++e)
            if (group == 1) mine[e * kThreads] = gemm.acc[g][m][n][e];
          hw::barrier();
          GCONV_UNROLL
          for (int e = 0; e < Gemm::I::kAcc; ++e)
            if (group == 0) gemm.acc[g][m][n][e] += mine[e * kThreads];
          hw::barrier();
        }
  }
};

}  // namespace gconv
