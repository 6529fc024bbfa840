// The row ring: geometry. A block owns a strip of result pixels (kStrip wide, of kImages images) for kBlockChannels channels and walks
// down it; the source rows that it needs pass through a ring of stages in LDS, each read once for all vertical taps (ring_loader.hpp).
// Units are the pieces that blocks deal out among themselves: a group of images, a plane of the result, kRows of its rows.
//
// S, written by the lowering, states kDirection (forward or bwd_data), kAxes, Filter, Stride, kCg (of K/G too), kBlockChannels (64, 32),
// kStrip, kRows, kImages, kRing (stages), kStageRows (source rows of a stage), kWaveChannels (result channels of a wave: 16, or 8 where the
// weights of 16 would take too many registers), kWavesPixels and kTiles (16-pixel tiles of a wave; they cover the strip), kMergeRows (one row of taps: the rows of all images follow each other as those of one), kOddPadH, kOddPadW,
// kEngine and kUnit (ring_loader.hpp), In, Epilogue, and kWn, kWg, kWd, kWh, kWw, kWc, the element strides of the weights.
//
// bwd_data with stride 2 (kPairs) computes pairs of result rows and columns: those that start a pair belong to one stride phase, the others
// to the other, and each source pixel meets taps of both. Rows, strips and tiles then count pairs.
#pragma once

#include "fragment.hpp"

namespace gconv {

template <class S>
struct RingShape {
  static constexpr bool kForwardDirection = S::kDirection == kForward;
  static constexpr bool kPairs = !kForwardDirection && S::Stride::w == 2;
  static constexpr int kStepH = kForwardDirection ? S::Stride::h : 1, kStepW = kForwardDirection ? S::Stride::w : 1;
  static constexpr int kStepD = kForwardDirection ? S::Stride::d : 1;
  static constexpr int kTapsD = S::Filter::d;  // source rows, columns, planes that a result (a pair) sees
  static constexpr int kTapsH = kPairs ? ceil_div(S::Filter::h, 2) : S::Filter::h, kTapsW = kPairs ? ceil_div(S::Filter::w, 2) : S::Filter::w;
  static constexpr int kPlanes = S::kAxes == 3 ? kTapsD : 1;

  static constexpr int kSlices = S::kBlockChannels / S::kWaveChannels, kWaves = kSlices * S::kWavesPixels, kConsumers = kWaves * hw::kWave;
  static constexpr int kPixelBytes = S::kBlockChannels * 2, kHalves = ceil_div(S::kStrip, 8);  // half tiles of 8 pixels
  static constexpr int kSegment = ceil_div((kHalves * 8 - 1) * kStepW + kTapsW, 8) * 8;        // source pixels of a row
  static constexpr int kRowBytes = kSegment * kPixelBytes, kPlaneBytes = kRowBytes * S::kStageRows;
  static constexpr int kImageBytes = kPlaneBytes * kPlanes, kStageBytes = kImageBytes * S::kImages;
  static constexpr int kAlignment = 8 * kPixelBytes;  // of a stage: the period of the swizzle
  static constexpr int kRingBytes = kStageBytes * S::kRing;
  static_assert(2 * S::kWavesPixels * S::kTiles >= S::kImages * kHalves, "the tiles cover the strip");
};

// What one unit is.
struct RingUnit {
  int image, plane, row;  // first image, plane of the result, first row (pair)
  int rows, source_rows;  // of this unit
};

// Block-shared memory of a ring, aligned.
template <class S>
GCONV_DEVICE unsigned char* ring_stages(unsigned char* lds) {
  constexpr unsigned alignment = RingShape<S>::kAlignment;
  return lds + (alignment - (unsigned)(unsigned long long)lds % alignment) % alignment;
}

template <class S>
struct RingPlace {
  using Shape = RingShape<S>;
  int channel, column, split, splits, strips, units;
  int images, planes, rows, width;  // of the result, in rows and columns (pairs)
  int low_d, low_h, low_w;          // source coordinate of the first tap is result coordinate * step - low

  static GCONV_DEVICE RingPlace of(const ConvArgs& a) {
    constexpr bool forward = Shape::kForwardDirection;
    const int* result = forward ? a.out : a.in;
    RingPlace p;
    unsigned blocks_c = (unsigned)(a.G * S::kCg + S::kBlockChannels - 1) / S::kBlockChannels, b = (unsigned)hw::block_id_x();
    p.width = Shape::kPairs ? (result[2] + 1) / 2 : result[2];
    p.rows = Shape::kPairs ? (result[1] + 1) / 2 : result[1];
    p.images = a.N;
    if constexpr (S::kMergeRows) {
      p.rows *= a.N;
      p.images = 1;
    }
    p.planes = S::kAxes == 3 ? result[0] : 1;
    unsigned columns = (unsigned)(p.width + S::kStrip - 1) / S::kStrip;
    p.channel = (int)(b % blocks_c) * S::kBlockChannels;
    p.column = (int)(b / blocks_c % columns) * S::kStrip;
    p.split = (int)(b / blocks_c / columns);
    p.splits = a.splits;
    p.strips = (p.rows + S::kRows - 1) / S::kRows;
    p.units = (p.images + S::kImages - 1) / S::kImages * p.planes * p.strips;
    p.low_d = low(S::Filter::d, a.pad[0], false);
    p.low_h = low(S::Filter::h, a.pad[1], S::kOddPadH);
    p.low_w = low(S::Filter::w, a.pad[2], S::kOddPadW);
    return p;
  }
  static GCONV_DEVICE int low(int filter, int pad, bool odd) {
    if constexpr (Shape::kForwardDirection) return pad;
    if constexpr (Shape::kPairs) return (filter + 1) / 2 - 1 - (pad + (odd ? 1 : 0)) / 2;
    return filter - 1 - pad;
  }
  // Where the first result row of a unit is, and how far the next.
  GCONV_DEVICE typename S::In* first_row(const ConvArgs& a, const RingUnit& u) const {
    const TensorView& view = Shape::kForwardDirection ? a.yv : a.xv;
    long long at = u.image * view.n + (Shape::kPairs ? 2 : 1) * u.row * row_stride(a);
    if constexpr (S::kAxes == 3) at += u.plane * view.s[0];
    return (typename S::In*)(Shape::kForwardDirection ? a.y : a.x) + at;
  }
  static GCONV_DEVICE long long row_stride(const ConvArgs& a) {
    const TensorView& view = Shape::kForwardDirection ? a.yv : a.xv;
    return S::kMergeRows && S::kAxes == 1 ? view.n : view.s[1];
  }
  GCONV_DEVICE RingUnit unit(int u) const {
    RingUnit one;
    one.row = u % strips * S::kRows;
    int rest = u / strips;
    one.plane = S::kAxes == 3 ? rest % planes : 0;
    one.image = (S::kAxes == 3 ? rest / planes : rest) * S::kImages;
    one.rows = min_of(S::kRows, rows - one.row);
    one.source_rows = (one.rows - 1) * Shape::kStepH + Shape::kTapsH;
    return one;
  }
};

// The stages that a block passes through, in order.
template <class S>
struct RingWalk {
  int number, row;  // of the unit; first source row of the stage, counted from the unit's first
  RingUnit unit;
  GCONV_DEVICE void start(const RingPlace<S>& p) {
    number = p.split;
    row = 0;
    if (more(p)) unit = p.unit(number);
  }
  GCONV_DEVICE bool more(const RingPlace<S>& p) const { return number < p.units; }
  GCONV_DEVICE void next(const RingPlace<S>& p) {
    row += S::kStageRows;
    if (row < unit.source_rows) return;
    row = 0;
    number += p.splits;
    if (more(p)) unit = p.unit(number);
  }
};

}  // namespace gconv
