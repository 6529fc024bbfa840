// forward and bwd_data of depthwise convolution on channels-last fp32 tensors, without packing the source.
#pragma once

#include "in_place.hpp"
#include "store.hpp"

namespace gconv::cpu {

template <class C>
class DepthwiseConvolver {
  using A = Area<C>;
  using B = Block<C>;
  using P = PackedWeights<C>;
  using W = typename A::W;
  static constexpr int kNarrow = 4;     // points of the smaller register block
  static constexpr int kTogether = 16;  // items whose channels are read in order

 public:
  explicit DepthwiseConvolver(const ConvArgs& a) : a_(a), area_(a, true), source_(a), view_(B::kBackward ? a.xv : a.yv) {}

  static bool suits(const ConvArgs& a) { return PlainRows<C>::suits(a) && (B::kBackward ? a.xv : a.yv).g == 1; }

  void run(long long task) {
    for_units<C>(a_, area_, task, a_.splits, [this](const Unit<C>& unit, long long first, long long last) {
      source_.select(unit);
      for (long long item = first; item < last; item += kTogether) {
        const long long end = smallest(last, item + kTogether);
        compute(unit, item, end);
      }
    });
  }

 private:
  void compute(const Unit<C>& unit, long long first, long long last) {
    if constexpr (W::min_taps < W::max_taps && W::max_taps > 1)
      if (unit.w.taps == W::max_taps - 1) return rows<W::max_taps - 1>(unit, first, last);
    rows<W::max_taps>(unit, first, last);
  }

  template <int kTaps>
  void rows(const Unit<C>& unit, long long first, long long last) {
    const Span inner = unit.inner(source_.width());
    first_ = first, last_ = last, step_ = W::step * view_.s[2];
    const long long plane = unit.image * view_.n + (unit.d.first + unit.plane * A::D::step) * view_.s[0] +
                            unit.w.first * view_.s[2] + unit.first_column * step_;
    for (long long i = 0; i < unit.row_count; i++) {
      at_ = plane + (unit.h.first + (unit.first_row + i) * A::H::step) * view_.s[1];
      count_ = unit.w.taps > 0 ? collect(unit, i) : 0;
      ahead_ = source_.ahead(unit, i);
      for (long long column = 0; column < inner.low; column++) edge(unit, column);
      columns<kTaps>(inner);
      for (long long column = inner.high; column < unit.column_count; column++) edge(unit, column);
    }
  }

  // The source and weight rows that meet at target row i.
  int collect(const Unit<C>& unit, long long i) {
    const float* weights = static_cast<const float*>(a_.workspace) + unit.w.weight_base * P::kTap;
    int count = 0;
    for (int d = 0; d < unit.d.taps; d++)
      for (int h = 0; h < unit.h.taps; h++)
        if (const float* x = source_.row(d, i, h)) {
          x_[count] = x;
          w_[count++] = weights + P::row(0, unit.d.weight_base + d, unit.h.weight_base + h);
        }
    return count;
  }

  // Columns away from the padding. A last block that is not full begins earlier: what it computes again comes out the same.
  template <int kTaps>
  void columns(Span inner) {
    long long column = inner.low;
    for (; column + C::points <= inner.high; column += C::points) block<C::points, kTaps>(column);
    if (column == inner.high) return;
    if (inner.size() >= C::points) return block<C::points, kTaps>(inner.high - C::points);
    for (; column + kNarrow <= inner.high; column += kNarrow) block<kNarrow, kTaps>(column);
    for (; column < inner.high; column++) block<1, kTaps>(column);
  }

  // Some columns for all items: the channels of a point are read in order.
  template <int kPoints, int kTaps>
  void block(long long column) {
    const long long pitch = source_.pitch();
    for (long long item = first_; item < last_; item++) {
      const long long group = B::group(a_, item);
      Vec acc[kPoints] = {};
      for (int r = 0; r < count_; r++) {
        const float* x = x_[r] + column * W::advance * pitch + group;
        const float* w = w_[r] + item * P::kItem;
#pragma GCC unroll 8
        for (int k = 0; k < kTaps; k++, x += pitch) {
          const Vec weight = in_register(load(w + k * kLanes));
#pragma GCC unroll 16
          for (int p = 0; p < kPoints; p++) acc[p] += load(x + p * W::advance * pitch) * weight;
        }
      }
      write<kPoints>(acc, column, group);
      const float* ahead = ahead_ + column * W::advance * pitch + group;
      for (int r = 0; r < A::H::advance; r++, ahead -= source_.row_pitch())
#pragma GCC unroll 16
        for (int p = 0; p < kPoints * W::advance; p++) __builtin_prefetch(ahead + p * pitch, 0, 2);
    }
  }

  // A column some of whose taps fall on padding.
  void edge(const Unit<C>& unit, long long column) {
    const Span inside = unit.inside(column, source_.width());
    const long long pitch = source_.pitch();
    for (long long item = first_; item < last_; item++) {
      const long long group = B::group(a_, item);
      Vec acc[1] = {};
      for (int r = 0; r < count_; r++)
        for (long long k = inside.low; k < inside.high; k++)
          acc[0] += load(x_[r] + (column * W::advance + k) * pitch + group) * load(w_[r] + item * P::kItem + k * kLanes);
      write<1>(acc, column, group);
    }
  }

  template <int kPoints>
  GCONV_CPU_INLINE void write(const Vec (&acc)[kPoints], long long column, long long group) {
    using R = typename C::Result;
    auto* result = static_cast<typename R::type*>(B::kBackward ? a_.x : a_.y);
    const long long at = at_ + column * step_ + group;
#pragma GCC unroll 16
    for (int p = 0; p < kPoints; p++) {
      Vec sum = acc[p];
      if constexpr (C::has_epilogue)
        for (int l = 0; l < kLanes; l++) sum[l] = C::epilogue(a_, sum[l], group + l, at + p * step_ + l);
      R::write_vector(result + at + p * step_, sum);
      __builtin_prefetch(result + at + p * step_ + A::H::step * view_.s[1], 1, 2);
    }
  }

  const ConvArgs& a_;
  const Area<C> area_;
  PlainRows<C> source_;
  const TensorView& view_;
  long long first_ = 0, last_ = 0;  // items being computed
  long long at_ = 0, step_ = 0;     // where the row being computed begins in the result, and the distance of its columns
  const float* ahead_ = nullptr;    // the newest source row of the next target row
  int count_ = 0;                   // rows behind it
  const float* x_[C::filter[0] * C::filter[1]];
  const float* w_[C::filter[0] * C::filter[1]];
};

}  // namespace gconv::cpu
