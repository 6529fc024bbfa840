// Window staging: the block's rows are a box of output positions, and the part of the input that they see is brought into LDS once
// per K step, for all filter taps together, instead of once per tap. A K step is all taps of kChunk channels; a tap is then only
// another offset into LDS, known at compile time. Used by forward, and by bwd_data with stride 1 where the filter is read backwards.
#pragma once

#include "conv_operands.hpp"

namespace gconv {

// The geometry of box and window, at compile time.
template <class S>
struct Window {
  using Box = typename S::Box;
  using St = typename conditional<S::kDirection == kForward, typename S::Stride, Int3<1, 1, 1>>::type;
  using Dl = typename S::Dilation;
  using F = typename S::Filter;
  static constexpr int kRows = S::kBoxImages * Box::product;  // rows of the block's tile that are used
  static constexpr int kD = (Box::d - 1) * St::d + (F::d - 1) * Dl::d + 1;
  static constexpr int kH = (Box::h - 1) * St::h + (F::h - 1) * Dl::h + 1;
  static constexpr int kW = (Box::w - 1) * St::w + (F::w - 1) * Dl::w + 1;
  static constexpr int kPixels = S::kBoxImages * kD * kH * kW;
  static constexpr int kPitch = S::kMerge * S::kChunk + S::kPad;  // of a pixel in LDS
  static constexpr int kElements = kPixels * kPitch;
  static_assert(S::kK == F::product * S::kChunk, "a K step is all taps of a chunk of channels");

  // Row of the box -> its first pixel in the window.
  static GCONV_DEVICE int pixel_of_row(int r) {
    Pixel p = split(r);
    return ((p.n * kD + p.d * St::d) * kH + p.h * St::h) * kW + p.w * St::w;
  }
  static GCONV_DEVICE Pixel split(int r) {
    unsigned u = (unsigned)r, w = u % Box::w, h = u / Box::w;
    unsigned d = S::kBoxImages * Box::d == 1 ? 0 : h / Box::h, n = S::kBoxImages == 1 ? 0 : d / Box::d;
    return {(int)n, (int)(d - n * Box::d), (int)(h - d * Box::h), (int)w};
  }
  // Distance in LDS elements from a row's first pixel to the one that a tap reads.
  static constexpr GCONV_DEVICE int tap_offset(int tap) {
    int d = tap / (F::h * F::w), h = tap / F::w % F::h, w = tap % F::w;
    if (S::kDirection == kBwdData) {
      d = F::d - 1 - d;
      h = F::h - 1 - h;
      w = F::w - 1 - w;
    }
    return ((d * Dl::d * kH + h * Dl::h) * kW + w * Dl::w) * kPitch;
  }
};

// Where a block's box starts.
struct BoxOrigin {
  int n, d, h, w;
};
template <class S>
GCONV_DEVICE BoxOrigin box_of_tile(unsigned tile, const int (&sizes)[3]) {
  using Box = typename S::Box;
  unsigned tw = (unsigned)(sizes[2] + Box::w - 1) / Box::w, th = (unsigned)(sizes[1] + Box::h - 1) / Box::h;
  unsigned td = (unsigned)(sizes[0] + Box::d - 1) / Box::d, row = tile / tw, slab = row / th, n = S::kAxes < 3 ? slab : slab / td;
  return {(int)n * S::kBoxImages, S::kAxes < 3 ? 0 : (int)(slab - n * td) * Box::d, (int)(row - slab * th) * Box::h, (int)(tile - row * tw) * Box::w};
}

// The tensor that the window lies in: x of forward, dy of bwd_data.
template <class S>
struct WindowOperand {
  using In = typename S::In;
  using Offset = typename S::Offset;
  using Geometry = Window<S>;
  static constexpr bool kForwardX = S::kDirection == kForward;
  static constexpr bool kTransforms = kForwardX && S::Prologue::kActive;
  const ConvArgs* args;
  const void* base;
  ByteStrides<Offset> stride;
  int images, d, h, w;  // images left; coordinates of the window's first pixel
  Extent extent;
  int channel0;

  GCONV_DEVICE WindowOperand(const ConvArgs& a, const BlockPlace& b, const BoxOrigin& o) : args(&a) {
    const TensorView& view = kForwardX ? a.xv : a.yv;
    const int* sizes = kForwardX ? a.in : a.out;
    images = a.N - o.n;
    extent = {sizes[0], sizes[1], sizes[2]};
    stride = byte_strides<Offset, In>(view);
    base = element_at<In>(kForwardX ? a.x : a.y, o.n * view.n + (long long)b.group * S::kPack * view.g);
    channel0 = b.group * S::kCg;
    d = start<S::Stride::d, S::Dilation::d, S::Filter::d>(o.d, a.pad[0]);
    h = start<S::Stride::h, S::Dilation::h, S::Filter::h>(o.h, a.pad[1]);
    w = start<S::Stride::w, S::Dilation::w, S::Filter::w>(o.w, a.pad[2]);
  }
  // The same for any tensor, from a group and the window's first pixel.
  GCONV_DEVICE WindowOperand(const ConvArgs& a, const void* tensor, const TensorView& view, const int (&sizes)[3], int group, int n, int d0,
                             int h0, int w0)
      : args(&a), base(element_at<In>(tensor, n * view.n + (long long)group * view.g)), stride(byte_strides<Offset, In>(view)),
        images(a.N - n), d(d0), h(h0), w(w0), extent{sizes[0], sizes[1], sizes[2]}, channel0(group * (S::kCg / S::kPack)) {}
  template <int Stride, int Dilation, int Filter>
  static GCONV_DEVICE int start(int origin, int pad) {
    return kForwardX ? origin * Stride - pad : origin + pad - (Filter - 1) * Dilation;
  }
  // Byte offset of a window pixel, or all ones outside the image.
  GCONV_DEVICE Offset pixel(int p) const {
    constexpr bool one_image = S::kBoxImages == 1, flat = one_image && S::kAxes < 3;
    unsigned u = (unsigned)p, row = u / Geometry::kW, slab = flat ? 0 : row / Geometry::kH, n = one_image ? 0 : slab / Geometry::kD;
    int pw = w + (int)(u - row * Geometry::kW), ph = h + (int)(row - slab * Geometry::kH), pd = d + (int)(slab - n * Geometry::kD);
    bool ok = (unsigned)pw < (unsigned)extent.w;
    if constexpr (S::kAxes > 1) ok = ok & ((unsigned)ph < (unsigned)extent.h);
    if constexpr (S::kAxes > 2) ok = ok & ((unsigned)pd < (unsigned)extent.d);
    if constexpr (!one_image) ok = ok & ((int)n < images);
    Offset offset = (Offset)ph * stride.h + (Offset)pw * stride.w;
    if constexpr (S::kAxes > 2) offset += (Offset)pd * stride.d;
    if constexpr (!one_image) offset += (Offset)n * stride.n;
    return ok ? offset : ~(Offset)0;
  }
};

// Brings the window of one chunk of channels of kMerge groups into LDS as [pixel][group][channel].
template <class S>
struct WindowLoader {
  using In = typename S::In;
  using Offset = typename S::Offset;
  using Geometry = Window<S>;
  using Operand = WindowOperand<S>;
  static constexpr int Vec = S::kVecA, kThreads = S::kWavesM * S::kWavesN * hw::kWave;
  static constexpr int kUnits = S::kMerge * S::kChunk / Vec;  // vectors of a pixel
  static constexpr int kUnitThreads = min_of(kUnits, kThreads), kPixelThreads = kThreads / kUnitThreads;
  static constexpr int kUnitPasses = ceil_div(kUnits, kUnitThreads), kPixelPasses = ceil_div(Geometry::kPixels, kPixelThreads);
  using Vector = Raw<Vec * (int)sizeof(In)>;

  int unit, pixel;
  Offset place[kPixelPasses];
  struct Staged {
    Vector vector[kUnitPasses][kPixelPasses];
  };

  GCONV_DEVICE void init(const Operand& operand) {
    int thread = S::kWaveGroups == 1 ? hw::thread_id() : hw::thread_id() % kThreads;
    unit = thread % kUnitThreads;
    pixel = thread / kUnitThreads;
    GCONV_UNROLL
    for (int p = 0; p < kPixelPasses; ++p) place[p] = mine(p) ? operand.pixel(pixel + p * kPixelThreads) : ~(Offset)0;
  }
  GCONV_DEVICE void load(const Operand& operand, int step, Staged& staged) const {
    GCONV_UNROLL
    for (int u = 0; u < kUnitPasses; ++u) {
      int vector = (unit + u * kUnitThreads) * Vec, group = vector / S::kChunk, channel = step * S::kChunk + vector % S::kChunk;
      Offset at = (Offset)(group * S::kPack) * operand.stride.g + (Offset)channel * operand.stride.c;
      GCONV_UNROLL
      for (int p = 0; p < kPixelPasses; ++p)
        staged.vector[u][p] = hw::load_or_zero<Vec * (int)sizeof(In)>(operand.base, (Offset)(place[p] + at), place[p] != ~(Offset)0);
    }
  }
  GCONV_DEVICE void store(const Operand& operand, In* lds, int step, Staged& staged) const {
    GCONV_UNROLL
    for (int u = 0; u < kUnitPasses; ++u)
      GCONV_UNROLL
      for (int p = 0; p < kPixelPasses; ++p) {
        if (!mine(p) || (kUnitPasses * kUnitThreads != kUnits && unit + u * kUnitThreads >= kUnits)) continue;
        if constexpr (Operand::kTransforms) transform(operand, u, p, step, staged);
        *(Vector*)(lds + (pixel + p * kPixelThreads) * Geometry::kPitch + (unit + u * kUnitThreads) * Vec) = staged.vector[u][p];
      }
  }

 private:
  GCONV_DEVICE bool mine(int p) const {
    constexpr bool whole = kPixelPasses * kPixelThreads == Geometry::kPixels && kPixelThreads * kUnitThreads == kThreads;
    return whole || (pixel < kPixelThreads && pixel + p * kPixelThreads < Geometry::kPixels);
  }
  GCONV_DEVICE void transform(const Operand& operand, int u, int p, int step, Staged& staged) const {
    if (place[p] == ~(Offset)0) return;
    int vector = (unit + u * kUnitThreads) * Vec, channel = operand.channel0 + vector / S::kChunk * S::kCg + step * S::kChunk + vector % S::kChunk;
    In* element = (In*)&staged.vector[u][p];
    GCONV_UNROLL
    for (int i = 0; i < Vec; ++i) element[i] = from_float<In>(S::Prologue::apply(to_float(element[i]), *operand.args, channel + i));
  }
};

}  // namespace gconv
