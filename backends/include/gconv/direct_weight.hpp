// bwd_weight of grouped convolution with few channels: the product over output pixels is taken straight from a window of x and the box
// of dy that it belongs to, both in LDS as they lie in memory, pixel by pixel; a tap is an offset into the window. Fragments are read
// across pixels (transposed). Each wave keeps the sums of all taps of its 16 x 16 tiles (output x input channel) in registers while the
// block walks over its share of boxes, and writes them to its piece of the workspace; ReduceSplits adds the pieces in order.
//
// S states kAxes, Filter, Stride, Dilation, kCg, kKg (of kPack groups as one, multiples of 16), kPack, kMerge, In, Out, Offset,
// Instruction, Box, kBoxImages, kVecX, kVecY, kWaves, kPad, kPlanes; Filter is one of the filter's kPlanes planes. Boxes divide the images exactly and hold whole instructions of pixels, so
// that nothing outside is ever multiplied.
#pragma once

#include "fragment.hpp"
#include "window.hpp"

namespace gconv {

// x and dy as operands of the window loader: dy's window is its box.
template <class S>
struct WindowOfX : S {
  static constexpr Direction kDirection = kForward;
  static constexpr int kChunk = S::kCg, kVecA = S::kVecX, kK = S::Filter::product * S::kCg, kWavesM = S::kWaves, kWavesN = 1, kWaveGroups = 1;
};
template <class S>
struct WindowOfY : S {
  static constexpr Direction kDirection = kForward;
  using Filter = Int3<1, 1, 1>;
  using Stride = Int3<1, 1, 1>;
  static constexpr int kChunk = S::kKg, kVecA = S::kVecY, kK = S::kKg, kWavesM = S::kWaves, kWavesN = 1, kWaveGroups = 1;
};

#if defined(GCONV_NVIDIA)
// Lane l names one pixel's eight channels of one of four 8 x 8 matrices, which arrive transposed.
template <class I>
struct AcrossPixels {
  static constexpr int kNI = 2;
  static GCONV_DEVICE int a_pixel(int) { return hw::lane_id() % 8 + hw::lane_id() / 16 * 8; }
  static GCONV_DEVICE int b_pixel(int) { return hw::lane_id() % 16; }
  static constexpr int kPixels = 1;  // pixels that a lane names for each operand
  template <class T>
  static GCONV_DEVICE void load_a(unsigned (&r)[I::kA], const T* (&pixel)[1], int channel) {
    hw::ldmatrix_x4_trans(r, pixel[0] + channel + hw::lane_id() / 8 % 2 * 8);
  }
  template <class T>
  static GCONV_DEVICE void load_b(unsigned (&r)[2][I::kB], const T* (&pixel)[1], int channel) {
    unsigned all[4];
    hw::ldmatrix_x4_trans(all, pixel[0] + channel + hw::lane_id() / 16 * 8);
    GCONV_UNROLL
    for (int i = 0; i < 4; ++i) r[i / 2][i % 2] = all[i];
  }
};
#else
// Lane l gathers one channel of the consecutive k that its instruction gives it.
template <class I>
struct AcrossPixels {
  static constexpr int kNI = 1, kPixels = I::A::kPerLane;
  static GCONV_DEVICE int a_pixel(int i) { return I::a_offset(0) + i; }
  static GCONV_DEVICE int b_pixel(int i) { return I::b_offset(0) + i; }
  template <int Words, class T>
  static GCONV_DEVICE void gather(unsigned (&r)[Words], const T* (&pixel)[kPixels], int channel) {
    int mine = channel + I::a_offset(1) - I::a_offset(0);
    GCONV_UNROLL
    for (int i = 0; i < kPixels; ++i) ((T*)r)[i] = pixel[i][mine];
  }
  template <class T>
  static GCONV_DEVICE void load_a(unsigned (&r)[I::kA], const T* (&pixel)[kPixels], int channel) {
    gather(r, pixel, channel);
  }
  template <class T>
  static GCONV_DEVICE void load_b(unsigned (&r)[1][I::kB], const T* (&pixel)[kPixels], int channel) {
    gather(r[0], pixel, channel);
  }
};
#endif

template <class S>
struct DirectWeight {
  using I = typename S::Instruction;
  using In = typename S::In;
  using F = typename S::Filter;
  using X = WindowOfX<S>;
  using Y = WindowOfY<S>;
  using Across = AcrossPixels<I>;
  static constexpr int kThreads = S::kWaves * hw::kWave, kTaps = F::h * F::w;  // taps of one plane of the filter
  static constexpr int kTilesK = S::kKg / 16, kTilesC = S::kCg / 16, kTiles = S::kMerge * kTilesK * kTilesC, kEach = kTiles / S::kWaves;
  static constexpr int kSteps = Window<Y>::kRows / I::K, kNI = Across::kNI;
  static_assert(I::M == 16 && I::N * kNI == 16 && kEach * S::kWaves == kTiles, "waves share out 16 x 16 tiles");
  static_assert(kSteps * I::K == Window<Y>::kRows, "a box holds whole instructions of pixels");
  static constexpr int kBytesX = (Window<X>::kElements * (int)sizeof(In) + 15) / 16 * 16;

  // Grid: x = tile of groups + tiles * plane of the filter; y = split.
  static GCONV_DEVICE void run(const ConvArgs& a) {
    GCONV_LDS(In, lds_x, Window<X>::kElements, 0);
    GCONV_LDS(In, lds_y, Window<Y>::kElements, kBytesX);
    unsigned tiles = (unsigned)(a.G / (S::kMerge * S::kPack)), block = (unsigned)hw::block_id_x();
    BlockPlace place = {};
    place.group = (int)(block % tiles) * S::kMerge;
    int plane = (int)(block / tiles), split = hw::block_id_y();
    float acc[kEach][kTaps][kNI][I::kAcc];
    clear(acc);
    unsigned boxes = box_count(a), per = (boxes + (unsigned)a.splits - 1) / (unsigned)a.splits, first = split * per;
    unsigned end = min_of(first + per, boxes);
    WindowLoader<X> load_x;
    WindowLoader<Y> load_y;
    typename WindowLoader<X>::Staged staged_x;
    typename WindowLoader<Y>::Staged staged_y;
    for (unsigned box = first; box < end; ++box) {
      BoxOrigin o = box_of_tile<S>(box, a.out);
      WindowOperand<X> x(a, a.x, a.xv, a.in, place.group * S::kPack, o.n, o.d * S::Stride::d - a.pad[0] + plane * S::Dilation::d,
                         o.h * S::Stride::h - a.pad[1], o.w * S::Stride::w - a.pad[2]);
      WindowOperand<Y> y(a, a.y, a.yv, a.out, place.group * S::kPack, o.n, o.d, o.h, o.w);
      load_x.init(x);
      load_y.init(y);
      load_x.load(x, 0, staged_x);
      load_y.load(y, 0, staged_y);
      hw::barrier();  // the previous box is no longer read
      load_x.store(x, lds_x, 0, staged_x);
      load_y.store(y, lds_y, 0, staged_y);
      hw::barrier();
      multiply(lds_x, lds_y, acc);
    }
    store(a, place.group, plane, split, acc);
  }

 private:
  static GCONV_DEVICE unsigned box_count(const ConvArgs& a) {
    return (unsigned)(a.N / S::kBoxImages) * (unsigned)(a.out[0] / S::Box::d) * (unsigned)(a.out[1] / S::Box::h) * (unsigned)(a.out[2] / S::Box::w);
  }
  static GCONV_DEVICE void clear(float (&acc)[kEach][kTaps][kNI][I::kAcc]) {
    GCONV_UNROLL
    for (int e = 0; e < kEach; ++e)
      GCONV_UNROLL
      for (int t = 0; t < kTaps; ++t)
        GCONV_UNROLL
        for (int n = 0; n < kNI; ++n)
          GCONV_UNROLL
          for (int i = 0; i < I::kAcc; ++i) acc[e][t][n][i] = 0.0f;
  }
  // The 16 x 16 tile that this wave computes as its number e: group, output channels, input channels.
  struct TilePlace {
    int g, k, c;
  };
  static GCONV_DEVICE TilePlace tile(int e) {
    int number = hw::wave_id() * kEach + e, in_group = number % (kTilesK * kTilesC);
    return {number / (kTilesK * kTilesC), in_group / kTilesC * 16, in_group % kTilesC * 16};
  }

  static GCONV_DEVICE void multiply(const In* x, const In* y, float (&acc)[kEach][kTaps][kNI][I::kAcc]) {
    for (int step = 0; step < kSteps; ++step) {
      const In* pixel_x[Across::kPixels];
      const In* pixel_y[Across::kPixels];
      GCONV_UNROLL
      for (int i = 0; i < Across::kPixels; ++i) {
        pixel_y[i] = y + (step * I::K + Across::a_pixel(i)) * Window<Y>::kPitch;
        pixel_x[i] = x + Window<X>::pixel_of_row(step * I::K + Across::b_pixel(i)) * Window<X>::kPitch;
      }
      GCONV_UNROLL
      for (int e = 0; e < kEach; ++e) {
        TilePlace place = tile(e);
        unsigned fa[I::kA];
        Across::load_a(fa, pixel_y, place.g * S::kKg + place.k);
        GCONV_UNROLL
        for (int t = 0; t < kTaps; ++t) {
          unsigned fb[kNI][I::kB];
          Across::load_b(fb, pixel_x, place.g * S::kCg + place.c + Window<X>::tap_offset(t));
          GCONV_UNROLL
          for (int n = 0; n < kNI; ++n) I::multiply(acc[e][t][n], fa, fb[n]);
        }
      }
    }
  }

  // The piece of this split, dense (G, Kg, filter, Cg); of packed groups only the diagonal blocks exist.
  static GCONV_DEVICE void store(const ConvArgs& a, int group, int plane, int split, const float (&acc)[kEach][kTaps][kNI][I::kAcc]) {
    constexpr int each_k = S::kKg / S::kPack, each_c = S::kCg / S::kPack, taps = S::kPlanes * F::product;
    float* piece = (float*)a.workspace + (long long)split * a.G * each_k * taps * each_c;
    GCONV_UNROLL
    for (int e = 0; e < kEach; ++e)
      GCONV_UNROLL
      for (int n = 0; n < kNI; ++n)
        GCONV_UNROLL
        for (int i = 0; i < I::kAcc; ++i) {
          TilePlace place = tile(e);
          int k = place.k + I::lane_row() + I::acc_row(i), c = place.c + n * I::N + I::lane_col() + I::acc_col(i);
          if (k / each_k != c / each_c) continue;
          long long g = (long long)(group + place.g) * S::kPack + k / each_k;
          float* to = piece + ((g * each_k + k % each_k) * taps + plane * kTaps) * each_c + c % each_c;
          GCONV_UNROLL
          for (int t = 0; t < kTaps; ++t) to[t * each_c] = acc[e][t][n][i];
        }
  }
};

}  // namespace gconv
