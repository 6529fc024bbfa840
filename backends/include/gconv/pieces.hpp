// split_image: the result's first spatial axis in pieces of kPieceRows rows, each piece of each image a convolution of its own, so that
// 32-bit offsets reach over it. Its input starts where its first row's window does; padding is counted from there.
#pragma once

#include "conv_operands.hpp"

namespace gconv {

// The first spatial axis: its place in the arrays of ConvArgs, and its filter.
template <class S>
struct CutAxis {
  static constexpr int kAxis = 3 - S::kAxes;
  template <class T>
  static constexpr GCONV_DEVICE int of() {
    return kAxis == 0 ? T::d : kAxis == 1 ? T::h : T::w;
  }
};

// The arguments of piece `number` (counted over all images), and the element of the result where it starts.
// The divisors of ConvArgs stay right: those that a piece makes wrong divide numbers below them.
template <class S>
GCONV_DEVICE ConvArgs piece_of_image(const ConvArgs& a, int number, long long& result0) {
  using In = typename S::In;
  using Cut = CutAxis<S>;
  constexpr int axis = Cut::kAxis, stride = Cut::template of<typename S::Stride>();
  constexpr int reach = (Cut::template of<typename S::Filter>() - 1) * Cut::template of<typename S::Dilation>();
  constexpr bool forward = S::kDirection == kForward;
  int size = forward ? a.out[axis] : a.in[axis], pieces = (size + S::kPieceRows - 1) / S::kPieceRows;
  int image = number / pieces, first = (number - image * pieces) * S::kPieceRows, rows = min_of(size - first, (int)S::kPieceRows);
  int in0, out0;
  if (forward) {
    out0 = first;
    in0 = min_of(max_of(out0 * stride - a.pad[axis], 0), a.in[axis]);
  } else {
    in0 = first;
    out0 = min_of(max_of(in0 + a.pad[axis] - reach, 0) / stride, a.out[axis]);
  }
  ConvArgs piece = a;
  piece.N = 1;
  piece.in[axis] = forward ? a.in[axis] - in0 : rows;
  piece.out[axis] = forward ? rows : a.out[axis] - out0;
  piece.pad[axis] = a.pad[axis] + in0 - out0 * stride;
  long long x0 = image * a.xv.n + in0 * a.xv.s[axis], y0 = image * a.yv.n + out0 * a.yv.s[axis];
  if (forward) piece.x = (In*)a.x + x0;
  else piece.y = (In*)a.y + y0;
  result0 = forward ? y0 : x0;
  return piece;
}

}  // namespace gconv
