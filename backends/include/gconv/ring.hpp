// The row ring: convolution of narrow groups (C/G = K/G up to 32) and depthwise on the matrix units, forward and bwd_data with stride 1.
// bwd_data is forward from dy with the filter read backwards and its channels exchanged, which happens where the weights are loaded.
//
// A wave holds all weights of its 16 result channels in registers. Each source row is read from LDS once and multiplied into the
// accumulators of all result rows that it belongs to; those that are live wait in registers, and a ring index that the unrolling makes a
// compile-time number says which is which.
#pragma once

#include "ring_loader.hpp"
#include "ring_tile.hpp"

#if defined(GCONV_NVIDIA)

namespace gconv {

template <class S>
struct RowRing {
  using Shape = RingShape<S>;
  using Loader = RingLoader<S>;
  using Tile = RingTile<S>;
  using Mma = typename Tile::Mma;
  using In = typename S::In;
  static constexpr int kThreads = Loader::kThreads;
  static constexpr int kStep = Shape::kStepH, kTaps = Shape::kTapsH, kColumns = Shape::kTapsW;
  static constexpr int kLive = ceil_div(kTaps, kStep), kPeriod = kLive * kStep;  // result rows that wait; source rows until they recur
  static constexpr int kWeights = Tile::kBundles ? Tile::kParts * kColumns : 4 * kColumns * Tile::kSteps;  // registers of one row of taps
  using Weights = unsigned[Shape::kPlanes][kTaps][kWeights];
  using Sums = float[kLive][S::kTiles][Tile::kParts][4];

  // Grid: x = (split * strips along w + strip) * blocks of channels + block of channels.
  template <class... Maps>
  static GCONV_DEVICE void run(const ConvArgs& a, const Maps&... maps) {
    GCONV_LDS(unsigned char, lds, Shape::kRingBytes + Shape::kAlignment + Loader::kBarrierBytes, 0);
    RingPlace<S> place = RingPlace<S>::of(a);
    Loader ring;
    unsigned char* stages = ring_stages<S>(lds);
    if (!ring.start(a, place, stages, stages + Shape::kRingBytes, maps...)) return;
    Tile tile(a, place);
    Weights weights;
    load_weights(weights, a, place, tile);
    Sums sums;
    for (int number = place.split; number < place.units; number += place.splits) {
      RingUnit unit = place.unit(number);
      In* to = place.first_row(a, unit);
      hw::LdsAddress at = {};
      for (int first = 0; first < unit.source_rows; first += kPeriod) walk(a, place, unit, first, ring, tile, weights, sums, at, to);
    }
  }

 private:
  static GCONV_DEVICE void load_weights(Weights& weights, const ConvArgs& a, const RingPlace<S>& place, const Tile& tile) {
    constexpr bool forward = Shape::kForwardDirection;
    GCONV_UNROLL
    for (int d = 0; d < Shape::kPlanes; ++d)
      GCONV_UNROLL
      for (int h = 0; h < kTaps; ++h)
        GCONV_UNROLL
        for (int w = 0; w < kColumns; ++w) {
          int kd = forward ? d : Shape::kPlanes - 1 - d, kh = forward ? h : kTaps - 1 - h, kw = forward ? w : kColumns - 1 - w;
          GCONV_UNROLL
          for (int t = 0; t < Tile::kParts; ++t) {
            if constexpr (Tile::kBundles) {
              weights[d][h][t * kColumns + w] = tile.bundle_weight(a, place, t, kd, kh, kw);
            } else {
              GCONV_UNROLL
              for (int s = 0; s < Tile::kSteps; ++s) {
                unsigned pair[2];
                tile.wide_weight(pair, a, place, t, s, kd, kh, kw);
                weights[d][h][(w * Tile::kSteps + s) * 4 + t * 2] = pair[0];
                weights[d][h][(w * Tile::kSteps + s) * 4 + t * 2 + 1] = pair[1];
              }
            }
          }
        }
  }

  // One period of source rows. `at`: the row in its stage; `to`: the result row that is finished next.
  static GCONV_DEVICE void walk(const ConvArgs& a, const RingPlace<S>& place, const RingUnit& unit, int first, Loader& ring, const Tile& tile,
                                const Weights& weights, Sums& sums, hw::LdsAddress& at, In*& to) {
    GCONV_UNROLL
    for (int turn = 0; turn < kPeriod; ++turn) {
      int row = first + turn;
      if (row < unit.source_rows) {
        int in_stage = row % S::kStageRows;
        if (in_stage == 0) {
          ring.acquire();
          at = ring.stage();
        }
        unsigned seen = 0;
        GCONV_UNROLL
        for (int m = 0; m < S::kTiles; ++m) {
          if (turn % kStep == 0) clear(sums[turn / kStep][m]);
          seen |= multiply(at + tile.half[m], turn, tile, weights, sums, m);
        }
        at += Shape::kRowBytes;
        if (in_stage == S::kStageRows - 1 || row == unit.source_rows - 1) ring.release(seen);
        constexpr int last = kTaps - 1;
        int done = turn - last + kPeriod * kTaps;  // non-negative, the same residue
        if (done % kStep == 0 && row >= last) {
          store_row(a, place, unit, to, tile, sums[done / kStep % kLive]);
          to += place.row_stride(a);
        }
      }
    }
  }

  static GCONV_DEVICE void clear(float (&sum)[Tile::kParts][4]) {
    GCONV_UNROLL
    for (int t = 0; t < Tile::kParts; ++t)
      GCONV_UNROLL
      for (int e = 0; e < 4; ++e) sum[t][e] = 0.0f;
  }

  // One source row of one tile, with every row of taps, into the result rows that wait. The result is made of every fragment.
  static GCONV_DEVICE unsigned multiply(hw::LdsAddress half, int turn, const Tile& tile, const Weights& weights, Sums& sums, int m) {
    unsigned seen = 0;
    GCONV_UNROLL
    for (int d = 0; d < Shape::kPlanes; ++d) {
      GCONV_UNROLL
      for (int i = 0; i < Tile::kLoads; ++i) {
        hw::LdsAddress from = half + d * Shape::kPlaneBytes;
        if constexpr (Tile::kBundles) {
          unsigned pixels[Tile::kParts][4];  // by bundle; of one column of taps both bundles are in the first
          bool single = Tile::kSingle && i == Tile::kLoads - 1;
          hw::ldmatrix_x4(pixels[0], from + tile.at[i]);
          if (Tile::kParts == 2 && !single) hw::ldmatrix_x4(pixels[Tile::kParts - 1], from + (tile.at[i] ^ 16));
          seen |= single ? pixels[0][0] : pixels[0][0] | pixels[Tile::kParts - 1][0];
          GCONV_UNROLL
          for (int k = 0; k < kLive; ++k) {
            int h = turn % kStep + k * kStep;
            if (h >= kTaps) continue;
            float(&sum)[Tile::kParts][4] = sums[(turn / kStep - k + 2 * kLive) % kLive][m];
            GCONV_UNROLL
            for (int t = 0; t < Tile::kParts; ++t) {
              const unsigned* w = weights[d][h] + t * kColumns + 2 * i;
              if (single) Mma::k8(sum[t], {pixels[0][2 * t], pixels[0][2 * t + 1]}, {w[0]});
              else Mma::k16(sum[t], pixels[t], {w[0], w[kColumns > 1 ? 1 : 0]});
            }
          }
        } else {
          GCONV_UNROLL
          for (int s = 0; s < Tile::kSteps; ++s) {
            unsigned pixels[4];
            hw::ldmatrix_x4(pixels, from + (tile.at[i] ^ s * 32));
            seen |= pixels[0];
            GCONV_UNROLL
            for (int k = 0; k < kLive; ++k) {
              int h = turn % kStep + k * kStep;
              if (h >= kTaps) continue;
              float(&sum)[Tile::kParts][4] = sums[(turn / kStep - k + 2 * kLive) % kLive][m];
              const unsigned* w = weights[d][h] + (i * Tile::kSteps + s) * 4;
              Mma::k16(sum[0], pixels, {w[0], w[1]});
              Mma::k16(sum[1], pixels, {w[2], w[3]});
            }
          }
        }
      }
    }
    return seen;
  }

  static GCONV_DEVICE void store_row(const ConvArgs& a, const RingPlace<S>& place, const RingUnit& unit, In* to, const Tile& tile,
                                     const float (&sums)[S::kTiles][Tile::kParts][4]) {
    GCONV_UNROLL
    for (int m = 0; m < S::kTiles; ++m) {
      bool first = S::kImages == 1 || unit.image + tile.image(m, 0) < place.images;
      bool second = S::kImages == 1 || unit.image + tile.image(m, 1) < place.images;
      tile.store_tile(a, sums[m], first ? tile.store[m][0] : -1, second ? tile.store[m][1] : -1, to);
    }
  }
};

}  // namespace gconv

#endif  // GCONV_NVIDIA
