// The row ring for bwd_data with stride 2 along h and w, filters of odd sizes: pairs of result rows and columns. Without zeros put between
// the rows and columns of dy: each source row is read once and meets the taps of both stride phases along h, each fragment those of both
// along w.
//
// Along each axis the phase "even" has the filter taps 0, 2, ..., the phase "odd" the taps 1, 3, ... With an odd padding a pair is (odd, even),
// with an even one (even, odd). A pair sees kTaps source positions s = 0 ..; even taps read filter position 2 (kTaps - 1 - s) there, odd
// taps, which are one less, position 2 (kTaps - 2 - s) + 1 from s = 0 on, or the same one place further on.
#pragma once

#include "ring_loader.hpp"
#include "ring_tile.hpp"

#if defined(GCONV_NVIDIA)

namespace gconv {

// The phases of one axis: 0 even, 1 odd.
template <int Filter, bool OddPad>
struct RingPhases {
  static constexpr int kTaps = (Filter + 1) / 2;
  static_assert(Filter % 2 == 1, "the odd taps are one less than the even ones");
  static constexpr GCONV_DEVICE int first(int phase) { return phase == 1 && !OddPad ? 1 : 0; }
  static constexpr GCONV_DEVICE int count(int phase) { return kTaps - phase; }
  static constexpr GCONV_DEVICE int end(int phase) { return first(phase) + count(phase); }
  static constexpr GCONV_DEVICE int filter(int phase, int s) { return 2 * (end(phase) - 1 - s) + phase; }
  static constexpr GCONV_DEVICE int of_result(int second) { return (second != 0) != OddPad ? 1 : 0; }  // of the first or second of a pair
};

template <class S>
struct RingPairs {
  using Shape = RingShape<S>;
  using Loader = RingLoader<S>;
  using Tile = RingTile<S>;
  using Mma = typename Tile::Mma;
  using In = typename S::In;
  using H = RingPhases<S::Filter::h, S::kOddPadH>;
  using W = RingPhases<S::Filter::w, S::kOddPadW>;
  static constexpr int kThreads = Loader::kThreads, kPeriod = H::kTaps;
  static constexpr int kWeights = Tile::kBundles ? 2 * S::Filter::w : 4 * S::Filter::w * Tile::kSteps;  // registers of one row of taps
  using Weights = unsigned[S::Filter::h][kWeights];
  using Sums = float[2][kPeriod][S::kTiles][2][2][4];  // phase along h, ring of pairs, tile, phase along w
  static_assert(Tile::kParts == 2, "16 channels a wave");
  using Seconds = int[S::kTiles][2];  // element offset of the second column of a pair, by tile and half tile; -1: none

  template <class... Maps>
  static GCONV_DEVICE void run(const ConvArgs& a, const Maps&... maps) {
    GCONV_LDS(unsigned char, lds, Shape::kRingBytes + Shape::kAlignment + Loader::kBarrierBytes, 0);
    RingPlace<S> place = RingPlace<S>::of(a);
    Loader ring;
    unsigned char* stages = ring_stages<S>(lds);
    if (!ring.start(a, place, stages, stages + Shape::kRingBytes, maps...)) return;
    Tile tile(a, place);
    Seconds seconds;
    find_seconds(seconds, a, place, tile);
    Weights weights;
    load_weights(weights, a, place, tile);
    Sums sums;
    for (int number = place.split; number < place.units; number += place.splits) {
      RingUnit unit = place.unit(number);
      In* to = place.first_row(a, unit) - (H::kTaps - 1) * 2 * place.row_stride(a);
      hw::LdsAddress at = {};
      for (int first = 0; first < unit.source_rows; first += kPeriod) walk(a, place, unit, first, ring, tile, seconds, weights, sums, at, to);
    }
  }

 private:
  // In the order of the filter.
  static GCONV_DEVICE void load_weights(Weights& weights, const ConvArgs& a, const RingPlace<S>& place, const Tile& tile) {
    GCONV_UNROLL
    for (int h = 0; h < S::Filter::h; ++h)
      GCONV_UNROLL
      for (int w = 0; w < S::Filter::w; ++w)
        GCONV_UNROLL
        for (int t = 0; t < 2; ++t) {
          if constexpr (Tile::kBundles) {
            weights[h][t * S::Filter::w + w] = tile.bundle_weight(a, place, t, 0, h, w);
          } else {
            GCONV_UNROLL
            for (int s = 0; s < Tile::kSteps; ++s) {
              unsigned pair[2];
              tile.wide_weight(pair, a, place, t, s, 0, h, w);
              weights[h][(w * Tile::kSteps + s) * 4 + t * 2] = pair[0];
              weights[h][(w * Tile::kSteps + s) * 4 + t * 2 + 1] = pair[1];
            }
          }
        }
  }

  // Bundles: the positions along w in pairs, those of the odd phase apart where they begin one further on.
  struct BundleFragments {
    static constexpr int kPairs = W::kTaps / 2;                               // of the even phase
    static constexpr bool kSingle = W::kTaps % 2 == 1;                        // and one position that is left
    static constexpr int kOwn = S::kOddPadW ? 0 : W::count(1) / 2;            // pairs that the odd phase reads for itself
    unsigned pair[kPairs + kOwn + 1][2][4], last[4];                          // by bundle; one element more, since none is no array

    GCONV_DEVICE void load(hw::LdsAddress half, const Tile& tile) {
      GCONV_UNROLL
      for (int i = 0; i < kPairs; ++i) load_pair(pair[i], half, tile.at[i]);
      GCONV_UNROLL
      for (int i = 0; i < kOwn; ++i) load_pair(pair[kPairs + i], half, tile.between(i));
      if constexpr (kSingle) hw::ldmatrix_x4(last, half + tile.at[kPairs]);
    }
    GCONV_DEVICE unsigned seen() const {
      unsigned all = kSingle ? last[0] : 0;
      GCONV_UNROLL
      for (int i = 0; i < kPairs + kOwn; ++i) all |= pair[i][0][0] | pair[i][1][0];
      return all;
    }
    static GCONV_DEVICE void load_pair(unsigned (&r)[2][4], hw::LdsAddress half, int at) {
      hw::ldmatrix_x4(r[0], half + at);
      hw::ldmatrix_x4(r[1], half + (at ^ 16));
    }
    GCONV_DEVICE void multiply(int phase, float (&sum)[2][4], const unsigned (&weights)[kWeights]) const {
      GCONV_UNROLL
      for (int t = 0; t < 2; ++t) {
        const unsigned* w = weights + t * S::Filter::w;
        GCONV_UNROLL
        for (int i = 0; i < W::kTaps / 2; ++i) {
          if (2 * i + 1 >= W::count(phase)) continue;
          int s = W::first(phase) + 2 * i;
          Mma::k16(sum[t], pair[phase == 1 && kOwn > 0 ? kPairs + i : i][t], {w[W::filter(phase, s)], w[W::filter(phase, s + 1)]});
        }
        if (W::count(phase) % 2 == 1) one(phase, sum[t], t, w[W::filter(phase, W::end(phase) - 1)]);
      }
    }
    // The last position of a phase: of the even phase by itself, of the odd one half of the last pair.
    GCONV_DEVICE void one(int phase, float (&sum)[4], int t, unsigned weight) const {
      if (phase == 0) Mma::k8(sum, {last[2 * t], last[2 * t + 1]}, {weight});
      else if (S::kOddPadW) Mma::k8(sum, {pair[kPairs - 1][t][0], pair[kPairs - 1][t][1]}, {weight});
      else Mma::k8(sum, {pair[kPairs - 1][t][2], pair[kPairs - 1][t][3]}, {weight});
    }
  };
  // Wide groups: every position for itself.
  struct WideFragments {
    unsigned pixels[W::kTaps][Tile::kSteps][4];
    GCONV_DEVICE void load(hw::LdsAddress half, const Tile& tile) {
      GCONV_UNROLL
      for (int i = 0; i < W::kTaps; ++i)
        GCONV_UNROLL
        for (int s = 0; s < Tile::kSteps; ++s) hw::ldmatrix_x4(pixels[i][s], half + (tile.at[i] ^ s * 32));
    }
    GCONV_DEVICE unsigned seen() const {
      unsigned all = 0;
      GCONV_UNROLL
      for (int i = 0; i < W::kTaps; ++i)
        GCONV_UNROLL
        for (int s = 0; s < Tile::kSteps; ++s) all |= pixels[i][s][0];
      return all;
    }
    GCONV_DEVICE void multiply(int phase, float (&sum)[2][4], const unsigned (&weights)[kWeights]) const {
      GCONV_UNROLL
      for (int i = 0; i < W::kTaps; ++i) {
        if (i < W::first(phase) || i >= W::end(phase)) continue;
        GCONV_UNROLL
        for (int s = 0; s < Tile::kSteps; ++s) {
          const unsigned* w = weights + (W::filter(phase, i) * Tile::kSteps + s) * 4;
          Mma::k16(sum[0], pixels[i][s], {w[0], w[1]});
          Mma::k16(sum[1], pixels[i][s], {w[2], w[3]});
        }
      }
    }
  };
  using Fragments = typename conditional<Tile::kBundles, BundleFragments, WideFragments>::type;


  // One period of source rows. `at`: the row in its stage; `to`: the first row of the pair that meets it as the last position.
  static GCONV_DEVICE void walk(const ConvArgs& a, const RingPlace<S>& place, const RingUnit& unit, int first, Loader& ring, const Tile& tile,
                                const Seconds& seconds, const Weights& weights, Sums& sums, hw::LdsAddress& at, In*& to) {
    int rows = min_of(2 * unit.rows, a.in[1] - 2 * unit.row);  // of the unit
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
          Fragments fragments;
          fragments.load(at + tile.half[m], tile);
          seen |= fragments.seen();
          if (m == S::kTiles - 1 && (in_stage == S::kStageRows - 1 || row == unit.source_rows - 1)) ring.release(seen);
          GCONV_UNROLL
          for (int phase = 0; phase < 2; ++phase) {
            multiply(fragments, turn, phase, weights, sums, m);
            int pair = row - (H::end(phase) - 1), below = H::of_result(0) == phase ? 0 : 1;
            if (pair >= 0 && 2 * pair + below < rows) {
              In* row_to = to + ((H::kTaps - H::end(phase)) * 2 + below) * place.row_stride(a);
              store_tile(a, place, unit, row_to, tile, seconds, sums[phase][(turn - (H::end(phase) - 1) + 2 * kPeriod) % kPeriod], m);
            }
          }
        }
        at += Shape::kRowBytes;
        to += 2 * place.row_stride(a);
      }
    }
  }

  // One source row of one tile into the pairs of a phase along h: pair `turn - s` of the ring meets it as its position s.
  static GCONV_DEVICE void multiply(const Fragments& fragments, int turn, int phase, const Weights& weights, Sums& sums, int m) {
    GCONV_UNROLL
    for (int s = 0; s < H::kTaps; ++s) {
      if (s < H::first(phase) || s >= H::end(phase)) continue;
      float(&sum)[2][2][4] = sums[phase][(turn - s + 2 * kPeriod) % kPeriod][m];
      if (s == H::first(phase)) clear(sum);
      GCONV_UNROLL
      for (int w = 0; w < 2; ++w) fragments.multiply(w, sum[w], weights[H::filter(phase, s)]);
    }
  }
  static GCONV_DEVICE void clear(float (&sum)[2][2][4]) {
    GCONV_UNROLL
    for (int w = 0; w < 2; ++w)
      GCONV_UNROLL
      for (int t = 0; t < 2; ++t)
        GCONV_UNROLL
        for (int e = 0; e < 4; ++e) sum[w][t][e] = 0.0f;
  }

  static GCONV_DEVICE void find_seconds(Seconds& seconds, const ConvArgs& a, const RingPlace<S>& place, const Tile& tile) {
    GCONV_UNROLL
    for (int m = 0; m < S::kTiles; ++m)
      GCONV_UNROLL
      for (int j = 0; j < 2; ++j) {
        bool there = tile.store[m][j] >= 0 && 2 * tile.column(place, m, j) + 1 < a.in[2];
        seconds[m][j] = hw::kept(there ? tile.store[m][j] + (int)a.xv.s[2] : -1);
      }
  }
  static GCONV_DEVICE void store_tile(const ConvArgs& a, const RingPlace<S>& place, const RingUnit& unit, In* to, const Tile& tile,
                                      const Seconds& seconds, const float (&sums)[S::kTiles][2][2][4], int m) {
    bool first = S::kImages == 1 || unit.image + tile.image(m, 0) < place.images;
    bool second = S::kImages == 1 || unit.image + tile.image(m, 1) < place.images;
    tile.store_tile(a, sums[m][W::of_result(0)], first ? tile.store[m][0] : -1, second ? tile.store[m][1] : -1, to);
    tile.store_tile(a, sums[m][W::of_result(1)], first ? seconds[m][0] : -1, second ? seconds[m][1] : -1, to);
  }
};

}  // namespace gconv

#endif  // GCONV_NVIDIA
