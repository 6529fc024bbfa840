// What one wave computes: its part of the block's tile, from operand tiles in LDS into accumulator registers.
#pragma once

#include "fragment.hpp"
#include "window.hpp"

namespace gconv {

template <class S>
struct WaveGemm {
  using I = typename S::Instruction;
  using In = typename S::In;
  // Waves along n are dealt over the merged groups first, then over the columns of a group.
  static constexpr int kWavesG = gcd_of(S::kMerge, S::kWavesN), kWavesInGroup = S::kWavesN / kWavesG;
  static constexpr int GI = S::kMerge / kWavesG, MI = S::kM / (S::kWavesM * I::M), NI = S::kN / (kWavesInGroup * I::N), KI = S::kK / I::K;
  static_assert(MI * S::kWavesM * I::M == S::kM && NI * kWavesInGroup * I::N == S::kN && KI * I::K == S::kK,
                "the block tile is a whole number of wave tiles");
  static constexpr int kPitch = S::kK + S::kPad;

  float acc[GI][MI][NI][I::kAcc];
  int wave_m, wave_g, wave_n;  // this wave's place in the block
  int a_first, b_first;
  int a_row[MI];  // window staging: where each row's first pixel is

  GCONV_DEVICE WaveGemm() {
    int wave = S::kWaveGroups == 1 ? hw::wave_id() : hw::wave_id() % (S::kWavesM * S::kWavesN);
    wave_m = wave % S::kWavesM;
    wave_g = wave / S::kWavesM % kWavesG * GI;
    wave_n = wave / S::kWavesM / kWavesG;
    b_first = (wave_g * S::kN + wave_n * (NI * I::N)) * kPitch + I::b_offset(kPitch);
    if constexpr (S::kWindow) find_rows();
    else a_first = (wave_g * S::kM + wave_m * (MI * I::M)) * kPitch + I::a_offset(kPitch);
    GCONV_UNROLL
    for (int g = 0; g < GI; ++g)
      GCONV_UNROLL
      for (int m = 0; m < MI; ++m)
        GCONV_UNROLL
        for (int n = 0; n < NI; ++n)
          GCONV_UNROLL
          for (int e = 0; e < I::kAcc; ++e) acc[g][m][n][e] = 0.0f;
  }

  // Multiplies one K step: A tile [group][row][k] at `a`, B tile [group][column][k] at `b`.
  // Interwave: the waves of a block multiply together and at raised priority, while other blocks move data.
  GCONV_DEVICE void step(const In* a, const In* b) {
    if constexpr (S::kInterwave) {
      hw::barrier();
      hw::raise_priority();
    }
    GCONV_UNROLL
    for (int i = 0; i < kParts; ++i) {
      Fragment f;
      load(f, a, b, i);
      multiply(f, i);
      // Half waves have half the registers for a tile: reads may not run further ahead than one part.
      if constexpr (hw::kWave == 32) GCONV_SCHED_BARRIER();
    }
    if constexpr (S::kInterwave) hw::lower_priority();
  }

  // A K step in parts of one instruction's depth in one group: pipelines that interleave reads and products go part by part.
  static constexpr int kParts = GI * KI, kFragmentWords = MI * I::kA + NI * I::kB;
  struct Fragment {
    unsigned a[MI][I::kA], b[NI][I::kB];
  };
  GCONV_DEVICE void load(Fragment& f, const In* a, const In* b, int part) const {
    int g = part / KI, k = part % KI;
    if constexpr (S::kWindow) load_window_rows(f.a, a, g, k);
    else load_rows(f.a, a + a_first + g * S::kM * kPitch + k * I::K);
    load_columns(f.b, b + b_first + g * S::kN * kPitch + k * I::K);
  }
  GCONV_DEVICE void multiply(const Fragment& f, int part) { multiply(f.a, f.b, acc[part / KI]); }

 private:
  // The rows of this lane in the window; rows past the box are computed from its first pixel and never stored.
  GCONV_DEVICE void find_rows() {
    int lane_k = I::a_offset(0), lane_row = I::a_offset(1) - lane_k;
    GCONV_UNROLL
    for (int m = 0; m < MI; ++m) {
      int row = (wave_m * MI + m) * I::M + lane_row;
      a_row[m] = (row < Window<S>::kRows ? Window<S>::pixel_of_row(row) : 0) * Window<S>::kPitch + lane_k + wave_g * S::kChunk;
    }
  }
  GCONV_DEVICE void load_window_rows(unsigned (&fa)[MI][I::kA], const In* a, int g, int k) const {
    int offset = Window<S>::tap_offset(k * I::K / S::kChunk) + g * S::kChunk + k * I::K % S::kChunk;
    GCONV_UNROLL
    for (int m = 0; m < MI; ++m) load_a<I, 0>(fa[m], a + a_row[m] + offset);
  }
  static GCONV_DEVICE void load_rows(unsigned (&fa)[MI][I::kA], const In* a) {
    GCONV_UNROLL
    for (int m = 0; m < MI; ++m) load_a<I, kPitch>(fa[m], a + m * I::M * kPitch);
  }
  static GCONV_DEVICE void load_columns(unsigned (&fb)[NI][I::kB], const In* b) {
    GCONV_UNROLL
    for (int n = 0; n < NI; ++n) load_b<I, kPitch>(fb[n], b + n * I::N * kPitch);
  }
  static GCONV_DEVICE void multiply(const unsigned (&fa)[MI][I::kA], const unsigned (&fb)[NI][I::kB], float (&c)[MI][NI][I::kAcc]) {
    GCONV_UNROLL
    for (int m = 0; m < MI; ++m)
      GCONV_UNROLL
      for (int n = 0; n < NI; ++n) I::multiply(c[m][n], fa[m], fb[n]);
  }
};

}  // namespace gconv
