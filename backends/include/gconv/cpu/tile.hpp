// The register tile of one vector of channels: a few target rows by a few points, channel by channel. The weights that one source
// channel of one source row needs stay in registers while its points pass by; each is read, and spread over the lanes, once for all
// taps and target rows that meet it.
#pragma once

#include "strips.hpp"

namespace gconv::cpu {

// Which lane of a packed point each lane takes, for every channel (B::kLate).
template <class B>
struct SpreadTable {
  unsigned lane[B::kSource][kLanes];
  constexpr SpreadTable() : lane() {
    for (int c = 0; c < B::kSource; c++)
      for (int l = 0; l < kLanes; l++) lane[c][l] = static_cast<unsigned>((l / B::kTarget * B::kSource + c) % kLanes);
  }
};
template <class B>
inline constexpr SpreadTable<B> kSpread{};

GCONV_CPU_INLINE Vec permute(Vec v, UVec index) {
#ifdef __clang__
#if defined(__AVX512F__)
  return __builtin_ia32_permvarsf512(v, bits_as<__attribute__((vector_size(64))) int>(index));
#else
  Vec r;
  for (int l = 0; l < kLanes; l++) r[l] = v[index[l]];
  return r;
#endif
#else
  return __builtin_shuffle(v, index);
#endif
}

template <class C, int kRows, int kPoints, int kTaps>
class RowTile {
  using B = Block<C>;
  using P = PackedWeights<C>;
  using S = Strips<C>;
  static constexpr int kAdvance = S::W::advance, kDown = S::H::advance;
  static constexpr long long kFilterRow = C::filter[2] * P::kTap;
  static constexpr bool kShort = C::filter[0] * C::filter[1] * C::filter[2] * B::kSource <= kChain;
  static constexpr int kChannels = largest(1, smallest(B::kSource, kChain / kTaps));  // taken between two looks at the chain

 public:
  // sums: [row][point][kLanes]. Target row i is the first; `column` counts targets. w: the item's weights.
  GCONV_CPU_INLINE void run(const SourceRing<C>& source, const PatchPhase<C>& phase, const float* w, long long i, long long column,
                            float* sums) {
    sums_ = sums;
    const long long x_shift = (column * kAdvance + phase.shift_w) * B::kPixel;
    if (phase.w.taps > 0)
      for (int d = 0; d < phase.d.taps; d++) {
        const float* plane = w + P::row(0, phase.d.weight_base + d, phase.h.weight_base) + phase.w.weight_base * P::kTap;
        for (int s = 0; s < (kRows - 1) * kDown + phase.h.taps; s++) {
          const float* x = source.row(phase.shift_d + d, i * kDown + phase.shift_h + s);
          if (x == nullptr) continue;
          const int low = largest(0, (s - phase.h.taps + kDown) / kDown), high = smallest(kRows - 1, s / kDown);
          choose<0, kRows - 1>(low, high, x + x_shift, plane + s * kFilterRow);
        }
      }
    finish<0>();
  }

 private:
  // add<low, high>, for low and high between kLow and kHigh. With a stride of rows beyond the taps there may be none between.
  template <int kLow, int kHigh>
  GCONV_CPU_INLINE void choose(int low, int high, const float* x, const float* w) {
    if (low == kLow && high == kHigh) return add<kLow, kHigh>(x, w);
    if constexpr (kLow < kHigh) {
      if (low > kLow) choose<kLow + 1, kHigh>(low, high, x, w);
      else narrower<kLow, kHigh - 1>(high, x, w);
    }
  }
  template <int kLow, int kHigh>
  GCONV_CPU_INLINE void narrower(int high, const float* x, const float* w) {
    if (high == kHigh) return add<kLow, kHigh>(x, w);
    if constexpr (kLow < kHigh) narrower<kLow, kHigh - 1>(high, x, w);
  }

  // Source row x meets the target rows from kLow to kHigh; w: the filter row that target row 0 would meet it with.
  template <int kLow, int kHigh>
  GCONV_CPU_INLINE void add(const float* x, const float* w) {
#pragma GCC unroll 1
    for (int c = 0; c < B::kSource; c += kChannels) {
      if constexpr (!kShort) make_room<kLow, kHigh>(kChannels * kTaps);
#pragma GCC unroll 1
      for (int k = c; k < smallest(c + kChannels, B::kSource); k++) channel<kLow, kHigh>(x, w, k);
    }
  }

  template <int kLow, int kHigh>
  GCONV_CPU_INLINE void channel(const float* x, const float* w, int c) {
    Vec weight[kHigh - kLow + 1][kTaps];
#pragma GCC unroll 8
    for (int r = kLow; r <= kHigh; r++)
#pragma GCC unroll 8
      for (int k = 0; k < kTaps; k++)
        weight[r - kLow][k] = in_register(load(w - r * kDown * kFilterRow + k * P::kTap + c * B::kWidth));
    UVec index{};
    if constexpr (B::kLate) __builtin_memcpy(&index, kSpread<B>.lane[c], sizeof(index));
#pragma GCC unroll 64
    for (int j = 0; j < (kPoints - 1) * kAdvance + kTaps; j++) {
      Vec v;
      if constexpr (B::kLate) v = in_register(permute(load(x + j * B::kPixel), index));
      else if constexpr (C::merged) v = in_register(load(x + j * B::kPixel + c * kLanes));
      else v = in_register(broadcast(x[j * B::kPixel + c]));
#pragma GCC unroll 8
      for (int r = kLow; r <= kHigh; r++)
#pragma GCC unroll 8
        for (int k = 0; k < kTaps; k++)
          if (j >= k && (j - k) % kAdvance == 0 && (j - k) / kAdvance < kPoints)
            acc_[r][(j - k) / kAdvance] += v * weight[r - kLow][k];
    }
  }

  template <int kLow, int kHigh>
  GCONV_CPU_INLINE void make_room(int count) {
    if (chain_[kLow] + count > kChain) unload<kLow>();
    chain_[kLow] += count;
    if constexpr (kLow < kHigh) make_room<kLow + 1, kHigh>(count);
  }

  template <int kRow>
  GCONV_CPU_INLINE void unload() {
#pragma GCC unroll 32
    for (int p = 0; p < kPoints; p++) {
      float* to = sums_ + (kRow * kPoints + p) * kLanes;
      store(to, chained_[kRow] ? load(to) + acc_[kRow][p] : acc_[kRow][p]);
      acc_[kRow][p] = Vec{};
    }
    chain_[kRow] = 0, chained_[kRow] = true;
  }

  template <int kRow>
  GCONV_CPU_INLINE void finish() {
    if constexpr (kRow < kRows) unload<kRow>(), finish<kRow + 1>();
  }

  Vec acc_[kRows][kPoints] = {};
  int chain_[kRows] = {};
  bool chained_[kRows] = {};
  float* sums_ = nullptr;
};

}  // namespace gconv::cpu
