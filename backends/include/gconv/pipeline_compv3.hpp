// compv3: two tiles on their way, one LDS buffer. The fragments of the current tile are read into registers as a whole, so that LDS
// takes the next tile (already staged) and the loads after it are issued while the matrix instructions run. On AMD the scheduler is
// told the order: LDS writes, global loads and matrix instructions alternate, then the reads of the next fragments. With
// double_smem_buffer the next tile goes to the other of two buffers, without the wait for the reads of this one.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct CompV3 {
  static constexpr int kLdsBuffers = S::kDoubleBuffer ? 2 : 1, kScratchBytes = 0;
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
    int step = first, buffer = 0;
    read(gemm, lds, buffer, held);
    for (; step + 2 < end; ++step) {
      free_buffer(buffer);
      mover.store(lds, buffer, step + 1, staged);
      mover.load(step + 2, staged);
      multiply(gemm, held);
      interleave();
      hw::barrier();  // the next tile is complete
      read(gemm, lds, buffer, held);
    }
    if (step + 1 < end) {
      free_buffer(buffer);
      mover.store(lds, buffer, step + 1, staged);
      multiply(gemm, held);
      hw::barrier();
      read(gemm, lds, buffer, held);
    }
    multiply(gemm, held);
  }

 private:
  // A buffer for the next tile: the other one, or the same as soon as every wave holds its fragments.
  static GCONV_DEVICE void free_buffer(int& buffer) {
    if constexpr (kLdsBuffers == 2) buffer ^= 1;
    else hw::barrier();
  }
  template <class Lds>
  static GCONV_DEVICE void read(Gemm& gemm, const Lds& lds, int buffer, typename Gemm::Fragment (&held)[kHeldParts]) {
    if constexpr (kHolds) {
      GCONV_UNROLL
      for (int i = 0; i < Gemm::kParts; ++i) gemm.load(held[i], lds.a(buffer), lds.b(buffer), i);
    } else {
      gemm.step(lds.a(buffer), lds.b(buffer));
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
