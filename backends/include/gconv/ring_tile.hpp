// The row ring: what one lane holds of 16 pixels x 16 channels, for mma.sync. A wave owns 16 result channels (or 8) and kTiles tiles of 16
// pixels, each two half tiles of 8, so that narrow images and several of them fill a tile.
//
// Groups of up to 8 channels: bundles of 8 channels, each one multiplication; k is two neighbouring columns of taps x the 8 channels of
// the bundle, and the weights are zero between channels of different groups. Wider groups: k is 16 channels at one tap, and the
// result channels are dealt out so that a lane has four neighbouring ones.
#pragma once

#include "ring_place.hpp"

#if defined(GCONV_NVIDIA)

namespace gconv {

template <class T>
struct RingMma;
template <>
struct RingMma<f16> {
  static GCONV_DEVICE void k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { hw::mma_m16n8k16_f16(d, a, b); }
  static GCONV_DEVICE void k8(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) { hw::mma_m16n8k8_f16(d, a, b); }
  static GCONV_DEVICE unsigned pack(float low, float high) { return hw::float_to_f16x2(low, high); }
};
template <>
struct RingMma<bf16> {
  static GCONV_DEVICE void k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { hw::mma_m16n8k16_bf16(d, a, b); }
  static GCONV_DEVICE void k8(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) { hw::mma_m16n8k8_bf16(d, a, b); }
  static GCONV_DEVICE unsigned pack(float low, float high) { return hw::float_to_bf16x2(low, high); }
};

template <class S>
struct RingTile {
  using Shape = RingShape<S>;
  using In = typename S::In;
  using Mma = RingMma<In>;
  static constexpr bool kBundles = S::kCg <= 8;
  static constexpr int kParts = S::kWaveChannels / 8;  // multiplications side by side, of 8 result channels each
  static_assert(kParts == 2 || (kParts == 1 && kBundles), "a wave has two bundles, one, or 16 channels of a wide group");
  static constexpr int kSteps = S::kCg <= 16 ? 1 : S::kCg / 16;                      // k steps of the channels of a wide group
  static constexpr int kLoads = kBundles ? (Shape::kTapsW + 1) / 2 : Shape::kTapsW;  // places along w that fragments are read at
  static constexpr bool kSingle = kBundles && Shape::kTapsW % 2 == 1;                // the last of them is one column of taps

  int slice, wave;         // of the block's channels; of its pixels
  int at[kLoads];          // byte offset of this lane's row of a fragment, from a half tile
  int half[S::kTiles];     // byte offset of this lane's half tile
  int store[S::kTiles][2]; // element offset of this lane's results, from the first pixel of the row; -1: not in the strip
  int channel;             // the first of those that this lane stores
  bool stores;             // whether there are such channels

  GCONV_DEVICE RingTile(const ConvArgs& a, const RingPlace<S>& p) {
    int lane = hw::lane_id();
    slice = hw::wave_id() % Shape::kSlices;
    wave = hw::wave_id() / Shape::kSlices;
    GCONV_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      int column = !kBundles ? i : kSingle && i == kLoads - 1 ? Shape::kTapsW - 1 : 2 * i + lane / 16;
      int unit = !kBundles ? slice * 16 / S::kCg * (S::kCg / 8) + lane / 16
                 : kParts * slice + (kParts == 2 && kSingle && i == kLoads - 1 ? lane / 16 : 0);
      at[i] = hw::kept(hw::swizzled<Shape::kPixelBytes>((lane % 8 * Shape::kStepW + column) * Shape::kPixelBytes + unit * 16));
    }
    const TensorView& view = Shape::kForwardDirection ? a.yv : a.xv;
    int columns = (Shape::kPairs ? 2 : 1) * (int)view.s[2];
    channel = p.channel + slice * S::kWaveChannels + lane_channel();
    stores = channel < a.G * S::kCg;
    GCONV_UNROLL
    for (int m = 0; m < S::kTiles; ++m) {
      int mine = min_of(half_tile(m, lane / 8 % 2), S::kImages * Shape::kHalves - 1);
      half[m] = hw::kept(mine / Shape::kHalves * Shape::kImageBytes + mine % Shape::kHalves * 8 * Shape::kStepW * Shape::kPixelBytes);
      GCONV_UNROLL
      for (int j = 0; j < 2; ++j) {
        int number = half_tile(m, j), column = number % Shape::kHalves * 8 + lane / 4;
        bool ok = number < S::kImages * Shape::kHalves && column < S::kStrip && p.column + column < p.width;
        store[m][j] = hw::kept(ok ? (int)(number / Shape::kHalves * view.n) + (p.column + column) * columns + channel : -1);
      }
    }
  }
  // Bundles: where a pair of columns of taps begins at an odd one.
  GCONV_DEVICE int between(int i) const {
    return hw::swizzled<Shape::kPixelBytes>((hw::lane_id() % 8 * Shape::kStepW + 2 * i + 1 + hw::lane_id() / 16) * Shape::kPixelBytes + 16 * kParts * slice);
  }
  GCONV_DEVICE int half_tile(int m, int j) const { return (wave * S::kTiles + m) * 2 + j; }
  GCONV_DEVICE int column(const RingPlace<S>& p, int m, int j) const { return p.column + half_tile(m, j) % Shape::kHalves * 8 + hw::lane_id() / 4; }
  GCONV_DEVICE int image(int m, int j) const { return half_tile(m, j) / Shape::kHalves; }
  // The first of four neighbouring channels of the slice that this lane stores.
  static GCONV_DEVICE int lane_channel() {
    int q = hw::lane_id() % 4;
    return !kBundles ? 4 * q : q % 2 == 0 ? 2 * q : kParts == 2 ? 8 + 2 * (q - 1) : 2 * (q - 1);
  }

  // --- weights: operand B. n is a result channel, k source channels; two neighbouring k a register.

  // The weights of result channel `to`, source channels `from` and the next, of its group.
  static GCONV_DEVICE unsigned weight(const ConvArgs& a, int to, int from, int kd, int kh, int kw) {
    constexpr bool neighbours = Shape::kForwardDirection && S::kWc == 1 && (S::kWn | S::kWg | S::kWd | S::kWh | S::kWw) % 2 == 0;
    if constexpr (neighbours) return *(const unsigned*)weight_place(a, to, from, kd, kh, kw);
    return weight_bits(a, to, from, kd, kh, kw) | weight_bits(a, to, from + 1, kd, kh, kw) << 16;
  }
  static GCONV_DEVICE unsigned weight_bits(const ConvArgs& a, int to, int from, int kd, int kh, int kw) {
    return weight_place(a, to, from, kd, kh, kw)->bits;
  }
  // Loads are without conditions, so that they overlap: past the last channel this is the last one's, and has no result.
  static GCONV_DEVICE const In* weight_place(const ConvArgs& a, int to, int from, int kd, int kh, int kw) {
    constexpr bool forward = Shape::kForwardDirection;
    to = min_of(to, a.G * S::kCg - 1);
    int group = to / S::kCg, k = forward ? to % S::kCg : from, c = forward ? from : to % S::kCg;
    return (const In*)a.w + (group * S::kWg + k * S::kWn + c * S::kWc + kd * S::kWd + kh * S::kWh + kw * S::kWw);
  }
  // Of a bundle: lane l has n = l / 4 and the channels l % 4 * 2 and the next, as k.
  GCONV_DEVICE unsigned bundle_weight(const ConvArgs& a, const RingPlace<S>& p, int bundle, int kd, int kh, int kw) const {
    int n = hw::lane_id() / 4, pair = hw::lane_id() % 4, to = p.channel + slice * S::kWaveChannels + bundle * 8 + n;
    if constexpr (S::kCg == 1) {
      unsigned bits = weight_bits(a, to, 0, kd, kh, kw);
      return n / 2 != pair ? 0 : n % 2 == 1 ? bits << 16 : bits;
    } else {
      unsigned both = weight(a, to, 2 * pair % S::kCg, kd, kh, kw);
      return 2 * pair / S::kCg != n / S::kCg ? 0 : both;
    }
  }
  // Of a wide group, multiplication t: result channels in the order that gives a lane four neighbours.
  GCONV_DEVICE void wide_weight(unsigned (&r)[2], const ConvArgs& a, const RingPlace<S>& p, int t, int step, int kd, int kh, int kw) const {
    int n = hw::lane_id() / 4, from = step * 16 + hw::lane_id() % 4 * 2, to = p.channel + slice * 16 + n / 2 * 4 + 2 * t + n % 2;
    r[0] = weight(a, to, from, kd, kh, kw);
    r[1] = weight(a, to, from + 8, kd, kh, kw);
  }

  // --- results

  // The results of a tile, its two half tiles at these element offsets (-1: not stored) from the row `to`; four channels a lane. Lanes
  // exchange what they have with their neighbours: two bundles in both halves, or one bundle between the halves.
  GCONV_DEVICE void store_tile(const ConvArgs& a, const float (&acc)[kParts][4], int first, int second, In* to) const {
    bool odd = hw::lane_id() % 2 == 1;
    if constexpr (kParts == 1) {
      unsigned mine[2] = {packed(a, acc[0], 0, 0, first, to), packed(a, acc[0], 0, 1, second, to)};
      unsigned got = hw::shfl_xor(odd ? mine[0] : mine[1], 1);
      put(odd ? got : mine[0], odd ? mine[1] : got, odd ? second : first, to);
    } else {
      GCONV_UNROLL
      for (int j = 0; j < 2; ++j) {
        int offset = j == 0 ? first : second;
        unsigned low = packed(a, acc[0], 0, j, offset, to), high = packed(a, acc[1], 1, j, offset, to);
        if constexpr (kBundles) {
          unsigned got = hw::shfl_xor(odd ? low : high, 1);
          low = odd ? got : low;
          high = odd ? high : got;
        }
        put(low, high, offset, to);
      }
    }
  }

 private:
  // Two neighbouring channels of part t and half tile j, before any exchange.
  GCONV_DEVICE unsigned packed(const ConvArgs& a, const float (&acc)[4], int t, int j, int offset, In* to) const {
    float low = acc[2 * j], high = acc[2 * j + 1];
    if constexpr (S::kExpression) {
      int shift = (kBundles ? t * 8 + hw::lane_id() % 4 * 2 : hw::lane_id() % 4 * 4 + 2 * t) - lane_channel();
      if (offset >= 0 && channel + shift < a.G * S::kCg) {
        long long element = to - (const In*)(Shape::kForwardDirection ? a.y : a.x) + offset + shift;
        low = S::Epilogue::apply(low, a, channel + shift, element);
        high = S::Epilogue::apply(high, a, channel + shift + 1, element + 1);
      }
    }
    return Mma::pack(low, high);
  }
  GCONV_DEVICE void put(unsigned low, unsigned high, int offset, In* to) const {
    if (offset >= 0 && stores) *(Raw<8>*)(to + offset) = {{low, high}};
  }
};

}  // namespace gconv

#endif  // GCONV_NVIDIA
