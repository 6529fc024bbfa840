// Depthwise convolution as Toeplitz products: geometry. A block owns 8 neighbouring channels and a strip of results of one image; the
// source pixels that it needs lie in LDS as one plane a channel, and each of its 8 waves computes one channel.
//
// A product is 16 rows x 8 results x 16 source columns of a row. Its second operand is a piece of the Toeplitz matrix of a row of taps,
// B[k][n] = w[e + k - n - kShift] with e = 16 * step - 8 * tile, so that all products with the same e share it.
// Two axes: the 16 rows are rows of results, kPitch apart. One axis (kSegments): they are segments of 8 results, 8 apart, and overlap.
//
// S, written by the lowering, states kDirection (forward, bwd_data), kAxes, Filter, In, Epilogue, kExpression, kTiles (of 16 rows, at
// once), kColumns (tiles of 8 results), kPasses (one axis: times kTiles), kFirst and kSteps (steps of 16 source columns that meet the
// image), kShift (columns between the first step and the first tap of the first result), kPlaneRows (source rows of a strip), kStrips (of
// a row), kBands (strips above each other) and kShared (bytes of LDS).
#pragma once

#include "device.hpp"

namespace gconv {

template <class S>
struct ToeplitzShape {
  static constexpr bool kForwardDirection = S::kDirection == kForward, kSegments = S::kAxes == 1;
  static constexpr int kChannels = 8, kThreads = kChannels * hw::kWave;
  static constexpr int kTapsH = S::Filter::h, kTapsW = S::Filter::w;

  // The pieces of the Toeplitz matrix: e of the first and the last that is not zero, in steps of 8.
  static constexpr int kFirstPiece = (S::kShift - 15) / 8 * 8, kLastPiece = (kTapsW + 6 + S::kShift) / 8 * 8;
  static constexpr int kPieces = (kLastPiece + 8 - kFirstPiece) / 8 + 1;  // each is the low half of one and the high half of another
  // A row of taps in LDS, with zeros around it; in elements.
  static constexpr int kLead = (7 + S::kShift - kFirstPiece + 1) / 2 * 2;
  static constexpr int kLine = (max_of(kLead + kTapsW, kLead + kLastPiece + 8 + 6 - S::kShift + 4) + 7) / 8 * 8;
  static constexpr int kTapElements = kChannels * kTapsH * kLine;

  // Planes in LDS, in elements. Pitches are odd multiples of 16 bytes: 8 rows lie in different banks.
  static constexpr int kRows = kSegments ? 16 * S::kTiles * S::kPasses : 16 * S::kTiles, kWidth = 8 * S::kColumns;
  static constexpr int kPitch = kSegments ? 8 : 16 * S::kSteps + 8, kResultPitch = kSegments ? 8 : 8 * (S::kColumns | 1);
  static constexpr int kLoadRows = kSegments ? 1 : S::kPlaneRows;
  static constexpr int kLoadWidth = kSegments ? kRows * 8 - 8 + 16 * S::kSteps : 16 * S::kSteps;
  static constexpr int kPlane = (max_of(kSegments ? kLoadWidth : S::kPlaneRows * kPitch, kRows * kResultPitch) + 7) / 8 * 8;
  static constexpr int kStripWidth = kSegments ? kRows * 8 : kWidth;  // results of a row
  static constexpr int kZeros = 16 * S::kSteps;                       // a row of zeros behind the planes
  static constexpr int kPlaneElements = kChannels * kPlane + kZeros;

  static constexpr GCONV_DEVICE int piece(int step, int tile) { return 16 * step - 8 * tile; }
  static constexpr GCONV_DEVICE bool needed(int step, int tile) {
    return piece(step, tile) >= kFirstPiece && piece(step, tile) <= kLastPiece;
  }
};

// What a block computes.
template <class S>
struct ToeplitzPlace {
  using Shape = ToeplitzShape<S>;
  int channel, image, row, column;        // first result
  int rows, width;                        // of the result
  int source_rows, source_width;          // of the source image
  int first_row, first_column;            // source coordinates of the first element of a plane
  int low_h, low_w;                       // a result's first tap is at its coordinate minus this

  static GCONV_DEVICE ToeplitzPlace of(const ConvArgs& a) {
    constexpr bool forward = Shape::kForwardDirection;
    const int *result = forward ? a.out : a.in, *source = forward ? a.in : a.out;
    unsigned groups = (unsigned)a.G / Shape::kChannels, block = (unsigned)hw::block_id_x(), rest = block / groups;
    ToeplitzPlace p;
    p.channel = (int)(block % groups) * Shape::kChannels;
    p.column = (int)(rest % S::kStrips) * Shape::kStripWidth;
    rest /= S::kStrips;
    p.row = Shape::kSegments ? 0 : (int)(rest % S::kBands) * Shape::kRows;
    p.image = (int)(rest / S::kBands);
    p.rows = result[1];
    p.width = result[2];
    p.source_rows = source[1];
    p.source_width = source[2];
    p.low_h = forward ? a.pad[1] : Shape::kTapsH - 1 - a.pad[1];
    p.low_w = forward ? a.pad[2] : Shape::kTapsW - 1 - a.pad[2];
    p.first_row = p.row - p.low_h > 0 ? p.row - p.low_h : 0;
    p.first_column = p.column - p.low_w - S::kShift + 16 * S::kFirst;
    return p;
  }
};

}  // namespace gconv
