// Depthwise convolution (one channel a group, dilation 1) with sliding windows: forward, and bwd_data by stride phases.
//
// A thread owns kV neighbouring channels and a run of kRun results along w, and walks down kRows rows of results. Each source row is
// read once and added to every result row that it belongs to; those wait in registers, and a ring index that the unrolling makes a
// compile-time number says which is which. For filters too long to unroll (kWalk false) each result row reads its own source rows.
//
// S states kDirection, kAxes, Filter, Stride, In, Out, Prologue, Epilogue, kV, kRun, kRows, kVectors (channel vectors of a block) and
// kItems (runs of a block). Channels are contiguous: the group stride of x and y is 1.
#pragma once

#include "conv_operands.hpp"

namespace gconv {

// What a stride phase gathers: result t (in the phase) is the sum over window positions j of source[t * Step + start + j] and the
// filter tap k0 + (kTaps - 1 - j) * Stride of bwd_data, j of forward.
template <class S, int Filter, int Stride>
struct GatherAxis {
  static constexpr bool kForwardDirection = S::kDirection == kForward;
  static constexpr int kTaps = kForwardDirection ? Filter : ceil_div(Filter, Stride);  // of the largest phase
  static constexpr int kStep = kForwardDirection ? Stride : 1;
  int first, spacing, count, start, k0;
  static GCONV_DEVICE GatherAxis of(int residue, int pad, int in, int out) {
    GatherAxis g;
    if constexpr (kForwardDirection) {
      g = {0, 1, out, -pad, 0};
    } else {
      PhaseAxis p = PhaseSteps<Stride, 1, Filter>::at(residue, pad, in);
      g = {p.first, Stride, p.count, p.o0 - (kTaps - 1), p.k0};
    }
    return g;
  }
  // The filter tap at window position j, or Filter where the phase has no such tap.
  GCONV_DEVICE int tap(int j) const {
    if constexpr (kForwardDirection) return j;
    int k = k0 + (kTaps - 1 - j) * Stride;
    return k < Filter ? k : Filter;
  }
  // Phases differ by one tap at most: the missing one is at window position 0, and nothing may be multiplied there, not even zero.
  GCONV_DEVICE bool has(int j) const { return kForwardDirection || j > 0 || tap(0) < Filter; }
};

template <class S>
struct Depthwise {
  using In = typename S::In;
  using Out = typename S::Out;
  using AxisD = GatherAxis<S, S::Filter::d, S::Stride::d>;
  using AxisH = GatherAxis<S, S::Filter::h, S::Stride::h>;
  using AxisW = GatherAxis<S, S::Filter::w, S::Stride::w>;
  static constexpr int kV = S::kV, kRun = S::kRun, kThreads = S::kVectors * S::kItems;
  static constexpr int kTaps = AxisD::kTaps * AxisH::kTaps * AxisW::kTaps;
  static constexpr int kRing = ceil_div(AxisH::kTaps, AxisH::kStep), kPeriod = kRing * AxisH::kStep;
  static constexpr int kSegment = (kRun - 1) * AxisW::kStep + AxisW::kTaps;
  using Vector = Raw<kV * (int)sizeof(In)>;

  struct Item {
    int n, d, h, w;  // first result of the run, counted inside the phase
    bool valid;
  };

  static GCONV_DEVICE void run(const ConvArgs& a) {
    GCONV_LDS(float, weights, kTaps * S::kVectors * kV, 0);
    unsigned phase = (unsigned)hw::block_id_y();
    AxisW w = AxisW::of(phase % S::Stride::w, a.pad[2], a.in[2], a.out[2]);
    AxisH h = AxisH::of(phase / S::Stride::w % S::Stride::h, a.pad[1], a.in[1], a.out[1]);
    AxisD d = AxisD::of(phase / (S::Stride::w * S::Stride::h), a.pad[0], a.in[0], a.out[0]);
    unsigned tiles = (unsigned)(a.G + S::kVectors * kV - 1) / (S::kVectors * kV), block = (unsigned)hw::block_id_x();
    int channel0 = (int)(block % tiles) * S::kVectors * kV;
    fill_weights(a, d, h, w, channel0, weights);
    hw::barrier();
    int lane = hw::thread_id() % S::kVectors, channel = channel0 + lane * kV;
    Item item = item_of(a, d, h, w, (long long)(block / tiles) * S::kItems + hw::thread_id() / S::kVectors);
    if (item.valid && channel < a.G) walk(a, d, h, w, item, channel, weights + lane * kV);
  }

 private:
  // [tap][channel], in window order; zero, and not used, where the phase has no tap.
  static GCONV_DEVICE void fill_weights(const ConvArgs& a, const AxisD& d, const AxisH& h, const AxisW& w, int channel0, float* weights) {
    constexpr int channels = S::kVectors * kV;
    for (int i = hw::thread_id(); i < kTaps * channels; i += kThreads) {
      int c = channel0 + i % channels, j = i / channels;
      int kd = d.tap(j / (AxisH::kTaps * AxisW::kTaps)), kh = h.tap(j / AxisW::kTaps % AxisH::kTaps), kw = w.tap(j % AxisW::kTaps);
      bool ok = c < a.G && kd < S::Filter::d && kh < S::Filter::h && kw < S::Filter::w;
      weights[i] = ok ? to_float(((const In*)a.w)[c * a.wv.g + kd * a.wv.s[0] + kh * a.wv.s[1] + kw * a.wv.s[2]]) : 0.0f;
    }
  }

  static GCONV_DEVICE Item item_of(const ConvArgs& a, const AxisD& d, const AxisH& h, const AxisW& w, long long number) {
    if (w.count == 0 || h.count == 0 || d.count == 0) return {0, 0, 0, 0, false};
    int runs = (w.count + kRun - 1) / kRun, bands = (h.count + S::kRows - 1) / S::kRows;
    long long rest = number / runs;
    Item item;
    item.w = (int)(number - rest * runs) * kRun;
    unsigned band = (unsigned)(rest % bands);
    unsigned slab = (unsigned)(rest / bands);
    item.h = (int)band * S::kRows;
    item.d = (int)(slab % (unsigned)d.count);
    item.n = (int)(slab / (unsigned)d.count);
    item.valid = item.n < a.N;
    return item;
  }

  static GCONV_DEVICE void walk(const ConvArgs& a, const AxisD& d, const AxisH& h, const AxisW& w, const Item& item, int channel,
                                const float* weights) {
    constexpr bool forward = S::kDirection == kForward;
    const TensorView& view = forward ? a.xv : a.yv;
    const int* size = forward ? a.in : a.out;
    const In* base = (const In*)(forward ? a.x : a.y) + item.n * view.n + channel * view.g;
    int rows = min_of(S::kRows, h.count - item.h), sources = (rows - 1) * AxisH::kStep + AxisH::kTaps;
    int h0 = item.h * AxisH::kStep + h.start, w0 = item.w * AxisW::kStep + w.start, d0 = item.d * AxisD::kStep + d.start;
    if constexpr (!S::kWalk) {
      for (int row = 0; row < rows; ++row) {
        float sum[1][kRun][kV];
        clear(sum[0]);
        for (int kd = 0; kd < AxisD::kTaps; ++kd)
          for (int kh = 0; kh < AxisH::kTaps; ++kh) {
            float segment[kSegment][kV];
            load_segment(a, base, view, size, d0 + kd, h0 + row * AxisH::kStep + kh, w0, channel, segment);
            if (d.has(kd) && h.has(kh)) add_taps(segment, weights + (kd * AxisH::kTaps + kh) * AxisW::kTaps * (S::kVectors * kV), w, sum[0]);
          }
        store_row(a, d, h, w, item, row, channel, sum[0]);
      }
      return;
    }
    float sum[kRing][kRun][kV];
    for (int r0 = 0; r0 < sources; r0 += kPeriod) {
      GCONV_UNROLL
      for (int rot = 0; rot < kPeriod; ++rot) {
        int r = r0 + rot;
        if (r >= sources) continue;
        if (rot % AxisH::kStep == 0) clear(sum[rot / AxisH::kStep]);
        GCONV_UNROLL
        for (int kd = 0; kd < AxisD::kTaps; ++kd) {
          float segment[kSegment][kV];
          load_segment(a, base, view, size, d0 + kd, h0 + r, w0, channel, segment);
          if (d.has(kd)) add_row(segment, weights, kd, rot, h, w, sum);
        }
        constexpr int last = AxisH::kTaps - 1;
        if ((rot - last + kPeriod * AxisH::kTaps) % AxisH::kStep == 0 && r >= last)
          store_row(a, d, h, w, item, (r - last) / AxisH::kStep, channel, sum[((rot - last + kPeriod * AxisH::kTaps) / AxisH::kStep) % kRing]);
      }
    }
  }

  static GCONV_DEVICE void clear(float (&sum)[kRun][kV]) {
    GCONV_UNROLL
    for (int i = 0; i < kRun; ++i)
      GCONV_UNROLL
      for (int v = 0; v < kV; ++v) sum[i][v] = 0.0f;
  }

  static GCONV_DEVICE void load_segment(const ConvArgs& a, const In* base, const TensorView& view, const int* size, int d, int h, int w,
                                        int channel, float (&segment)[kSegment][kV]) {
    bool row_ok = (unsigned)h < (unsigned)size[1] && (S::kAxes < 3 || (unsigned)d < (unsigned)size[0]);
    const In* row = base + (long long)h * view.s[1] + (long long)w * view.s[2] + (S::kAxes < 3 ? 0 : (long long)d * view.s[0]);
    Vector raw[kSegment];
    GCONV_UNROLL
    for (int i = 0; i < kSegment; ++i)
      raw[i] = load_guarded(row + i * view.s[2], row_ok && (unsigned)(w + i) < (unsigned)size[2]);
    GCONV_UNROLL
    for (int i = 0; i < kSegment; ++i) {
      const In* element = (const In*)&raw[i];
      bool inside_image = row_ok && (unsigned)(w + i) < (unsigned)size[2];
      GCONV_UNROLL
      for (int v = 0; v < kV; ++v) {
        segment[i][v] = to_float(element[v]);
        if constexpr (S::kDirection == kForward && S::Prologue::kActive)
          segment[i][v] = inside_image ? to_float(from_float<In>(S::Prologue::apply(segment[i][v], a, channel + v))) : 0.0f;
      }
    }
  }
  static GCONV_DEVICE Vector load_guarded(const In* from, bool ok) {
    Vector zero = {};
    return ok ? *(const Vector*)from : zero;
  }

  static GCONV_DEVICE void add_row(const float (&segment)[kSegment][kV], const float* weights, int kd, int rot, const AxisH& h, const AxisW& w,
                                   float (&sum)[kRing][kRun][kV]) {
    GCONV_UNROLL
    for (int kh = 0; kh < AxisH::kTaps; ++kh) {
      int down = rot - kh + kPeriod * AxisH::kTaps;  // non-negative, same residue
      if (down % AxisH::kStep != 0 || !h.has(kh)) continue;
      const float* row = weights + (kd * AxisH::kTaps + kh) * AxisW::kTaps * (S::kVectors * kV);
      add_taps(segment, row, w, sum[down / AxisH::kStep % kRing]);
    }
  }

  // One row of taps on one row of results.
  static GCONV_DEVICE void add_taps(const float (&segment)[kSegment][kV], const float* weights, const AxisW& w, float (&sum)[kRun][kV]) {
    GCONV_UNROLL
    for (int kw = 0; kw < AxisW::kTaps; ++kw) {
      if (!w.has(kw)) continue;
      GCONV_UNROLL
      for (int v = 0; v < kV; ++v) {
        float weight = weights[kw * (S::kVectors * kV) + v];
        GCONV_UNROLL
        for (int i = 0; i < kRun; ++i) sum[i][v] = __builtin_fmaf(segment[i * AxisW::kStep + kw][v], weight, sum[i][v]);
      }
    }
  }

  static GCONV_DEVICE void store_row(const ConvArgs& a, const AxisD& d, const AxisH& h, const AxisW& w, const Item& item, int row, int channel,
                                     const float (&sum)[kRun][kV]) {
    constexpr bool forward = S::kDirection == kForward;
    const TensorView& view = forward ? a.yv : a.xv;
    if (item.h + row >= h.count) return;
    long long line = item.n * view.n + (long long)(d.first + item.d * d.spacing) * view.s[0] +
                     (long long)(h.first + (item.h + row) * h.spacing) * view.s[1] + channel * view.g;
    GCONV_UNROLL
    for (int i = 0; i < kRun; ++i) {
      if (item.w + i >= w.count) continue;
      long long element = line + (long long)(w.first + (item.w + i) * w.spacing) * view.s[2];
      Raw<kV * (int)sizeof(Out)> raw;
      GCONV_UNROLL
      for (int v = 0; v < kV; ++v) ((Out*)&raw)[v] = from_float<Out>(S::Epilogue::apply(sum[i][v], a, channel + v, element + v));
      *(Raw<kV * (int)sizeof(Out)>*)((Out*)(forward ? a.y : a.x) + element) = raw;
    }
  }
};

}  // namespace gconv
