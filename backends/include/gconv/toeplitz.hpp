// Depthwise convolution with long rows of taps on the matrix units, forward and bwd_data (which reads the filter backwards): Toeplitz
// products (toeplitz_place.hpp says what S states). A block brings its source pixels once, transposed into planes, multiplies, puts the
// results where the sources were, and stores them transposed back.
//
// A Toeplitz product also multiplies pixels outside of a result's window, by zeros. That is wrong for Inf and NaN: a block that finds one
// among its sources computes its results tap by tap.
#pragma once

#include "fragment.hpp"
#include "toeplitz_place.hpp"

#if defined(GCONV_NVIDIA)

namespace gconv {

template <class S>
struct Toeplitz {
  using Shape = ToeplitzShape<S>;
  using Place = ToeplitzPlace<S>;
  using In = typename S::In;
  using Mma = typename conditional<is_same<In, bf16>::value, mma_m16n8k16_bf16, mma_m16n8k16_f16>::type;
  using Pieces = unsigned[Shape::kPieces];
  using Sums = float[S::kTiles][S::kColumns][4];
  static constexpr int kThreads = Shape::kThreads, kFlagsAt = (Shape::kPlaneElements + Shape::kTapElements) * (int)sizeof(In);
  static_assert(kFlagsAt + Shape::kChannels * (int)sizeof(int) == S::kShared, "the launch asks for what is used");

  static GCONV_DEVICE void run(const ConvArgs& a) {
    GCONV_LDS(In, planes, Shape::kPlaneElements, 0);
    GCONV_LDS(In, taps, Shape::kTapElements, Shape::kPlaneElements * (int)sizeof(In));
    GCONV_LDS(int, flags, Shape::kChannels, kFlagsAt);
    Place p = Place::of(a);
    clear(taps, Shape::kTapElements);
    clear(planes + Shape::kChannels * Shape::kPlane, Shape::kZeros);
    hw::barrier();
    load_taps(a, p, taps);
    bool special = hw::any_lane(load_planes(a, p, planes));
    if (hw::lane_id() == 0) flags[hw::wave_id()] = special;
    hw::barrier();
    int any = 0;
    GCONV_UNROLL
    for (int i = 0; i < Shape::kChannels; ++i) any |= flags[i];
    In* plane = planes + hw::wave_id() * Shape::kPlane;
    const In* line = taps + hw::wave_id() * (Shape::kTapsH * Shape::kLine);
    if (any != 0) {
      tap_by_tap(a, p, plane, line);
      return;
    }
    if constexpr (Shape::kSegments) multiply_segments(a, p, plane, line);
    else multiply_rows(a, p, plane, planes + Shape::kChannels * Shape::kPlane, line);
    hw::barrier();
    store_planes(a, p, planes);
  }

 private:
  // --- into LDS

  static GCONV_DEVICE void clear(In* from, int elements) {
    for (int i = hw::thread_id(); i < elements / 8; i += kThreads) ((Raw<16>*)from)[i] = {};
  }

  // Rows of taps, in the order in which sources meet them. The filters of 8 channels are contiguous.
  static GCONV_DEVICE void load_taps(const ConvArgs& a, const Place& p, In* taps) {
    constexpr int filter = Shape::kTapsH * Shape::kTapsW;
    const In* from = (const In*)a.w + (long long)p.channel * filter;
    for (int i = hw::thread_id(); i < filter; i += kThreads) {
      Raw<16> raw = ((const Raw<16>*)from)[i];
      GCONV_UNROLL
      for (int v = 0; v < 8; ++v) {
        int at = i * 8 + v, channel = at / filter, tap = at % filter;
        if (!Shape::kForwardDirection) tap = filter - 1 - tap;
        In value = {(unsigned short)(raw.word[v / 2] >> 16 * (v % 2))};
        taps[(channel * Shape::kTapsH + tap / Shape::kTapsW) * Shape::kLine + Shape::kLead + tap % Shape::kTapsW] = value;
      }
    }
  }

  // Pairs of neighbouring pixels of 8 channels, each a register of 8 planes. Returns whether there was an Inf or NaN.
  static GCONV_DEVICE bool load_planes(const ConvArgs& a, const Place& p, In* planes) {
    constexpr int pairs = Shape::kLoadWidth / 2, units = Shape::kLoadRows * pairs, batch = 4;
    const TensorView& view = Shape::kForwardDirection ? a.xv : a.yv;
    const In* base = (const In*)(Shape::kForwardDirection ? a.x : a.y) + p.image * view.n + p.channel;
    unsigned found = 0;
    GCONV_KEEP_LOOP
    for (int unit0 = hw::thread_id(); unit0 < units; unit0 += batch * kThreads) {
      Raw<16> low[batch], high[batch];
      GCONV_UNROLL
      for (int b = 0; b < batch; ++b) {
        int unit = unit0 + b * kThreads, row = p.first_row + unit / pairs, column = p.first_column + unit % pairs * 2;
        bool ok = unit < units && row < p.source_rows;
        long long at = (row * view.s[1] + column * view.s[2]) * 2;
        low[b] = hw::load_or_zero<16>(base, at, ok && (unsigned)column < (unsigned)p.source_width);
        high[b] = hw::load_or_zero<16>(base, at + view.s[2] * 2, ok && (unsigned)(column + 1) < (unsigned)p.source_width);
      }
      GCONV_UNROLL
      for (int b = 0; b < batch; ++b) {
        int unit = unit0 + b * kThreads;
        if (unit >= units) continue;
        unsigned* to = (unsigned*)(planes + unit / pairs * Shape::kPitch + unit % pairs * 2);
        GCONV_UNROLL
        for (int i = 0; i < 4; ++i) {
          unsigned first = low[b].word[i], second = high[b].word[i];
          found |= special(first) | special(second);
          to[2 * i * (Shape::kPlane / 2)] = (first & 0xffffu) | second << 16;
          to[(2 * i + 1) * (Shape::kPlane / 2)] = first >> 16 | (second & 0xffff0000u);
        }
      }
    }
    return found != 0;
  }
  // Not zero if one of two values has all bits of the exponent set: adding one to the exponent then carries into the sign.
  static GCONV_DEVICE unsigned special(unsigned pair) {
    constexpr bool wide = is_same<In, bf16>::value;
    constexpr unsigned exponent = wide ? 0x7f807f80u : 0x7c007c00u, one = wide ? 0x00800080u : 0x04000400u;
    return ((pair & exponent) + one) & 0x80008000u;
  }

  // --- products

  // What this lane holds of the pieces of one row's Toeplitz matrix: k of lane % 4 * 2 and the next, n of lane / 4.
  static GCONV_DEVICE void load_pieces(Pieces& pieces, const In* line) {
    int at = Shape::kLead + Shape::kFirstPiece + hw::lane_id() % 4 * 2 - hw::lane_id() / 4 - S::kShift;
    const unsigned* words = (const unsigned*)line + at / 2;
    int shift = at % 2 * 16;
    GCONV_UNROLL
    for (int i = 0; i < Shape::kPieces; ++i)
      pieces[i] = (unsigned)(((unsigned long long)words[4 * i + 1] << 32 | words[4 * i]) >> shift);
  }

  // Adds one row of taps to a tile of 16 rows; `row`: this lane's row of the first operand.
  static GCONV_DEVICE void multiply(float (&sums)[S::kColumns][4], hw::LdsAddress row, const Pieces& pieces) {
    unsigned sources[S::kSteps][4];
    GCONV_UNROLL
    for (int j = 0; j < S::kSteps; ++j) hw::ldmatrix_x4(sources[j], row + 32 * j);
    GCONV_UNROLL
    for (int j = 0; j < S::kSteps; ++j)
      GCONV_UNROLL
      for (int t = 0; t < S::kColumns; ++t)
        if (Shape::needed(S::kFirst + j, t)) {
          int i = (Shape::piece(S::kFirst + j, t) - Shape::kFirstPiece) / 8;
          Mma::multiply(sums[t], sources[j], {pieces[i], pieces[i + 1]});
        }
  }
  static GCONV_DEVICE void clear_sums(Sums& sums) {
    GCONV_UNROLL
    for (int m = 0; m < S::kTiles; ++m)
      GCONV_UNROLL
      for (int t = 0; t < S::kColumns; ++t)
        GCONV_UNROLL
        for (int e = 0; e < 4; ++e) sums[m][t][e] = 0.0f;
  }

  static GCONV_DEVICE void multiply_rows(const ConvArgs& a, const Place& p, In* plane, const In* zeros, const In* line) {
    int lane = hw::lane_id(), first = p.row - p.low_h + lane % 16;
    hw::LdsAddress base = hw::lds_address(plane) + lane / 16 * 16, nothing = hw::lds_address(zeros) + lane / 16 * 16;
    Sums sums;
    clear_sums(sums);
    int begin = max_of(0, p.low_h - p.row - (Shape::kRows - 1)), end = min_of(Shape::kTapsH, p.source_rows + p.low_h - p.row);
    GCONV_KEEP_LOOP
    for (int kh = begin; kh < end; ++kh) {
      Pieces pieces;
      load_pieces(pieces, line + kh * Shape::kLine);
      GCONV_UNROLL
      for (int m = 0; m < S::kTiles; ++m) {
        int h = first + 16 * m + kh;
        bool ok = (unsigned)h < (unsigned)p.source_rows;
        multiply(sums[m], ok ? base + (h - p.first_row) * (Shape::kPitch * 2) : nothing, pieces);
      }
    }
    GCONV_UNROLL
    for (int m = 0; m < S::kTiles; ++m) put(a, p, sums[m], 16 * m, plane);
  }

  // Results of a segment replace sources that later ones do not read.
  static GCONV_DEVICE void multiply_segments(const ConvArgs& a, const Place& p, In* plane, const In* line) {
    int lane = hw::lane_id();
    hw::LdsAddress base = hw::lds_address(plane) + lane % 16 * 16 + lane / 16 * 16;
    Pieces pieces;
    load_pieces(pieces, line);
    GCONV_KEEP_LOOP
    for (int pass = 0; pass < S::kPasses; ++pass) {
      Sums sums;
      clear_sums(sums);
      GCONV_UNROLL
      for (int m = 0; m < S::kTiles; ++m) multiply(sums[m], base + (pass * S::kTiles + m) * 256, pieces);
      GCONV_UNROLL
      for (int m = 0; m < S::kTiles; ++m) put(a, p, sums[m], 16 * (pass * S::kTiles + m), plane);
    }
  }

  // --- results

  static GCONV_DEVICE int result_row(const Place& p, int row) { return Shape::kSegments ? 0 : p.row + row; }
  static GCONV_DEVICE int result_column(const Place& p, int row, int column) {
    return p.column + column + (Shape::kSegments ? 8 * row : 0);
  }
  static GCONV_DEVICE const TensorView& result_view(const ConvArgs& a) { return Shape::kForwardDirection ? a.yv : a.xv; }
  static GCONV_DEVICE In* result(const ConvArgs& a) { return (In*)(Shape::kForwardDirection ? a.y : a.x); }
  static GCONV_DEVICE long long element(const ConvArgs& a, const Place& p, int row, int column) {
    const TensorView& view = result_view(a);
    return p.image * view.n + row * view.s[1] + column * view.s[2] + p.channel;
  }

  // The sums of a tile through the epilogue into the wave's plane; `row0`: of the tile in the strip.
  static GCONV_DEVICE void put(const ConvArgs& a, const Place& p, const float (&sums)[S::kColumns][4], int row0, In* plane) {
    GCONV_UNROLL
    for (int t = 0; t < S::kColumns; ++t)
      GCONV_UNROLL
      for (int half = 0; half < 2; ++half) {
        int row = row0 + hw::lane_id() / 4 + 8 * half, column = 8 * t + hw::lane_id() % 4 * 2;
        float low = finish(a, p, sums[t][2 * half], row, column), high = finish(a, p, sums[t][2 * half + 1], row, column + 1);
        *(unsigned*)(plane + row * Shape::kResultPitch + column) =
            is_same<In, bf16>::value ? hw::float_to_bf16x2(low, high) : hw::float_to_f16x2(low, high);
      }
  }
  static GCONV_DEVICE float finish(const ConvArgs& a, const Place& p, float sum, int row, int column) {
    if constexpr (S::kExpression) {
      int h = result_row(p, row), w = result_column(p, row, column);
      if (h < p.rows && w < p.width) sum = S::Epilogue::apply(sum, a, p.channel + hw::wave_id(), element(a, p, h, w) + hw::wave_id());
    }
    return sum;
  }

  static GCONV_DEVICE void store_planes(const ConvArgs& a, const Place& p, const In* planes) {
    constexpr int pairs = Shape::kWidth / 2, units = Shape::kRows * pairs;
    GCONV_KEEP_LOOP
    for (int unit = hw::thread_id(); unit < units; unit += kThreads) {
      int row = unit / pairs, column = unit % pairs * 2, h = result_row(p, row), w = result_column(p, row, column);
      if (h >= p.rows || w >= p.width) continue;
      const unsigned* from = (const unsigned*)(planes + row * Shape::kResultPitch + column);
      Raw<16> low, high;
      GCONV_UNROLL
      for (int i = 0; i < 4; ++i) {
        unsigned first = from[2 * i * (Shape::kPlane / 2)], second = from[(2 * i + 1) * (Shape::kPlane / 2)];
        low.word[i] = (first & 0xffffu) | second << 16;
        high.word[i] = first >> 16 | (second & 0xffff0000u);
      }
      In* to = result(a) + element(a, p, h, w);
      *(Raw<16>*)to = low;
      if (w + 1 < p.width) *(Raw<16>*)(to + result_view(a).s[2]) = high;
    }
  }

  // The same results with nothing multiplied outside of their windows. A lane's results are those of its wave's channel.
  static GCONV_DEVICE void tap_by_tap(const ConvArgs& a, const Place& p, const In* plane, const In* line) {
    GCONV_KEEP_LOOP
    for (int i = hw::lane_id(); i < Shape::kRows * Shape::kWidth; i += hw::kWave) {
      int row = i / Shape::kWidth, column = i % Shape::kWidth, h = result_row(p, row), w = result_column(p, row, column);
      if (h >= p.rows || w >= p.width) continue;
      float sum = 0.0f;
      GCONV_KEEP_LOOP
      for (int kh = 0; kh < Shape::kTapsH; ++kh) {
        int from_h = h - p.low_h + kh;
        if ((unsigned)from_h >= (unsigned)p.source_rows) continue;
        const In* source = plane + (from_h - p.first_row) * Shape::kPitch;
        GCONV_KEEP_LOOP
        for (int kw = 0; kw < Shape::kTapsW; ++kw) {
          int from_w = w - p.low_w + kw;
          if ((unsigned)from_w >= (unsigned)p.source_width) continue;
          sum = __builtin_fmaf(to_float(source[from_w - p.first_column]), to_float(line[kh * Shape::kLine + Shape::kLead + kw]), sum);
        }
      }
      result(a)[element(a, p, h, w) + hw::wave_id()] = from_float<In>(finish(a, p, sum, row, column));
    }
  }
};

}  // namespace gconv

#endif  // GCONV_NVIDIA
