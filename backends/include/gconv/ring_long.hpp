// The row ring for depthwise filters whose weights do not fit into registers, forward and bwd_data with stride 1: the weights are in LDS.
//
// A wave computes kRows rows of results at once (the rows of a unit); each source row is read once for all of them. A word of LDS holds the
// weights of one channel at two neighbouring columns of taps, of which a lane makes its part of the diagonal operand.
//
// S::kWaveChannels is 8.
#pragma once

#include "ring_loader.hpp"
#include "ring_tile.hpp"

#if defined(GCONV_NVIDIA)

namespace gconv {

template <class S>
struct RingLong {
  using Shape = RingShape<S>;
  using Loader = RingLoader<S>;
  using Tile = RingTile<S>;
  using Mma = typename Tile::Mma;
  using In = typename S::In;
  static_assert(S::kCg == 1 && Tile::kParts == 1 && Shape::kStepH == 1 && Shape::kStepW == 1, "depthwise, one bundle a wave, stride 1");
  static constexpr int kThreads = Loader::kThreads, kTaps = Shape::kTapsH, kColumns = Shape::kTapsW, kPairs = kColumns / 2;
  static constexpr int kSteps = (kColumns + 1) / 2, kPitch = S::kBlockChannels + 1;  // words of one row of taps and one step
  static constexpr int kWeightWords = kTaps * kSteps * kPitch, kWeightBytes = ceil_div(kWeightWords * 4, 16) * 16;
  using Sums = float[S::kRows][S::kTiles][1][4];

  template <class... Maps>
  static GCONV_DEVICE void run(const ConvArgs& a, const Maps&... maps) {
    GCONV_LDS(unsigned char, lds, Shape::kRingBytes + Shape::kAlignment + Loader::kBarrierBytes, 0);
    GCONV_LDS(unsigned, weights, kWeightBytes / 4, ceil_div(Shape::kRingBytes + Shape::kAlignment + Loader::kBarrierBytes, 16) * 16);
    RingPlace<S> place = RingPlace<S>::of(a);
    fill(weights, a, place);
    Loader ring;
    unsigned char* stages = ring_stages<S>(lds);
    if (!ring.start(a, place, stages, stages + Shape::kRingBytes, maps...)) return;
    Tile tile(a, place);
    const unsigned* mine = weights + tile.slice * 8 + hw::lane_id() / 4;
    for (int number = place.split; number < place.units; number += place.splits) {
      RingUnit unit = place.unit(number);
      Sums sums = {};
      for (int row = 0; row < unit.source_rows; ++row) {
        int in_stage = row % S::kStageRows;
        if (in_stage == 0) ring.acquire();
        hw::LdsAddress line = ring.stage() + in_stage * Shape::kRowBytes;
        bool inner = row >= S::kRows - 1 && row < kTaps;
        unsigned seen = inner ? multiply<false>(line, row, tile, mine, sums) : multiply<true>(line, row, tile, mine, sums);
        if (in_stage == S::kStageRows - 1 || row == unit.source_rows - 1) ring.release(seen);
      }
      store(a, place, unit, tile, sums);
    }
  }

 private:
  // In the order in which source rows and columns meet them; seen by all after the ring's first barrier.
  static GCONV_DEVICE void fill(unsigned* weights, const ConvArgs& a, const RingPlace<S>& place) {
    for (int i = hw::thread_id(); i < kTaps * kSteps * S::kBlockChannels; i += kThreads) {
      int step = i % kSteps, h = i / kSteps % kTaps, channel = i / (kSteps * kTaps);
      weights[(h * kSteps + step) * kPitch + channel] =
          tap(a, place.channel + channel, h, 2 * step) | tap(a, place.channel + channel, h, 2 * step + 1) << 16;
    }
  }
  static GCONV_DEVICE unsigned tap(const ConvArgs& a, int channel, int h, int w) {
    constexpr bool forward = Shape::kForwardDirection;
    if (channel >= a.G || w >= kColumns) return 0;
    return Tile::weight_bits(a, channel, 0, 0, forward ? h : kTaps - 1 - h, forward ? w : kColumns - 1 - w);
  }

  // One source row into the result rows that see it; with Edge some of them do not. The result is made of the last fragments.
  template <bool Edge>
  static GCONV_DEVICE unsigned multiply(hw::LdsAddress line, int row, const Tile& tile, const unsigned* weights, Sums& sums) {
    // The lane's two k of the diagonal: the weight of an even channel is the lower one, that of an odd channel the upper one.
    int n = hw::lane_id() / 4;
    bool diagonal = n / 2 == hw::lane_id() % 4;
    unsigned low = !diagonal ? 0x4444 : n % 2 == 0 ? 0x4410 : 0x1044, high = !diagonal ? 0x4444 : n % 2 == 0 ? 0x4432 : 0x3244;
    const unsigned* of_row = weights + row * (kSteps * kPitch);
    unsigned seen = 0;
    GCONV_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      bool single = i == kPairs;
      unsigned pixels[S::kTiles][4];
      GCONV_UNROLL
      for (int m = 0; m < S::kTiles; ++m) hw::ldmatrix_x4(pixels[m], line + tile.half[m] + tile.at[i]);
      GCONV_UNROLL
      for (int m = 0; m < S::kTiles; ++m)
        if (i >= kSteps - 2) seen |= pixels[m][0];  // those before have been multiplied; to wait for all here would take their registers
      GCONV_UNROLL
      for (int j = 0; j < S::kRows; ++j) {
        if (Edge && (unsigned)(row - j) >= (unsigned)kTaps) continue;
        unsigned both = of_row[(i - j * kSteps) * kPitch];
        unsigned left = hw::permute(both, low), right = hw::permute(both, high);
        GCONV_UNROLL
        for (int m = 0; m < S::kTiles; ++m) {
          if (single) Mma::k8(sums[j][m][0], {pixels[m][0], pixels[m][1]}, {left});
          else Mma::k16(sums[j][m][0], pixels[m], {left, right});
        }
      }
    }
    return seen;
  }

  static GCONV_DEVICE void store(const ConvArgs& a, const RingPlace<S>& place, const RingUnit& unit, const Tile& tile, const Sums& sums) {
    In* to = place.first_row(a, unit);
    GCONV_UNROLL
    for (int j = 0; j < S::kRows; ++j) {
      if (j >= unit.rows) continue;
      GCONV_UNROLL
      for (int m = 0; m < S::kTiles; ++m) {
        bool first = S::kImages == 1 || unit.image + tile.image(m, 0) < place.images;
        bool second = S::kImages == 1 || unit.image + tile.image(m, 1) < place.images;
        tile.store_tile(a, sums[j][m], first ? tile.store[m][0] : -1, second ? tile.store[m][1] : -1, to + j * place.row_stride(a));
      }
    }
  }
};

}  // namespace gconv

#endif  // GCONV_NVIDIA
