// Source rows read where they lie: depthwise convolution on channels-last fp32 tensors, whose channels are the lanes already.
#pragma once

#include "area.hpp"

namespace gconv::cpu {

template <class C>
class PlainRows {
  using A = Area<C>;
  using B = Block<C>;
  using H = typename A::H;
  using W = typename A::W;

 public:
  explicit PlainRows(const ConvArgs& a)
      : view_(B::kBackward ? a.yv : a.xv),
        size_(B::kBackward ? a.out : a.in),
        source_(static_cast<const float*>(B::kBackward ? a.y : a.x)) {}

  // Channels side by side, enough of them, and most columns away from the padding.
  static bool suits(const ConvArgs& a) {
    const long long width = ceil_div((B::kBackward ? a.in : a.out)[2], W::step);
    return (B::kBackward ? a.yv : a.xv).g == 1 && a.G >= kLanes && width >= 2 * (W::max_taps - 1);
  }

  void select(const Unit<C>& unit) {
    image_ = source_ + unit.image * view_.n + (unit.w.origin + unit.first_column * W::advance * W::unit) * view_.s[2];
    first_h_ = unit.h.origin + unit.first_row * H::advance * H::unit;
    first_d_ = unit.d.origin + unit.plane * A::D::advance * A::D::unit;
  }

  // Where the unit's first column begins in the row that tap (d, h) of its target row i meets; null on padding. With padding on
  // the left that may be before the row.
  const float* row(int tap_d, long long i, int tap_h) const {
    const long long d = first_d_ + tap_d * A::D::unit, h = first_h_ + (i * H::advance + tap_h) * H::unit;
    return d >= 0 && d < size_[0] && h >= 0 && h < size_[1] ? image_ + d * view_.s[0] + h * view_.s[1] : nullptr;
  }

  // Where the unit's first column begins in the last row that target row i + 1 meets: memory that need not be there, to prefetch.
  const float* ahead(const Unit<C>& unit, long long i) const {
    const long long d = first_d_ + (unit.d.taps - 1) * A::D::unit;
    const long long h = first_h_ + ((i + 1) * H::advance + unit.h.taps - 1) * H::unit;
    return image_ + d * view_.s[0] + h * view_.s[1];
  }

  long long pitch() const { return W::unit * view_.s[2]; }  // floats from one source point of a row to the next
  long long row_pitch() const { return H::unit * view_.s[1]; }
  long long width() const { return size_[2]; }

 private:
  const TensorView& view_;
  const int* const size_;
  const float* const source_;
  const float* image_ = nullptr;
  long long first_h_ = 0, first_d_ = 0;
};

}  // namespace gconv::cpu
