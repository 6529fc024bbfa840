// The operands of the three directions as implicit GEMM per group, C[m][n] = sum over k of A[m][k] B[n][k]:
//   forward     m output pixels       n output channels      k (filter tap, input channel)     A = x   B = w   C = y
//   bwd_data    m input pixels        n input channels       k (filter tap, output channel)    A = dy  B = w   C = dx, per stride phase
//   bwd_weight  m output channels     n (filter tap, input channel)     k output pixels        A = dy  B = x   C = dw
// Each operand maps rows and k to `Point`s (index_maps.hpp). A block works on one tile of m, one of n, Merge consecutive groups.
#pragma once

#include "index_maps.hpp"

namespace gconv {

// Which part of the problem a block works on.
struct BlockPlace {
  unsigned tile_m;    // number of its m tile
  long long m0;       // first row of its m tile
  int n0, group;      // first column of its n tile; first group
  int step0, steps;   // main loop steps of this block (its split)
  long long k0;       // bwd_weight: first pixel of this block's chunk
  int split;
  PhaseAxis d, h, w;  // bwd_data
  long long result0;  // element of the result where the block's piece of the image starts (split_image)
};

template <class S>
struct Common {
  using In = typename S::In;
  using Offset = typename S::Offset;
  using P = Point<Offset>;
  const void* base;
  Extent extent;
  ByteStrides<Offset> stride;
  static constexpr bool kTransforms = false;
  GCONV_DEVICE Offset group(int g) const { return (Offset)(g * S::kPack) * stride.g; }
  GCONV_DEVICE float transform(float v, int, int, int) const { return v; }
};
// Rows r of a block's tile that there are: with pad_m = false all of them.
template <class S>
GCONV_DEVICE int tile_rows(long long left) {
  return !S::kPadM || left >= S::kM ? S::kM : (int)left;
}
template <class T>
GCONV_DEVICE const void* element_at(const void* tensor, long long element) {
  return (const char*)tensor + element * (long long)sizeof(T);
}

// x of forward: rows are output pixels.
template <class S>
struct ForwardX : Common<S> {
  using typename Common<S>::Offset;
  using typename Common<S>::P;
  using St = typename S::Stride;
  using Dl = typename S::Dilation;
  static constexpr int kChannels = S::kCg;
  static constexpr bool kTransforms = S::Prologue::kActive;
  const ConvArgs* args;
  int pixel0, rows, channel0;

  GCONV_DEVICE ForwardX(const ConvArgs& a, const BlockPlace& b) : args(&a) {
    long long image = (long long)a.out[0] * a.out[1] * a.out[2], n0 = S::kExplicit ? 0 : b.m0 / image;
    pixel0 = (int)(b.m0 - n0 * image);
    rows = tile_rows<S>(a.N * image - b.m0);
    channel0 = b.group * S::kCg;
    this->base = element_at<typename S::In>(a.x, (S::kExplicit ? b.m0 * a.xv.s[2] : n0 * a.xv.n) + (long long)b.group * S::kPack * a.xv.g);
    this->extent = {a.in[0], a.in[1], a.in[2]};
    this->stride = byte_strides<Offset, typename S::In>(a.xv);
  }
  GCONV_DEVICE P row(int r) const {
    const ConvArgs& a = *args;
    if constexpr (S::kExplicit) return {(Offset)r * this->stride.w, 0, 0, r < rows ? 0 : kFar};
    Pixel p = output_pixel(a, pixel0 + r);
    int d = p.d * St::d - a.pad[0], h = p.h * St::h - a.pad[1], w = p.w * St::w - a.pad[2];
    const auto& s = this->stride;
    P point = {(Offset)p.n * s.n + (Offset)d * s.d + (Offset)h * s.h + (Offset)w * s.w, d, h, w};
    if (r >= rows) point.w = kFar;
    return point;
  }
  GCONV_DEVICE P k(int step, int column) const {
    TapChannel t = StaticTaps<typename S::Filter, S::kCg, S::kK, S::kChunk>::at(step, column);
    int d = t.d * Dl::d, h = t.h * Dl::h, w = t.w * Dl::w;
    const auto& s = this->stride;
    P point = {(Offset)d * s.d + (Offset)h * s.h + (Offset)w * s.w + (Offset)t.c * s.c, d, h, w};
    if (!t.valid) point.w = kFar;
    return point;
  }
  GCONV_DEVICE float transform(float v, int step, int column, int g) const {
    int c = StaticTaps<typename S::Filter, S::kCg, S::kK, S::kChunk>::at(step, column).c;
    return S::Prologue::apply(v, *args, channel0 + g * S::kCg + c);
  }
};

// w of forward: rows are output channels.
template <class S>
struct ForwardW : Common<S> {
  using typename Common<S>::Offset;
  using typename Common<S>::P;
  static constexpr int kChannels = S::kCg;
  int n0;

  GCONV_DEVICE ForwardW(const ConvArgs& a, const BlockPlace& b) : n0(b.n0) {
    static_assert(S::kPack == 1 || S::kKg <= S::kN, "packed groups fill one tile");
    this->base = element_at<typename S::In>(a.w, (long long)b.group * S::kPack * a.wv.g + b.n0 * a.wv.n);
    this->extent = {1, 1, 1};
    this->stride = byte_strides<Offset, typename S::In>(a.wv);
  }
  GCONV_DEVICE P row(int r) const {
    int far = S::kKg % S::kN == 0 || n0 + r < S::kKg ? 0 : kFar;
    if constexpr (S::kPack == 1) return {(Offset)r * this->stride.n, 0, 0, far};
    constexpr int each = S::kKg / S::kPack;  // output channels of one group
    return {(Offset)(r / each) * this->stride.g + (Offset)(r % each) * this->stride.n, 0, r / each, far};
  }
  GCONV_DEVICE P k(int step, int column) const {
    TapChannel t = StaticTaps<typename S::Filter, S::kCg, S::kK, S::kChunk>::at(step, column);
    const auto& s = this->stride;
    constexpr int each = S::kCg / S::kPack;  // input channels of one group; another group's weights are zero
    int far = t.valid ? 0 : kFar, c = S::kPack == 1 ? t.c : t.c % each;
    return {(Offset)t.d * s.d + (Offset)t.h * s.h + (Offset)t.w * s.w + (Offset)c * s.c, 0, S::kPack == 1 ? 0 : -(t.c / each), far};
  }
};

// The taps of a phase of bwd_data; with stride 1 everywhere they are all the taps, known at compile time.
template <class S>
struct BwdDataTaps {
  static constexpr bool kUnit = S::Stride::product == 1;
  PhaseTaps<S::kKg, S::kK> phase;
  GCONV_DEVICE explicit BwdDataTaps(const BlockPlace& b) : phase(PhaseTaps<S::kKg, S::kK>::of(b.d.taps, b.h.taps, b.w.taps)) {}
  GCONV_DEVICE TapChannel at(int step, int column) const {
    if constexpr (kUnit) return StaticTaps<typename S::Filter, S::kKg, S::kK, S::kChunk>::at(step, column);
    TapChannel t = phase.at(step, column);
    if constexpr (!S::kPadK) t.valid = true;
    return t;
  }
};
template <class S>
using StepsD = PhaseSteps<S::Stride::d, S::Dilation::d, S::Filter::d>;
template <class S>
using StepsH = PhaseSteps<S::Stride::h, S::Dilation::h, S::Filter::h>;
template <class S>
using StepsW = PhaseSteps<S::Stride::w, S::Dilation::w, S::Filter::w>;

// dy of bwd_data: rows are the input pixels of one phase.
template <class S>
struct BwdDataDy : Common<S> {
  using typename Common<S>::Offset;
  using typename Common<S>::P;
  static constexpr int kChannels = S::kKg;
  BlockPlace place;
  BwdDataTaps<S> taps;
  int pixel0, rows;

  GCONV_DEVICE BwdDataDy(const ConvArgs& a, const BlockPlace& b) : place(b), taps(b) {
    long long image = (long long)b.d.count * b.h.count * b.w.count, n0 = S::kExplicit ? 0 : b.m0 / image;
    pixel0 = (int)(b.m0 - n0 * image);
    rows = tile_rows<S>(a.N * image - b.m0);
    this->base = element_at<typename S::In>(a.y, (S::kExplicit ? b.m0 * a.yv.s[2] : n0 * a.yv.n) + (long long)b.group * S::kPack * a.yv.g);
    this->extent = {a.out[0], a.out[1], a.out[2]};
    this->stride = byte_strides<Offset, typename S::In>(a.yv);
  }
  GCONV_DEVICE P row(int r) const {
    if constexpr (S::kExplicit) return {(Offset)r * this->stride.w, 0, 0, r < rows ? 0 : kFar};
    Pixel p = phase_pixel(pixel0 + r, place.d.count, place.h.count, place.w.count);
    int d = p.d + place.d.o0, h = p.h + place.h.o0, w = p.w + place.w.o0;
    const auto& s = this->stride;
    P point = {(Offset)p.n * s.n + (Offset)d * s.d + (Offset)h * s.h + (Offset)w * s.w, d, h, w};
    if (r >= rows) point.w = kFar;
    return point;
  }
  GCONV_DEVICE P k(int step, int column) const {
    TapChannel t = taps.at(step, column);
    int d = -t.d * StepsD<S>::kOStep, h = -t.h * StepsH<S>::kOStep, w = -t.w * StepsW<S>::kOStep;
    const auto& s = this->stride;
    P point = {(Offset)d * s.d + (Offset)h * s.h + (Offset)w * s.w + (Offset)t.c * s.c, d, h, w};
    if (!t.valid) point.w = kFar;
    return point;
  }
};

// w of bwd_data: rows are input channels, k walks over the phase's taps and the output channels.
template <class S>
struct BwdDataW : Common<S> {
  using typename Common<S>::Offset;
  using typename Common<S>::P;
  static constexpr int kChannels = S::kKg;
  BlockPlace place;
  BwdDataTaps<S> taps;

  GCONV_DEVICE BwdDataW(const ConvArgs& a, const BlockPlace& b) : place(b), taps(b) {
    this->base = element_at<typename S::In>(a.w, (long long)b.group * S::kPack * a.wv.g + b.n0 * a.wv.c);
    this->extent = {1, 1, 1};
    this->stride = byte_strides<Offset, typename S::In>(a.wv);
  }
  GCONV_DEVICE P row(int r) const {
    int far = S::kCg % S::kN == 0 || place.n0 + r < S::kCg ? 0 : kFar;
    if constexpr (S::kPack == 1) return {(Offset)r * this->stride.c, 0, 0, far};
    constexpr int each = S::kCg / S::kPack;
    return {(Offset)(r / each) * this->stride.g + (Offset)(r % each) * this->stride.c, 0, r / each, far};
  }
  GCONV_DEVICE P k(int step, int column) const {
    TapChannel t = taps.at(step, column);
    int d = place.d.k0 + t.d * StepsD<S>::kKStep, h = place.h.k0 + t.h * StepsH<S>::kKStep, w = place.w.k0 + t.w * StepsW<S>::kKStep;
    const auto& s = this->stride;
    constexpr int each = S::kKg / S::kPack;
    int far = t.valid ? 0 : kFar, c = S::kPack == 1 ? t.c : t.c % each;
    return {(Offset)d * s.d + (Offset)h * s.h + (Offset)w * s.w + (Offset)c * s.n, 0, S::kPack == 1 ? 0 : -(t.c / each), far};
  }
};

// The pixels of a chunk of a bwd_weight reduction.
template <class S>
struct ChunkPixels {
  int pixel0, left;  // first pixel inside its image; pixels from the chunk's start to the end of all images
  long long n0;
  GCONV_DEVICE ChunkPixels(const ConvArgs& a, const BlockPlace& b) {
    long long image = (long long)a.out[0] * a.out[1] * a.out[2], all = a.N * image - b.k0;
    n0 = S::kExplicit ? 0 : b.k0 / image;
    pixel0 = (int)(b.k0 - n0 * image);
    left = all < 0x40000000 ? (int)all : 0x40000000;
  }
  GCONV_DEVICE bool valid(int step, int column) const { return !S::kPadK || step * S::kK + column < left; }
  GCONV_DEVICE Pixel at(const ConvArgs& a, int step, int column) const { return output_pixel(a, pixel0 + step * S::kK + column); }
};

// dy of bwd_weight: rows are output channels, k walks over output pixels.
template <class S>
struct BwdWeightDy : Common<S> {
  using typename Common<S>::Offset;
  using typename Common<S>::P;
  static constexpr int kChannels = 1;
  const ConvArgs* args;
  ChunkPixels<S> pixels;
  int m0;

  GCONV_DEVICE BwdWeightDy(const ConvArgs& a, const BlockPlace& b) : args(&a), pixels(a, b), m0((int)b.m0) {
    long long first = S::kExplicit ? b.k0 * a.yv.s[2] : pixels.n0 * a.yv.n;
    this->base = element_at<typename S::In>(a.y, first + b.group * a.yv.g + b.m0 * a.yv.c);
    this->extent = {1, 1, 1};
    this->stride = byte_strides<Offset, typename S::In>(a.yv);
  }
  GCONV_DEVICE P row(int r) const { return {(Offset)r * this->stride.c, 0, 0, S::kKg % S::kM == 0 || m0 + r < S::kKg ? 0 : kFar}; }
  GCONV_DEVICE P k(int step, int column) const {
    const auto& s = this->stride;
    if constexpr (S::kExplicit) return {(Offset)(step * S::kK + column) * s.w, 0, 0, pixels.valid(step, column) ? 0 : kFar};
    Pixel p = pixels.at(*args, step, column);
    Offset offset = (Offset)p.n * s.n + (Offset)p.d * s.d + (Offset)p.h * s.h + (Offset)p.w * s.w;
    return {offset, 0, 0, pixels.valid(step, column) ? 0 : kFar};
  }
};

// x of bwd_weight: rows are (filter tap, input channel), k walks over output pixels.
template <class S>
struct BwdWeightX : Common<S> {
  using typename Common<S>::Offset;
  using typename Common<S>::P;
  using St = typename S::Stride;
  using Dl = typename S::Dilation;
  static constexpr int kChannels = 1;
  const ConvArgs* args;
  ChunkPixels<S> pixels;
  int n0;

  GCONV_DEVICE BwdWeightX(const ConvArgs& a, const BlockPlace& b) : args(&a), pixels(a, b), n0(b.n0) {
    this->base = element_at<typename S::In>(a.x, (S::kExplicit ? b.k0 * a.xv.s[2] : pixels.n0 * a.xv.n) + b.group * a.xv.g);
    this->extent = {a.in[0], a.in[1], a.in[2]};
    this->stride = byte_strides<Offset, typename S::In>(a.xv);
  }
  GCONV_DEVICE P row(int r) const {
    TapChannel t = split_tap<typename S::Filter>((n0 + r) / S::kCg, (n0 + r) % S::kCg);
    int d = t.d * Dl::d, h = t.h * Dl::h, w = t.w * Dl::w;
    const auto& s = this->stride;
    P point = {(Offset)d * s.d + (Offset)h * s.h + (Offset)w * s.w + (Offset)t.c * s.c, d, h, w};
    if (!t.valid) point.w = kFar;
    return point;
  }
  GCONV_DEVICE P k(int step, int column) const {
    const ConvArgs& a = *args;
    if constexpr (S::kExplicit) {
      return {(Offset)(step * S::kK + column) * this->stride.w, 0, 0, pixels.valid(step, column) ? 0 : kFar};
    }
    Pixel p = pixels.at(a, step, column);
    int d = p.d * St::d - a.pad[0], h = p.h * St::h - a.pad[1], w = p.w * St::w - a.pad[2];
    const auto& s = this->stride;
    P point = {(Offset)p.n * s.n + (Offset)d * s.d + (Offset)h * s.h + (Offset)w * s.w, d, h, w};
    if (!pixels.valid(step, column)) point.w = kFar;
    return point;
  }
};

}  // namespace gconv
