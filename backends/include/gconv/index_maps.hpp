// Index maps of implicit GEMM: how a row or a k of an operand tile becomes an address and a place in an image.
// The address of element (row, k) is the sum of two parts, and it is inside the image when the sum of two coordinates is:
// one map of rows and one map of k serve all three directions, only their roles change.
#pragma once

#include "device.hpp"

namespace gconv {

// A part of an address: byte offset (modulo the offset type's range) and coordinates along d, h, w.
template <class Offset>
struct Point {
  Offset offset;
  int d, h, w;
};

struct Extent {
  int d, h, w;
};

template <int Axes, class Offset>
GCONV_DEVICE bool inside(const Point<Offset>& a, const Point<Offset>& b, const Extent& e) {
  bool ok = (unsigned)(a.w + b.w) < (unsigned)e.w;
  if constexpr (Axes > 1) ok = ok & ((unsigned)(a.h + b.h) < (unsigned)e.h);
  if constexpr (Axes > 2) ok = ok & ((unsigned)(a.d + b.d) < (unsigned)e.d);
  return ok;
}

template <class Offset>
GCONV_DEVICE Point<Offset> outside() {
  return {0, 0, 0, kFar};
}

// Strides of a tensor in bytes, in the offset type.
template <class Offset>
struct ByteStrides {
  Offset n, g, d, h, w, c;
};
template <class Offset, class T>
GCONV_DEVICE ByteStrides<Offset> byte_strides(const TensorView& v) {
  constexpr int size = sizeof(T);
  return {(Offset)(v.n * size), (Offset)(v.g * size), (Offset)(v.s[0] * size), (Offset)(v.s[1] * size),
          (Offset)(v.s[2] * size), (Offset)(v.c * size)};
}

// One axis of a stride phase of bwd_data: inputs i = first + t stride meet the filter positions k = k0 + j kstep, at the outputs
// o = t + o0 - j ostep. With stride 1 there is one phase and it holds everything.
struct PhaseAxis {
  int first, count, k0, taps, o0;
};
template <int Stride, int Dilation, int Filter>
struct PhaseSteps {
  static constexpr int kKStep = Stride / gcd_of(Stride, Dilation);
  static constexpr int kOStep = kKStep * Dilation / Stride;
  static GCONV_DEVICE PhaseAxis at(int residue, int pad, int in) {
    PhaseAxis a;
    a.first = ((residue - pad) % Stride + Stride) % Stride;
    a.count = a.first < in ? (in - a.first + Stride - 1) / Stride : 0;
    a.k0 = 0;
    while (a.k0 < kKStep && (residue + Stride * Dilation - a.k0 * Dilation % Stride) % Stride != 0) ++a.k0;
    a.taps = a.k0 < min_of(kKStep, Filter) ? (Filter - 1 - a.k0) / kKStep + 1 : 0;
    a.o0 = (a.first + pad - a.k0 * Dilation) / Stride;  // exact: the numerator is a multiple of the stride
    return a;
  }
};

// A decoded position in the filter window and a channel.
struct TapChannel {
  int d, h, w, c;
  bool valid;
};

// Tap number and channel -> indices along the axes of a filter with h * w and w known at compile time.
template <class Filter>
GCONV_DEVICE TapChannel split_tap(int tap, int channel) {
  TapChannel t;
  t.d = (int)((unsigned)tap / (unsigned)(Filter::h * Filter::w));
  t.h = (int)((unsigned)tap / (unsigned)Filter::w) - t.d * Filter::h;
  t.w = (int)((unsigned)tap % (unsigned)Filter::w);
  t.c = channel;
  t.valid = tap < Filter::product;
  return t;
}
struct TapNumber {
  int tap, c;
};
// k = step * Step + column -> (tap, channel), the tap outermost. When whole steps stay inside one tap, the tap is uniform over
// the block and costs no vector arithmetic.
// With Chunk > 0 a step is all taps of Chunk channels instead (window.hpp).
template <int Channels, int Step, int Chunk>
GCONV_DEVICE TapNumber tap_of(int step, int column) {
  if constexpr (Chunk > 0) {
    return {(int)((unsigned)column / (unsigned)Chunk), step * Chunk + (int)((unsigned)column % (unsigned)Chunk)};
  } else if constexpr (Channels % Step == 0) {
    constexpr int per_tap = Channels / Step;
    return {(int)((unsigned)step / (unsigned)per_tap), (int)((unsigned)step % (unsigned)per_tap) * Step + column};
  } else {
    int k = step * Step + column, tap = (int)((unsigned)k / (unsigned)Channels);
    return {tap, k - tap * Channels};
  }
}

// k -> (tap, channel) when the number of taps is known at compile time.
template <class Filter, int Channels, int Step, int Chunk>
struct StaticTaps {
  static GCONV_DEVICE TapChannel at(int step, int column) {
    TapNumber n = tap_of<Channels, Step, Chunk>(step, column);
    TapChannel t = split_tap<Filter>(n.tap, n.c);
    if (Chunk > 0 || Filter::product * Channels % Step == 0) t.valid = true;  // no tail
    return t;
  }
};

// Division of small numbers (quotient times divisor below 2^32) by a divisor known per block only.
struct SmallDivisor {
  unsigned mul;
  static GCONV_DEVICE SmallDivisor of(int d) { return {d == 1 ? 0u : 0xffffffffu / (unsigned)d + 1u}; }
  GCONV_DEVICE int divide(int n) const { return mul == 0 ? n : (int)hw::multiply_high((unsigned)n, mul); }
};

// The same for the taps of a phase, whose number is known per block only.
template <int Channels, int Step>
struct PhaseTaps {
  int total, nh, nw;
  SmallDivisor by_hw, by_w;
  static GCONV_DEVICE PhaseTaps of(int nd, int nh, int nw) {
    return {nd * nh * nw, nh, nw, SmallDivisor::of(max_of(nh * nw, 1)), SmallDivisor::of(max_of(nw, 1))};
  }
  GCONV_DEVICE TapChannel at(int step, int column) const {
    TapNumber n = tap_of<Channels, Step, 0>(step, column);
    int tap = n.tap;
    TapChannel t;
    t.c = n.c;
    t.valid = tap < total;
    t.d = by_hw.divide(tap);
    int rest = tap - t.d * nh * nw;
    t.h = by_w.divide(rest);
    t.w = rest - t.h * nw;
    return t;
  }
};

// A position in the images: image number relative to the block's first one, and spatial indices.
struct Pixel {
  int n, d, h, w;
};
// Pixel number -> position, by the output sizes.
GCONV_DEVICE Pixel output_pixel(const ConvArgs& a, int pixel) {
  Pixel p;
  p.n = divide(pixel, a.image_div);
  int rest = pixel - p.n * (a.out[0] * a.out[1] * a.out[2]);
  int row = divide(rest, a.out_div[2]);
  p.w = rest - row * a.out[2];
  p.d = divide(row, a.out_div[1]);
  p.h = row - p.d * a.out[1];
  return p;
}
// Pixel number -> position, by sizes known per block only.
GCONV_DEVICE Pixel phase_pixel(int pixel, int cd, int ch, int cw) {
  unsigned image = (unsigned)(cd * ch * cw), u = (unsigned)pixel;
  Pixel p;
  p.n = (int)(u / image);
  unsigned rest = u % image, row = rest / (unsigned)cw;
  p.w = (int)(rest % (unsigned)cw);
  p.d = (int)(row / (unsigned)ch);
  p.h = (int)(row % (unsigned)ch);
  return p;
}

}  // namespace gconv
