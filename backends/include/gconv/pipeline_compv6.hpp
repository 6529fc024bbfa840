// compv6: three tiles on their way, one in LDS and two in two sets of staging registers, the loop unrolled by two to name them. Inside
// a step the reads of the next part's fragments run ahead of the products of the present one; the last part's fragments are already
// in registers when LDS takes the next tile, so its products cover the exchange.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct CompV6 {
  static constexpr int kLdsBuffers = 1, kScratchBytes = 0;
  using Gemm = WaveGemm<S>;
  using Fragment = typename Gemm::Fragment;

  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, Gemm& gemm) {
    typename Mover::Staged staged[2];
    mover.load(first, staged[0]);
    mover.store(lds, 0, first, staged[0]);
    if (first + 1 < end) mover.load(first + 1, staged[1]);
    if (first + 2 < end) mover.load(first + 2, staged[0]);
    hw::barrier();
    Fragment fragment[2];
    gemm.load(fragment[0], lds.a(), lds.b(), 0);
    for (int step = first; step < end; step += 2) {
      advance<0>(mover, lds, step, end, staged[1], gemm, fragment);
      if (step + 1 < end) advance<Gemm::kParts % 2>(mover, lds, step + 1, end, staged[0], gemm, fragment);
      // An odd number of parts leaves the first fragment of a step in alternating registers; two steps restore the order.
    }
  }

 private:
  // `next` holds the tile of step + 1; the step's first fragment is in fragment[Start].
  template <int Start, class Mover, class Lds>
  static GCONV_DEVICE void advance(const Mover& mover, const Lds& lds, int step, int end, typename Mover::Staged& next, Gemm& gemm,
                                   Fragment (&fragment)[2]) {
    GCONV_UNROLL
    for (int i = 0; i + 1 < Gemm::kParts; ++i) {
      gemm.load(fragment[(Start + i + 1) % 2], lds.a(), lds.b(), i + 1);
      gemm.multiply(fragment[(Start + i) % 2], i);
    }
    constexpr int last = (Start + Gemm::kParts - 1) % 2;
    if (step + 1 < end) {
      hw::barrier();  // every wave has read its last fragment
      mover.store(lds, 0, step + 1, next);
      if (step + 3 < end) mover.load(step + 3, next);
      hw::barrier();
      gemm.load(fragment[1 - last], lds.a(), lds.b(), 0);
    }
    gemm.multiply(fragment[last], Gemm::kParts - 1);
  }
};

}  // namespace gconv
