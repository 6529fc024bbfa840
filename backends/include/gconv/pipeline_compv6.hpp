// compv6: three tiles on their way, one in LDS and two in two sets of staging registers, the loop unrolled by two to name them. Inside
// a step the reads of the next part's fragments run ahead of the products of the present one; the last part's fragments are already
// in registers when LDS takes the next tile, so its products cover the exchange. With double_smem_buffer the next tile goes to the
// other of two buffers, without the wait for the reads of this one.
#pragma once

#include "pipeline.hpp"

namespace gconv {

template <class S>
struct CompV6 {
  static constexpr int kLdsBuffers = S::kDoubleBuffer ? 2 : 1, kScratchBytes = 0;
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
    GCONV_KEEP_LOOP
    for (int step = first; step < end; step += 2) {
      advance<0, 0>(mover, lds, step, end, staged[1], gemm, fragment);
      if (step + 1 < end) advance<Gemm::kParts % 2, kLdsBuffers - 1>(mover, lds, step + 1, end, staged[0], gemm, fragment);
      // An odd number of parts leaves the first fragment of a step in alternating registers; two steps restore the order.
    }
  }

 private:
  // `next` holds the tile of step + 1; the step's tile is in LDS buffer Buffer, its first fragment in fragment[Start].
  template <int Start, int Buffer, class Mover, class Lds>
  static GCONV_DEVICE void advance(const Mover& mover, const Lds& lds, int step, int end, typename Mover::Staged& next, Gemm& gemm,
                                   Fragment (&fragment)[2]) {
    GCONV_UNROLL
    for (int i = 0; i + 1 < Gemm::kParts; ++i) {
      gemm.load(fragment[(Start + i + 1) % 2], lds.a(Buffer), lds.b(Buffer), i + 1);
      gemm.multiply(fragment[(Start + i) % 2], i);
      GCONV_SCHED_BARRIER();  // no more than two fragments at a time
    }
    constexpr int last = (Start + Gemm::kParts - 1) % 2, other = kLdsBuffers - 1 - Buffer;
    if (step + 1 < end) {
      if constexpr (kLdsBuffers == 1) hw::barrier();  // every wave has read its last fragment
      mover.store(lds, other, step + 1, next);
      if (step + 3 < end) mover.load(step + 3, next);
      hw::barrier();
      gemm.load(fragment[1 - last], lds.a(other), lds.b(other), 0);
    }
    gemm.multiply(fragment[last], Gemm::kParts - 1);
  }
};

}  // namespace gconv
