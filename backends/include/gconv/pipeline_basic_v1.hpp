// basic_v1: one tile in flight. Per step: issue the global loads of the next tile, wait for the block, multiply the current tile
// from LDS, wait for the block, write the next tile to LDS. One LDS buffer, two barriers a step, staging in registers.
#pragma once

#include "wave_gemm.hpp"

namespace gconv {

template <class S>
struct BasicV1 {
  static constexpr int kLdsBuffers = 1;

  template <class LoaderA, class LoaderB>
  static GCONV_DEVICE void run(const typename LoaderA::Operand& a, const typename LoaderB::Operand& b, int first, int steps,
                               typename S::In* lds_a, typename S::In* lds_b, WaveGemm<S>& gemm) {
    if (steps <= 0) return;  // an empty reduction: the sums stay zero
    LoaderA load_a;
    LoaderB load_b;
    load_a.init(a);
    load_b.init(b);
    load_a.load(a, first);
    load_b.load(b, first);
    load_a.store(a, lds_a, first);
    load_b.store(b, lds_b, first);
    for (int step = first + 1; step < first + steps; ++step) {
      load_a.load(a, step);
      load_b.load(b, step);
      hw::barrier();
      gemm.step(lds_a, lds_b);
      hw::barrier();
      load_a.store(a, lds_a, step);
      load_b.store(b, lds_b, step);
    }
    hw::barrier();
    gemm.step(lds_a, lds_b);
  }
};

}  // namespace gconv
