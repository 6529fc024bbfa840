// The register tile of bwd_weight for one vector of output channels: the sums of a few filter rows and source channels. A source
// point is read (and spread over the lanes) once for all taps that it meets; the points of dy that it meets pass through registers.
#pragma once

#include "area.hpp"
#include "tile.hpp"

namespace gconv::cpu {

// How many filter rows and source channels fit into the registers beside dy's points, the indices and a value.
template <class C>
struct GradientShape {
  using A = Area<C>;
  static constexpr int kRegisters = kLanes == 16 ? 32 : 16;
  static constexpr int kTaps = C::filter[2];
  static constexpr int kWindow = (kTaps + A::W::advance - 1) / A::W::advance;  // points of a dy row that one source point meets
  static constexpr bool kSharedRows = A::H::advance == 1 && A::H::unit == 1;    // whether a source row meets several filter rows
  static constexpr int channels(int rows) {
    const int left = kRegisters - 1 - rows * kWindow, each = rows * kTaps + (C::merged ? 1 : 0);
    return smallest(Block<C>::kSource, left / each);
  }
  static constexpr int kRows = !kSharedRows ? 1 : channels(C::filter[1]) >= 1 && C::filter[1] <= 4 ? C::filter[1]
                               : channels(2) >= 1 && C::filter[1] > 1 ? 2 : 1;
  static constexpr int kChannels = largest(1, channels(kRows));
};

template <class C, int kRows, int kChannels>
class GradientTile {
  using A = Area<C>;
  using B = Block<C>;
  using P = PackedWeights<C>;
  using G = GradientShape<C>;
  static constexpr int kTaps = C::filter[2], kAdvance = A::W::advance, kWindow = G::kWindow;

 public:
  // dy: packed rows of `columns` points; sums: of the first filter row and channel. lo, hi: the source points that are no padding.
  GCONV_CPU_INLINE GradientTile(const float* dy, long long dy_pitch, long long columns, int channel, Span real, float* sums)
      : dy_(dy), dy_pitch_(dy_pitch), columns_(columns), channel_(channel), real_(real), sums_(sums) {
    if constexpr (B::kLate)
      for (int c = 0; c < kChannels; c++) __builtin_memcpy(&index_[c], kSpread<B>.lane[channel + c], sizeof(UVec));
  }

  // Source row x meets dy row i - r for the filter rows r from low to high of this tile.
  GCONV_CPU_INLINE void add(const float* x, long long i, int low, int high) {
    if (chain_ + columns_ > kChain) unload();
    chain_ += columns_;
    choose<0, kRows - 1>(low, high, x, i);
  }

  GCONV_CPU_INLINE void unload() {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 16
      for (int k = 0; k < kTaps; k++)
#pragma GCC unroll 16
        for (int c = 0; c < kChannels; c++) {
          float* to = sums_ + (r * kTaps + k) * P::kTap + c * B::kWidth;
          store(to, load(to) + acc_[r][k][c]);
          acc_[r][k][c] = Vec{};
        }
    chain_ = 0;
  }

 private:
  template <int kLow, int kHigh>
  GCONV_CPU_INLINE void choose(int low, int high, const float* x, long long i) {
    if (low == kLow && high == kHigh) return row<kLow, kHigh>(x, dy_ + i * dy_pitch_);
    if constexpr (kLow < kHigh) {
      if (low > kLow) choose<kLow + 1, kHigh>(low, high, x, i);
      else narrower<kLow, kHigh - 1>(high, x, i);
    }
  }
  template <int kLow, int kHigh>
  GCONV_CPU_INLINE void narrower(int high, const float* x, long long i) {
    if (high == kHigh) return row<kLow, kHigh>(x, dy_ + i * dy_pitch_);
    if constexpr (kLow < kHigh) narrower<kLow, kHigh - 1>(high, x, i);
  }

  // In step o, the source points o * kAdvance + t meet dy's points o - m at tap t + m * kAdvance.
  template <int kLow, int kHigh>
  GCONV_CPU_INLINE void row(const float* x, const float* dy) {
    long long o = 0, whole = kWindow - 1, end = columns_;
    if constexpr (C::strict) {
      whole = largest(whole, ceil_div(real_.low, kAdvance));
      end = smallest(end, (real_.high - kAdvance) / kAdvance + 1);
    }
#pragma GCC unroll 1
    for (; o < whole; o++) edge<kLow, kHigh>(x, dy, o);
    Vec window[kHigh - kLow + 1][kWindow];
    if (o + kWindow <= end) {
#pragma GCC unroll 8
      for (int r = kLow; r <= kHigh; r++)
#pragma GCC unroll 8
        for (int m = 1; m < kWindow; m++) window[r - kLow][kWindow - m] = load(dy - r * dy_pitch_ + (o - m) * B::kWidth);
#pragma GCC unroll 1
      for (; o + kWindow <= end; o += kWindow) steps<kLow, kHigh, 0>(window, x + o * kAdvance * B::kPixel, dy + o * B::kWidth);
    }
#pragma GCC unroll 1
    for (; o < columns_ + kWindow - 1; o++) edge<kLow, kHigh>(x, dy, o);
  }

  // kWindow steps; slot u of the window takes the point of step u.
  template <int kLow, int kHigh, int u>
  GCONV_CPU_INLINE void steps(Vec (&window)[kHigh - kLow + 1][kWindow], const float* x, const float* dy) {
    if constexpr (u < kWindow) {
#pragma GCC unroll 8
      for (int r = kLow; r <= kHigh; r++) window[r - kLow][u] = in_register(load(dy - r * dy_pitch_ + u * B::kWidth));
#pragma GCC unroll 8
      for (int t = 0; t < kAdvance; t++) {
        if (t >= kTaps) continue;
#pragma GCC unroll 16
        for (int c = 0; c < kChannels; c++) {
          const Vec v = value(x + (u * kAdvance + t) * B::kPixel, c);
#pragma GCC unroll 8
          for (int r = kLow; r <= kHigh; r++)
#pragma GCC unroll 8
            for (int m = 0; m < kWindow; m++)
              if (t + m * kAdvance < kTaps) acc_[r][t + m * kAdvance][c] += v * window[r - kLow][(u - m + kWindow) % kWindow];
        }
      }
      steps<kLow, kHigh, u + 1>(window, x, dy);
    }
  }

  // A step some of whose points of dy do not exist (with C::strict: or of whose source points lie on padding).
  template <int kLow, int kHigh>
  GCONV_CPU_INLINE void edge(const float* x, const float* dy, long long o) {
#pragma GCC unroll 8
    for (int t = 0; t < kAdvance; t++) {
      if (t >= kTaps) continue;
      if constexpr (C::strict)
        if (o * kAdvance + t < real_.low || o * kAdvance + t >= real_.high) continue;
      Vec v[kChannels];
#pragma GCC unroll 16
      for (int c = 0; c < kChannels; c++) v[c] = value(x + (o * kAdvance + t) * B::kPixel, c);
#pragma GCC unroll 8
      for (int m = 0; m < kWindow; m++) {
        if (t + m * kAdvance >= kTaps || o < m || o - m >= columns_) continue;
#pragma GCC unroll 8
        for (int r = kLow; r <= kHigh; r++) {
          const Vec gradient = load(dy - r * dy_pitch_ + (o - m) * B::kWidth);
#pragma GCC unroll 16
          for (int c = 0; c < kChannels; c++)
            if (t + m * kAdvance < kTaps) acc_[r][smallest(t + m * kAdvance, kTaps - 1)][c] += v[c] * gradient;
        }
      }
    }
  }

  GCONV_CPU_INLINE Vec value(const float* x, int c) const {
    if constexpr (B::kLate) return in_register(permute(load(x), index_[c]));
    else if constexpr (C::merged) return in_register(load(x + (channel_ + c) * kLanes));
    else return in_register(broadcast(x[channel_ + c]));
  }

  const float* const dy_;
  const long long dy_pitch_, columns_;
  const int channel_;
  const Span real_;
  float* const sums_;
  long long chain_ = 0;
  UVec index_[kChannels] = {};
  Vec acc_[kRows][kTaps][kChannels] = {};
};

}  // namespace gconv::cpu
