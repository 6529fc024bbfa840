// bwd_weight of depthwise convolution (one channel a group, dilation 1): each thread keeps the sums of all taps of kV channels in
// registers and walks over runs of output positions; the threads of a block that share channels are added up in LDS in a fixed order,
// each block writes one piece, and ReduceSplits adds the pieces in order.
#pragma once

#include "conv_operands.hpp"

namespace gconv {

template <class S>
struct DepthwiseWeight {
  using In = typename S::In;
  using F = typename S::Filter;
  using St = typename S::Stride;
  static constexpr int kV = S::kV, kRun = S::kRun, kThreads = S::kVectors * S::kItems, kFilterRows = S::kFilterRows, kTaps = kFilterRows * F::w;  // of one block
  static constexpr int kSegment = (kRun - 1) * St::w + F::w;
  using Vector = Raw<kV * (int)sizeof(In)>;

  // Grid: x = channel tile + tiles * part of the filter; y = split. A part is kFilterRows rows of one plane; kFilterRows divides F::h.
  static GCONV_DEVICE void run(const ConvArgs& a) {
    GCONV_LDS(float, scratch, kThreads * kV, 0);
    unsigned tiles = (unsigned)(a.G + S::kVectors * kV - 1) / (S::kVectors * kV), block = (unsigned)hw::block_id_x();
    int lane = hw::thread_id() % S::kVectors, worker = hw::thread_id() / S::kVectors, part = (int)(block / tiles);
    int channel = (int)(block % tiles) * S::kVectors * kV + lane * kV, split = hw::block_id_y();
    float sum[kTaps][kV];
    GCONV_UNROLL
    for (int t = 0; t < kTaps; ++t)
      GCONV_UNROLL
      for (int v = 0; v < kV; ++v) sum[t][v] = 0.0f;
    if (channel < a.G) accumulate(a, part, channel, split, worker, sum);
    gather(a, part, channel, split, worker, lane, sum, scratch);
  }

 private:
  // Runs are dealt to the workers of all splits in turn: split s takes the runs [s * per, (s + 1) * per).
  static GCONV_DEVICE void accumulate(const ConvArgs& a, int part, int channel, int split, int worker, float (&sum)[kTaps][kV]) {
    int runs = (a.out[2] + kRun - 1) / kRun;
    long long total = (long long)a.N * a.out[0] * a.out[1] * runs, per = (total + a.splits - 1) / a.splits;
    long long first = split * per, end = min_of(first + per, total);
    for (long long i = first + worker; i < end; i += S::kItems) {
      long long row = i / runs;
      int ow = (int)(i - row * runs) * kRun, oh = (int)(row % a.out[1]);
      long long slab = row / a.out[1];
      int od = (int)(slab % a.out[0]), n = (int)(slab / a.out[0]);
      if (ow + kRun <= a.out[2]) add_run<false>(a, part, channel, n, od, oh, ow, sum);
      else add_run<true>(a, part, channel, n, od, oh, ow, sum);
    }
  }

  // Ends: the run reaches past the end of its row; what lies there is not multiplied at all, since it may meet a NaN in x.
  template <bool Ends>
  static GCONV_DEVICE void add_run(const ConvArgs& a, int part, int channel, int n, int od, int oh, int ow, float (&sum)[kTaps][kV]) {
    const In* y = (const In*)a.y + n * a.yv.n + od * a.yv.s[0] + oh * a.yv.s[1] + ow * a.yv.s[2] + channel * a.yv.g;
    float dy[kRun][kV];
    GCONV_UNROLL
    for (int i = 0; i < kRun; ++i) load(y + i * a.yv.s[2], ow + i < a.out[2], dy[i]);
    constexpr int parts = F::h / kFilterRows;  // of a plane
    int d = od * St::d - a.pad[0] + part / parts, h0 = oh * St::h - a.pad[1] + part % parts * kFilterRows, w0 = ow * St::w - a.pad[2];
    if ((unsigned)d >= (unsigned)a.in[0]) return;
    const In* x = (const In*)a.x + n * a.xv.n + d * a.xv.s[0] + (long long)h0 * a.xv.s[1] + (long long)w0 * a.xv.s[2] + channel * a.xv.g;
    GCONV_UNROLL
    for (int kh = 0; kh < kFilterRows; ++kh) {
      bool row_ok = (unsigned)(h0 + kh) < (unsigned)a.in[1];
      float segment[kSegment][kV];
      GCONV_UNROLL
      for (int i = 0; i < kSegment; ++i) load(x + kh * a.xv.s[1] + i * a.xv.s[2], row_ok && (unsigned)(w0 + i) < (unsigned)a.in[2], segment[i]);
      GCONV_UNROLL
      for (int kw = 0; kw < F::w; ++kw)
        GCONV_UNROLL
        for (int i = 0; i < kRun; ++i) {
          if (Ends && ow + i >= a.out[2]) continue;
          GCONV_UNROLL
          for (int v = 0; v < kV; ++v) {
            float& target = sum[kh * F::w + kw][v];
            target = __builtin_fmaf(dy[i][v], segment[i * St::w + kw][v], target);
          }
        }
    }
  }
  static GCONV_DEVICE void load(const In* from, bool ok, float (&to)[kV]) {
    Vector zero = {}, raw = ok ? *(const Vector*)from : zero;
    GCONV_UNROLL
    for (int v = 0; v < kV; ++v) to[v] = to_float(((const In*)&raw)[v]);
  }

  // One tap at a time through LDS; the first worker of each channel vector adds the others in order.
  static GCONV_DEVICE void gather(const ConvArgs& a, int part, int channel, int split, int worker, int lane, const float (&sum)[kTaps][kV],
                                  float* scratch) {
    constexpr int taps = F::product;
    float* piece = (float*)a.workspace + (long long)split * a.G * taps;
    GCONV_UNROLL
    for (int t = 0; t < kTaps; ++t) {
      GCONV_UNROLL
      for (int v = 0; v < kV; ++v) scratch[(worker * S::kVectors + lane) * kV + v] = sum[t][v];
      hw::barrier();
      for (int c = hw::thread_id(); c < S::kVectors * kV; c += kThreads) {
        float all = 0.0f;
        for (int i = 0; i < S::kItems; ++i) all += scratch[i * S::kVectors * kV + c];
        int out_channel = channel - lane * kV + c;
        if (out_channel < a.G) piece[(long long)out_channel * taps + part * kTaps + t] = all;
      }
      hw::barrier();
    }
  }
};

}  // namespace gconv
