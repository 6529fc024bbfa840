// forward and bwd_data: each result is one sum, started and finished in registers.
#pragma once

#include "area.hpp"
#include "depthwise.hpp"
#include "store.hpp"

namespace gconv::cpu {

template <class C>
class Convolver {
  using B = Block<C>;
  using A = Area<C>;
  using P = PackedWeights<C>;
  static constexpr int kRows = C::filter[0] * C::filter[1];
  static constexpr int kMostSliding = kLanes == 16 ? 7 : 4;  // taps whose weights fit into registers beside the sums

 public:
  explicit Convolver(const ConvArgs& a) : a_(a), area_(a), scratch_(floats()), source_(area_, scratch_.data()) {
    x_ = reinterpret_cast<const float**>(scratch_.data() + area_.scratch_floats());
    w_ = x_ + kRows;
  }

  void run(long long task) {
    for_units<C>(a_, area_, task, a_.splits,
                 [this](const Unit<C>& unit, long long first, long long last) { compute_items(unit, first, last); });
  }

 private:
  static constexpr int kPointerFloats = 2;  // floats that a pointer takes
  static_assert(sizeof(float*) <= kPointerFloats * sizeof(float), "pointers fit their scratch memory");

  long long floats() const { return area_.scratch_floats() + 2 * kRows * kPointerFloats; }

  void compute_items(const Unit<C>& unit, long long first, long long last) {
    const Span whole = unit.whole(width());
    const Cover<C::points, C::few_points> cover(whole.size());
    const long long points = largest(unit.column_count, whole.low + cover.covered());
    long long packed_group = -1;
    for (long long item = first; item < last; item++) {
      if (B::group(a_, item) != packed_group) source_.pack(a_, unit, item, points);
      packed_group = B::group(a_, item);
      compute(unit, item, whole, cover);
    }
  }

  void compute(const Unit<C>& unit, long long item, Span whole, const Cover<C::points, C::few_points>& cover) {
    using W = typename A::W;
    if (unit.w.taps == W::max_taps) return rows<W::max_taps>(unit, item, whole, cover);
    if constexpr (W::max_taps > 1 && W::min_taps < W::max_taps)
      if (unit.w.taps == W::max_taps - 1) return rows<W::max_taps - 1>(unit, item, whole, cover);
    if constexpr (W::min_taps < W::max_taps) rows<0>(unit, item, whole, cover);
  }

  template <int kTaps>
  void rows(const Unit<C>& unit, long long item, Span whole, const Cover<C::points, C::few_points>& cover) {
    const TensorView& view = B::kBackward ? a_.xv : a_.yv;
    const LaneMap<C> lanes(a_, item, view.g, view.c);
    const long long plane = unit.image * view.n + (unit.d.first + unit.plane * A::D::step) * view.s[0];
    for (long long i = 0; i < unit.row_count; i++) {
      const long long row = plane + (unit.h.first + (unit.first_row + i) * A::H::step) * view.s[1];
      const int taps = unit.w.taps > 0 ? collect(unit, item, i) : 0;
      source_.prefetch(a_, unit, item, i);
      long long column = whole.low;
      for (long long b = 0; b < cover.large; b++, column += C::points)
        block<C::points, kTaps>(unit, lanes, taps, column, whole.high, row);
      for (long long b = 0; b < cover.small; b++, column += C::few_points)
        block<C::few_points, kTaps>(unit, lanes, taps, column, whole.high, row);
      if constexpr (C::strict) edges(unit, lanes, taps, whole, row);
    }
  }

  // The source and weight rows that meet at target row i.
  int collect(const Unit<C>& unit, long long item, long long i) {
    const float* weights = static_cast<const float*>(a_.workspace) + unit.w.weight_base * P::kTap;
    int count = 0;
    for (int d = 0; d < unit.d.taps; d++)
      for (int h = 0; h < unit.h.taps; h++)
        if (const float* x = source_.row(d, i, h)) {
          x_[count] = x;
          w_[count++] = weights + P::row(item, unit.d.weight_base + d, unit.h.weight_base + h);
        }
    return count;
  }

  // kTaps: those of the unit along w, or 0 where there may be none.
  template <int kPoints, int kTaps>
  void block(const Unit<C>& unit, const LaneMap<C>& lanes, int taps, long long column, long long end, long long row) {
    alignas(64) float sums[kPoints * B::kWidth];
    constexpr int kDepth = kTaps * B::kSource <= kUnrolled ? kTaps * B::kSource : 0;
    if constexpr (B::kLate || (C::sliding && kTaps > 1)) {
      constexpr int kFixed = kTaps <= kMostSliding ? kTaps : 0;
      SlidingDot<C, kPoints, A::W::advance, kFixed>().run(x_, w_, taps, column * A::kPointStep, 0, unit.w.taps, sums);
    } else {
      dot<C, kPoints, A::kPointStep, kDepth>(x_, w_, taps, column * A::kPointStep, 0, unit.w.taps * B::kSource, sums);
    }
    store(unit, lanes, sums, column, smallest<long long>(kPoints, end - column), row);
  }

  // The columns outside `whole`, each with the taps that do not fall on padding.
  void edges(const Unit<C>& unit, const LaneMap<C>& lanes, int taps, Span whole, long long row) {
    for (long long column = 0; column < unit.column_count; column++) {
      if (column >= whole.low && column < whole.high) continue;
      const Span inside = unit.inside(column, width());
      alignas(64) float sums[B::kWidth];
      const long long x_shift = column * A::kPointStep + inside.low * B::kPixel, w_shift = inside.low * P::kTap;
      if constexpr (B::kLate) SlidingDot<C, 1, A::W::advance, 0>().run(x_, w_, taps, x_shift, w_shift, inside.size(), sums);
      else dot<C, 1, A::kPointStep, 0>(x_, w_, taps, x_shift, w_shift, inside.size() * B::kSource, sums);
      store(unit, lanes, sums, column, 1, row);
    }
  }

  void store(const Unit<C>& unit, const LaneMap<C>& lanes, float* sums, long long column, long long points, long long row) {
    const TensorView& view = B::kBackward ? a_.xv : a_.yv;
    const long long step = A::W::step * view.s[2];
    const long long first = row + unit.w.first * view.s[2] + (unit.first_column + column) * step;
    store_points<C>(a_, B::kBackward ? a_.x : a_.y, lanes, sums, points, first, step);
  }

  long long width() const { return (B::kBackward ? a_.out : a_.in)[2]; }

  const ConvArgs& a_;
  const Area<C> area_;
  const Scratch scratch_;
  PackedSource<C> source_;
  const float** x_;
  const float** w_;
};

// Task t of args.splits.
template <class C>
void convolve(const ConvArgs& a, long long task) {
  if constexpr (C::in_place)
    if (DepthwiseConvolver<C>::suits(a)) return DepthwiseConvolver<C>(a).run(task);
  Convolver<C>(a).run(task);
}

}  // namespace gconv::cpu
