// Source rows read where they lie: depthwise convolution on channels-last tensors, whose channels are the lanes already.
#pragma once

#include "area.hpp"

namespace gconv::cpu {

template <class C>
class PlainRows {
  using A = Area<C>;
  using B = Block<C>;
  using H = typename A::H;
  using W = typename A::W;
  using T = typename C::Source::type;

 public:
  explicit PlainRows(const ConvArgs& a)
      : view_(B::kBackward ? a.yv : a.xv),
        size_(B::kBackward ? a.out : a.in),
        source_(static_cast<const T*>(B::kBackward ? a.y : a.x)) {}

  // Channels side by side, and enough of them.
  static bool suits(const ConvArgs& a) { return (B::kBackward ? a.yv : a.xv).g == 1 && a.G >= kLanes; }

  void select(const Unit<C>& unit) {
    image_ = source_ + unit.image * view_.n + (unit.w.origin + unit.first_column * W::advance * W::unit) * view_.s[2];
    first_h_ = unit.h.origin + unit.first_row * H::advance * H::unit;
    first_d_ = unit.d.origin + unit.plane * A::D::advance * A::D::unit;
  }

  // Where the unit's first column begins in the row that tap (d, h) of its target row i meets; null on padding. With padding on
  // the left that may be before the row.
  const T* row(int tap_d, long long i, int tap_h) const {
    const long long d = first_d_ + tap_d * A::D::unit, h = first_h_ + (i * H::advance + tap_h) * H::unit;
    return d >= 0 && d < size_[0] && h >= 0 && h < size_[1] ? image_ + d * view_.s[0] + h * view_.s[1] : nullptr;
  }

  // Memory that need not be there, to prefetch: the first source row that target row i is the first to meet, as if at the unit's
  // first column; where rows are cut into runs of columns, that of target row i - rows behind the next run.
  const T* ahead(const A& area, const Unit<C>& unit, long long i, long long rows) const {
    const bool runs = area.column_runs > 1;
    const long long d = first_d_ + (unit.d.taps - 1) * A::D::unit;
    const long long h = first_h_ + ((i - (runs ? rows : 0)) * H::advance + largest(unit.h.taps - H::advance, 0)) * H::unit;
    return image_ + d * view_.s[0] + h * view_.s[1] + (runs ? area.columns * W::advance * pitch() : 0);
  }

  long long pitch() const { return W::unit * view_.s[2]; }  // elements from one source point of a row to the next
  long long row_pitch() const { return H::unit * view_.s[1]; }
  long long width() const { return size_[2]; }

 private:
  const TensorView& view_;
  const int* const size_;
  const T* const source_;
  const T* image_ = nullptr;
  long long first_h_ = 0, first_d_ = 0;
};

}  // namespace gconv::cpu
