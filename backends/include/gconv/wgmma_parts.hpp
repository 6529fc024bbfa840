// What the kernels on warpgroup matrix instructions share: operand descriptors, rings of stages, and the way of sums to memory.
#pragma once

#include "conv_operands.hpp"
#include "copy_engine.hpp"

#if defined(GCONV_PLATFORM_CUDA)
#include "platform/cuda_wgmma.hpp"

namespace gconv {

constexpr int kLine = 128;   // bytes of one line of an operand in LDS, swizzled by the copy engine
constexpr int kChunk = 64;   // 16-bit channels of a line

// The first place for operands in an array of LDS; 1024 bytes more than the operands need are there.
GCONV_DEVICE unsigned char* aligned_operands(unsigned char* lds) { return lds + (1024 - hw::lds_address(lds) % 1024) % 1024; }

// Descriptors of operands in LDS (PTX ISA, matrix descriptor format) but for the start, which is added: address / 16. Distances are in units
// of 16 bytes too; the swizzle is of 128 bytes. Operands are at multiples of 1024 bytes, or any number of lines from there.
// Lines along the reduction: 8 lines follow one another, the next 8 are `run` bytes away.
GCONV_DEVICE unsigned long long line_operand(int run) {
  return (unsigned long long)1 << 16 | (unsigned long long)(run >> 4) << 32 | (unsigned long long)1 << 62;
}
// Lines along rows or columns, one for each k: 8 k follow one another, the next 8 are `run` bytes away, the next 64 rows `block` bytes.
GCONV_DEVICE unsigned long long column_operand(int run, int block) {
  return (unsigned long long)(block >> 4) << 16 | (unsigned long long)(run >> 4) << 32 | (unsigned long long)1 << 62;
}

// Stages' barriers in LDS: those that say "full", then those that say "empty".
template <int Stages>
struct Barriers {
  static constexpr int kBytes = 2 * Stages * (int)sizeof(hw::Mbarrier);
  hw::Mbarrier* base;
  GCONV_DEVICE hw::Mbarrier& full(int stage) const { return base[stage]; }
  GCONV_DEVICE hw::Mbarrier& empty(int stage) const { return base[Stages + stage]; }
  GCONV_DEVICE void init(int consumers) const {
    for (int stage = 0; stage < Stages; ++stage) {
      hw::mbarrier_init(full(stage), 1);
      hw::mbarrier_init(empty(stage), consumers);
    }
  }
};

// One side's place in a ring of stages.
template <int Stages>
struct Ring {
  Barriers<Stages> barriers;
  int index = 0, phase;
  GCONV_DEVICE Ring(Barriers<Stages> b, int first) : barriers(b), phase(first) {}
  GCONV_DEVICE void next() {
    if (++index == Stages) {
      index = 0;
      phase ^= 1;
    }
  }
  // The round that has just ended brought nothing new: its stages are in the phase that they were in.
  GCONV_DEVICE void skip_round() { phase ^= 1; }
  // Producer: waits until the stage is empty and announces `bytes`; the barrier that the copies arrive at.
  GCONV_DEVICE hw::Mbarrier& take(int bytes) const {
    hw::mbarrier_wait(barriers.empty(index), phase);
    hw::mbarrier_expect(barriers.full(index), bytes);
    return barriers.full(index);
  }
  // Consumer: waits until the stage is full.
  GCONV_DEVICE void wait() const { hw::mbarrier_wait(barriers.full(index), phase); }
  // Consumer: each warp gives the stage before the present one back, or all of them.
  GCONV_DEVICE void give_before() const {
    if (hw::lane_id() == 0) hw::mbarrier_arrive(barriers.empty(index == 0 ? Stages - 1 : index - 1));
  }
  GCONV_DEVICE void give_all() const {
    if (hw::lane_id() == 0)
      for (int stage = 0; stage < Stages; ++stage) hw::mbarrier_arrive(barriers.empty(stage));
  }
};

// A warp's 16 rows of a 64 x N tile of sums to memory, 64 columns (128 bytes of LDS and more) at a time.
template <class Out, int N>
struct WgmmaStore {
  static constexpr int kColumns = 64, kSize = (int)sizeof(Out), kVec = 16 / kSize, kPitch = kColumns * kSize + 16, kBytes = 16 * kPitch;
  static constexpr int kVectors = kColumns / kVec, kRows = hw::kWave / kVectors;  // vectors of a row; rows at once

  // element(row): of the tile's rows; channel0: of column 0; columns: how many there are.
  template <class Epilogue, class Element>
  static GCONV_DEVICE void run(const ConvArgs& a, Out* to, const float (&acc)[N / 2], Element element, int channel0, int columns, unsigned char* staging) {
    int lane = hw::lane_id(), warp = hw::wave_id() % 4, row = warp * 16 + lane / 4;
    long long low = element(row), high = element(row + 8);
    long long place[16 / kRows];
    GCONV_UNROLL
    for (int i = 0; i < 16 / kRows; ++i) place[i] = element(warp * 16 + i * kRows + lane / kVectors);
    GCONV_UNROLL
    for (int first = 0; first < N; first += kColumns) {
      GCONV_UNROLL
      for (int c = 0; c < kColumns && first + c < N; c += 8) {
        int column = first + c + lane % 4 * 2, j = (first + c) / 2;
        bool inside = column < columns;
        int channel = channel0 + (inside ? column : 0);
        float v[4];
        GCONV_UNROLL
        for (int e = 0; e < 4; ++e) {
          long long at = e < 2 ? low : high;
          v[e] = inside && at >= 0 ? Epilogue::apply(acc[j + e], a, channel + e % 2, at + column + e % 2) : 0.0f;
        }
        put(staging + lane / 4 * kPitch + (c + lane % 4 * 2) * kSize, v[0], v[1]);
        put(staging + (lane / 4 + 8) * kPitch + (c + lane % 4 * 2) * kSize, v[2], v[3]);
      }
      hw::wave_sync();
      int column = first + lane % kVectors * kVec;
      GCONV_UNROLL
      for (int i = 0; i < 16 / kRows; ++i) {
        Raw<16> raw = *(const Raw<16>*)(staging + (i * kRows + lane / kVectors) * kPitch + lane % kVectors * 16);
        if (place[i] >= 0 && column < columns && (N % kColumns == 0 || column < N)) *(Raw<16>*)(to + place[i] + column) = raw;
      }
      hw::wave_sync();
    }
  }

 private:
  static GCONV_DEVICE void put(unsigned char* at, float v0, float v1) {
    Out pair[2] = {from_float<Out>(v0), from_float<Out>(v1)};
    *(Raw<2 * kSize>*)at = *(const Raw<2 * kSize>*)pair;
  }
};

}  // namespace gconv
#endif
