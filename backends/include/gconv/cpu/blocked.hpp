// Deep sums: a block of at most kChain products of all points of a strip is added to sums in memory before the next. Its weights
// stay in the first-level cache meanwhile, and no chain of additions is longer.
#pragma once

#include "strips.hpp"

namespace gconv::cpu {

// sums[p][:] += over rows r and k < depth: x[r][x_shift + p * kStep + k * kValue] * w[r][k][:]
template <class C, int kPoints, int kStep>
inline void add_dot(const float* const* x, const float* const* w, int rows, long long x_shift, int depth, float* sums) {
  using B = Block<C>;
  Vec acc[kPoints][C::vectors] = {};
  for (int r = 0; r < rows; r++) {
    const float* xr = x[r] + x_shift;
    const float* wr = w[r];
#pragma GCC unroll 2
    for (int k = 0; k < depth; k++) multiply_add<C, kPoints, kStep>(acc, xr + k * B::kValue, wr + k * B::kWidth);
  }
#pragma GCC unroll 32
  for (int p = 0; p < kPoints; p++)
#pragma GCC unroll 8
    for (int v = 0; v < C::vectors; v++) {
      float* to = sums + p * B::kWidth + v * kLanes;
      store(to, load(to) + acc[p][v]);
    }
}

template <class C, class Cut>
class BlockedStrip {
  using B = Block<C>;
  using P = PackedWeights<C>;
  using S = Strips<C>;
  static constexpr int kStep = S::W::advance * B::kPixel;
  static constexpr int kTogether = largest(1, kChain / (C::filter[2] * B::kSource));  // filter rows of a block

 public:
  // sums: [row][pitch floats], zeros; column: the first of those that are cut.
  BlockedStrip(const SourceRing<C>& source, const PatchPhase<C>& phase, const Cut& cut, long long column, long long i, long long rows,
               float* sums, long long pitch)
      : source_(source), phase_(phase), cut_(cut), first_(column), i_(i), rows_(rows), sums_(sums), pitch_(pitch) {}

  // weights: of the item.
  void run(const float* weights) {
    const int depth = phase_.w.taps * B::kSource;
    if (depth == 0) return;
    const int blocks = static_cast<int>(ceil_div(depth, kChain)), block = static_cast<int>(ceil_div(depth, blocks));
    for (int d = 0; d < phase_.d.taps; d++)
      for (int h = 0; h < phase_.h.taps; h += kTogether)
        for (int k = 0; k < depth; k += block)
          for (long long r = 0; r < rows_; r++) add(weights, d, h, k, smallest(block, depth - k), r);
  }

 private:
  // Products k to k + depth of filter rows h to h + kTogether for target row r of the strip.
  void add(const float* weights, int d, int h, int k, int depth, long long r) {
    const float *x[kTogether], *w[kTogether];
    int count = 0;
    for (int m = h; m < smallest(h + kTogether, phase_.h.taps); m++)
      if (const float* row = source_.row(phase_.shift_d + d, (i_ + r) * S::H::advance + phase_.shift_h + m)) {
        x[count] = row + (phase_.shift_w * B::kSource + k) * B::kValue;
        w[count++] = weights + P::row(0, phase_.d.weight_base + d, phase_.h.weight_base + m) + phase_.w.weight_base * P::kTap +
                     k * B::kWidth;
      }
    if (count > 0) columns<0>(x, w, count, depth, first_, sums_ + r * pitch_);
  }

  template <int kKind>
  void columns(const float* const* x, const float* const* w, int count, int depth, long long column, float* sums) {
    constexpr int kPoints = C::blocks[kKind];
    for (long long b = 0; b < cut_.count[kKind]; b++, column += kPoints, sums += kPoints * B::kWidth)
      add_dot<C, kPoints, kStep>(x, w, count, column * kStep, depth, sums);
    if constexpr (kKind + 1 < Cut::kKinds) columns<kKind + 1>(x, w, count, depth, column, sums);
  }

  const SourceRing<C>& source_;
  const PatchPhase<C>& phase_;
  const Cut& cut_;
  const long long first_, i_, rows_;
  float* const sums_;
  const long long pitch_;
};

}  // namespace gconv::cpu
