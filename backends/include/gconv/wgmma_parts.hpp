// What the kernels on warpgroup matrix instructions share: operand descriptors, rings of stages, and the way of sums to memory.
#pragma once

#include "conv_operands.hpp"
#include "copy_engine.hpp"

#if defined(GCONV_COPY_ENGINE) && defined(GCONV_PLATFORM_CUDA)
#include "platform/cuda_wgmma.hpp"
#define GCONV_WGMMA 1
#elif defined(GCONV_COPY_ENGINE)
#include "platform/sim_wgmma.hpp"
#define GCONV_WGMMA 1
#endif

#if defined(GCONV_WGMMA)

namespace gconv {

constexpr int kLine = 128;   // bytes of one line of an operand in LDS, swizzled by the copy engine
constexpr int kChunk = 64;   // 16-bit channels of a line

// The first place for operands in an array of LDS; 1024 bytes more than the operands need are there.
GCONV_DEVICE unsigned char* aligned_operands(unsigned char* lds) {
  unsigned char* start = lds + (1024 - hw::operand_address(lds) % 1024) % 1024;
#if defined(GCONV_PLATFORM_SIM)
  hw::lds_origin = start;
#endif
  return start;
}

// Descriptors of operands in LDS (PTX ISA, matrix descriptor format), as two words: the low one holds the start and the distance between
// blocks of 64 columns, the high one the distance between runs of 8 lines and the swizzle of 128 bytes. Addresses and distances are in
// units of 16 bytes. Operands are at multiples of 1024 bytes, or any number of lines from there.
// Lines along the reduction: 8 lines follow one another, the next 8 are `run` bytes away.
// Lines along rows or columns, one for each k: 8 k follow one another, the next 8 are `run` bytes away, the next 64 rows `block` bytes.
GCONV_DEVICE unsigned operand_low(const void* start, int block = 16) { return (hw::operand_address(start) & 0x3ffff) >> 4 | (unsigned)(block >> 4) << 16; }
GCONV_DEVICE unsigned operand_high(int run) { return (unsigned)(run >> 4) | 1u << 30; }

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
  // At the start of a round: it is the one before once more, whose stages are still full.
  GCONV_DEVICE void again() { phase ^= 1; }
  // Producer: the wave waits until the stage is empty, one lane announces `bytes`; the barrier that the copies arrive at.
  GCONV_DEVICE hw::Mbarrier& take(int bytes) const {
    hw::mbarrier_wait(barriers.empty(index), phase);
    if (hw::lane_id() == 0) hw::mbarrier_expect(barriers.full(index), bytes);
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

// The way of sums to memory: each warp's 16 rows of a 64 x N tile, 64 columns at a time, through LDS of its own. The 64 rows are pixels: 8
// neighbours along one axis (w, or n with images first), 8 runs of them along another (h, or w). Few warps are there to hide latency, so
// that little is computed for each row: offsets of a lane are found once, those of its rows are the same in all lanes.
//
// S: Out, Epilogue, Tile, kImagesFirst, kLikeY (the epilogue reads arrays shaped like the result); Columns: channels of a group.
template <class S, int N, int Columns>
struct WgmmaStore {
  using Out = typename S::Out;
  static constexpr bool kLine = S::Tile::w == 64, kWhole = Columns % N == 0;
  static constexpr int kColumns = 64, kSize = (int)sizeof(Out), kVec = 16 / kSize, kPitch = kColumns * kSize + 16, kBytes = 16 * kPitch;
  static constexpr int kVectors = kColumns / kVec, kRows = hw::kWave / kVectors, kTurns = 16 / kRows;  // vectors of a row; rows at once

  const ConvArgs& args;
  Out* tensor;
  unsigned char* staging;
  long long along, across;  // elements between neighbours, and between runs
  long long mine;           // from the tile's first element to this lane's first vector
  int warp, lane;

  GCONV_DEVICE WgmmaStore(const ConvArgs& a, void* result, const TensorView& view, unsigned char* lds, int wave) : args(a), tensor((Out*)result), staging(lds) {
    warp = wave % 4;
    lane = hw::lane_id();
    along = S::kImagesFirst ? view.n : view.s[2];
    across = kLine ? 8 * view.s[2] : S::kImagesFirst ? view.s[2] : view.s[1];
    mine = lane / kVectors * along + warp * 2 * across + lane % kVectors * kVec;
  }

  // n, h, w: the tile's first pixel; left: pixels from there to the end of each axis; first: its first element; channel: that of column 0.
  GCONV_DEVICE void run(const float (&acc)[N / 2], long long first, const int (&left)[3], int channel, int columns) const {
    long long low = first + lane / 4 * along + warp * 2 * across;  // of the rows that this lane holds sums of
    bool valid_low = inside(left, lane / 4, warp * 2), valid_high = inside(left, lane / 4, warp * 2 + 1);
    Out* to = tensor + first + mine;
    GCONV_UNROLL
    for (int part = 0; part < N; part += kColumns) {
      GCONV_UNROLL
      for (int c = 0; c < kColumns && part + c < N; c += 8) {
        int column = part + c + lane % 4 * 2, j = (part + c) / 2;
        bool exists = kWhole || column < columns;
        float v[4];
        GCONV_UNROLL
        for (int e = 0; e < 4; ++e) {
          bool valid = !S::kLikeY || (exists && (e < 2 ? valid_low : valid_high));
          v[e] = valid ? S::Epilogue::apply(acc[j + e], args, channel + (exists ? column + e % 2 : 0), low + (e < 2 ? 0 : across) + column + e % 2) : 0.0f;
        }
        put(staging + lane / 4 * kPitch + (c + lane % 4 * 2) * kSize, v[0], v[1]);
        put(staging + (lane / 4 + 8) * kPitch + (c + lane % 4 * 2) * kSize, v[2], v[3]);
      }
      hw::wave_sync();
      int column = part + lane % kVectors * kVec;
      bool exists = (N % kColumns == 0 || column < N) && (kWhole || column < columns);
      GCONV_UNROLL
      for (int i = 0; i < kTurns; ++i) {
        constexpr int turns = 8 / kRows;
        Raw<16> raw = *(const Raw<16>*)(staging + (i * kRows + lane / kVectors) * kPitch + lane % kVectors * 16);
        if (exists && inside(left, lane / kVectors + i % turns * kRows, warp * 2 + i / turns))
          *(Raw<16>*)(to + i % turns * kRows * along + i / turns * across + part) = raw;
      }
      hw::wave_sync();
    }
  }

 private:
  static GCONV_DEVICE bool inside(const int (&left)[3], int neighbour, int run) {
    if constexpr (kLine) return neighbour + 8 * run < left[2];
    else if constexpr (S::kImagesFirst) return neighbour < left[0] && run < left[2];
    else return neighbour < left[2] && run < left[1];
  }
  static GCONV_DEVICE void put(unsigned char* at, float v0, float v1) {
    if constexpr (kSize == 4) {
      *(float*)at = v0;
      *(float*)(at + 4) = v1;
    } else if constexpr (is_same<Out, f16>::value) {
      *(unsigned*)at = hw::float_to_f16x2(v0, v1);
    } else {
      *(unsigned*)at = hw::float_to_bf16x2(v0, v1);
    }
  }
};

}  // namespace gconv
#endif
