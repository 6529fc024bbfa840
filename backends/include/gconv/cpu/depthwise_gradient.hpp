// bwd_weight of depthwise convolution on channels-last fp32 tensors, without packing: partial sums of a few filter rows stay in
// registers over a block of columns.
#pragma once

#include "in_place.hpp"

namespace gconv::cpu {

template <class C>
class DepthwiseGradient {
  using A = Area<C>;
  using B = Block<C>;
  using P = PackedWeights<C>;
  using W = typename A::W;
  static constexpr int kUnroll = 8;  // columns written out in full, whose source points overlap
  static constexpr int kWide = 8;    // columns of a block: the points of several items should stay in the first-level cache
  static constexpr int kTaps = C::filter[2];
  static constexpr int kRows = smallest(largest(1, (C::points + 2) / kTaps), C::filter[1]);  // filter rows taken together
  static constexpr int kTogether = 16;  // items whose channels are read in order

 public:
  explicit DepthwiseGradient(const ConvArgs& a) : a_(a), area_(a, true), source_(a), dy_(static_cast<const float*>(a.y)) {}

  static bool suits(const ConvArgs& a) { return PlainRows<C>::suits(a) && a.yv.g == 1; }

  void run(long long task) {
    for_chunk<C>(a_, area_, task, [this](const Unit<C>& unit, long long first, long long last, float* partial) {
      source_.select(unit);
      partial_ = partial;
      for (first_ = first; first_ < last; first_ = last_) {
        last_ = smallest(last, first_ + kTogether);
        for (int d = 0; d < C::filter[0]; d++)
          for (long long i = 0; i < unit.row_count; i++) row(unit, d, i);
      }
    });
  }

 private:
  // Target row i against plane d of the filter.
  void row(const Unit<C>& unit, int d, long long i) {
    const TensorView& view = a_.yv;
    const long long step = A::W::step * view.s[2];
    const float* dy = dy_ + unit.image * view.n + (unit.d.first + unit.plane * A::D::step) * view.s[0] +
                      (unit.h.first + (unit.first_row + i) * A::H::step) * view.s[1] + unit.w.first * view.s[2] +
                      unit.first_column * step;
    const Span inner = unit.inner(source_.width());
    ahead_ = source_.ahead(area_, unit, i + 1, 1), dy_ahead_ = A::H::step * view.s[1];
    for (int h = 0; h < C::filter[1];) {
      const float* x[kRows];
      int count = 0;
      while (count < kRows && h + count < C::filter[1] && (x[count] = source_.row(d, i, h + count)) != nullptr) count++;
      if (count == kRows) columns<kRows>(unit, x, dy, step, inner, P::row(0, d, h));
      else
        for (int r = 0; r < count; r++) columns<1>(unit, x + r, dy, step, inner, P::row(0, d, h + r));
      h += largest(count, 1);
    }
  }

  template <int kCount>
  void columns(const Unit<C>& unit, const float* const* x, const float* dy, long long step, Span inner, long long sums) {
    for (long long column = 0; column < inner.low; column++) edge<kCount>(unit, x, dy + column * step, column, sums);
    long long column = inner.low;
    for (; column < inner.high; column += kWide)
      block<kCount>(x, dy, step, column, smallest<long long>(column + kWide, inner.high), sums);
    column = inner.high;
    for (; column < unit.column_count; column++) edge<kCount>(unit, x, dy + column * step, column, sums);
  }

  // sums: offset of the partial sums of the first filter row for item 0.
  template <int kCount>
  void block(const float* const* x, const float* dy, long long step, long long begin, long long end, long long sums) {
    for (long long item = first_; item < last_; item++) {
      const long long group = B::group(a_, item);
      Vec acc[kCount * kTaps] = {};
      const float* from[kCount];
      for (int r = 0; r < kCount; r++) from[r] = x[r] + group;
      long long column = begin;
      for (; column + kUnroll <= end; column += kUnroll) add<kCount, kUnroll>(acc, from, dy + group, step, column);
      for (; column < end; column++) add<kCount, 1>(acc, from, dy + group, step, column);
      float* to = partial_ + item * P::kItem + sums;
#pragma GCC unroll 32
      for (int k = 0; k < kCount * kTaps; k++) store(to + k * kLanes, load(to + k * kLanes) + acc[k]);
      const float* ahead = ahead_ + group;
      for (column = begin; column < end; column++) {
        __builtin_prefetch(dy + group + column * step + dy_ahead_, 0, 2);
        for (int q = 0; q < W::advance; q++)
          __builtin_prefetch(ahead + (column * W::advance + q) * source_.pitch(), 0, 2);
      }
    }
  }

  template <int kCount, int kPoints>
  GCONV_CPU_INLINE void add(Vec (&acc)[kCount * kTaps], const float* const* x, const float* dy, long long step, long long column) {
    const long long pitch = source_.pitch();
#pragma GCC unroll 8
    for (int p = 0; p < kPoints; p++) {
      const Vec gradient = in_register(load(dy + (column + p) * step));
#pragma GCC unroll 8
      for (int r = 0; r < kCount; r++)
#pragma GCC unroll 8
        for (int k = 0; k < kTaps; k++) acc[r * kTaps + k] += load(x[r] + ((column + p) * W::advance + k) * pitch) * gradient;
    }
  }

  // A column some of whose taps fall on padding.
  template <int kCount>
  void edge(const Unit<C>& unit, const float* const* x, const float* dy, long long column, long long sums) {
    const Span inside = unit.inside(column, source_.width());
    const long long pitch = source_.pitch();
    for (long long item = first_; item < last_; item++) {
      const long long group = B::group(a_, item);
      float* to = partial_ + item * P::kItem + sums;
      const Vec gradient = load(dy + group);
      for (int r = 0; r < kCount; r++)
        for (long long k = inside.low; k < inside.high; k++) {
          float* sum = to + (r * kTaps + k) * kLanes;
          store(sum, load(sum) + load(x[r] + (column * W::advance + k) * pitch + group) * gradient);
        }
    }
  }

  const ConvArgs& a_;
  const Area<C> area_;
  PlainRows<C> source_;
  const float* const dy_;
  float* partial_ = nullptr;
  long long first_ = 0, last_ = 0;  // items being computed
  const float* ahead_ = nullptr;    // the newest source row of the next target row
  long long dy_ahead_ = 0;
};

}  // namespace gconv::cpu
