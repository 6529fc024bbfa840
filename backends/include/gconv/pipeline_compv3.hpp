// compv3: two tiles on their way, one LDS buffer. The fragments of the current tile are read into registers as a whole, so that LDS
// takes the next tile (already staged) and the loads after it are issued while the matrix instructions run. On AMD the scheduler is
// told the order: LDS writes, global loads and matrix instructions alternate, then the reads of the next fragments.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct CompV3 {
  static constexpr int kLdsBuffers = 1, kScratchBytes = 0;
  using Gemm = WaveGemm<S>;
  // Fragments of a whole step are held in registers where they are few enough; else the products follow the reads part by part.
  static constexpr int kHeldWords = Gemm::kParts * Gemm::kFragmentWords;
  static constexpr bool kHolds = kHeldWords <= S::kFragmentBudget;
  static constexpr int kHeldParts = kHolds ? Gemm::kParts : 1;

  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, Gemm& gemm) {
    typename Mover::Staged staged;
    mover.load(first, staged);
    mover.store(lds, 0, first, staged);
    if (first + 1 < end) mover.load(first + 1, staged);
    hw::barrier();
    typename Gemm::Fragment held[kHeldParts];
    read(gemm, lds, held);
    int step = first;
    for (; step + 2 < end; ++step) {
      hw::barrier();  // every wave holds its fragments
      mover.store(lds, 0, step + 1, staged);
      mover.load(step + 2, staged);
      multiply(gemm, held);
      interleave();
      hw::barrier();  // the next tile is complete
      read(gemm, lds, held);
    }
    if (step + 1 < end) {
      hw::barrier();
      mover.store(lds, 0, step + 1, staged);
      multiply(gemm, held);
      hw::barrier();
      read(gemm, lds, held);
    }
    multiply(gemm, held);
  }

 private:
  template <class Lds>
  static GCONV_DEVICE void read(Gemm& gemm, const Lds& lds, typename Gemm::Fragment (&held)[kHeldParts]) {
    if constexpr (kHolds) {
      GCONV_UNROLL
      for (int i = 0; i < Gemm::kParts; ++i) gemm.load(held[i], lds.a(), lds.b(), i);
    } else {
      gemm.step(lds.a(), lds.b());
    }
  }
  static GCONV_DEVICE void multiply(Gemm& gemm, const typename Gemm::Fragment (&held)[kHeldParts]) {
    if constexpr (kHolds) {
      GCONV_UNROLL
      for (int i = 0; i < Gemm::kParts; ++i) gemm.multiply(held[i], i);
    }
  }
  static GCONV_DEVICE void interleave() {
    if constexpr (kHolds) {
      GCONV_UNROLL
      for (int i = 0; i < Gemm::kParts; ++i) {
        GCONV_SCHED_GROUP_BARRIER(kSchedMfma, 1, 0);
        GCONV_SCHED_GROUP_BARRIER(kSchedDsWrite, 1, 0);
        GCONV_SCHED_GROUP_BARRIER(kSchedMfma, 1, 0);
        GCONV_SCHED_GROUP_BARRIER(kSchedVmemRead, 1, 0);
        GCONV_SCHED_GROUP_BARRIER(kSchedMfma, Gemm::MI * Gemm::NI - 2, 0);
      }
    }
  }
};

}  // namespace gconv
