// bwd_weight of depthwise convolution on channels-last tensors, without packing: the sums of a few filter rows, or of parts of long
// ones, stay in registers over a row of columns. A source point is read once for all of their taps.
#pragma once

#include "in_place.hpp"

namespace gconv::cpu {

template <class C>
class DepthwiseGradient {
  using A = Area<C>;
  using B = Block<C>;
  using P = PackedWeights<C>;
  using H = typename A::H;
  using W = typename A::W;
  using S = typename C::Source;
  using Y = typename C::Gradient;
  using T = typename S::type;
  static constexpr int kMostTaps = kRegisters == 32 ? 16 : 7;
  static constexpr int kMostSums = kRegisters == 32 ? 16 : 9;
  static constexpr int kParts = (C::filter[2] + kMostTaps - 1) / kMostTaps;
  static constexpr int kPart = (C::filter[2] + kParts - 1) / kParts;  // taps of a filter row taken together
  static constexpr int kPasses = (C::filter[1] + kMostSums / kPart - 1) / (kMostSums / kPart);
  static constexpr int kRows = (C::filter[1] + kPasses - 1) / kPasses;  // filter rows taken together
  static constexpr int kFree = kRegisters - 1 - kRows * kPart;
  static constexpr int kPoints = kFree >= 14 ? 14 : kFree >= 7 ? 7 : 3;  // columns whose gradients are in registers
  static constexpr int kUsualColumns = 28;  // shorter rows are taken several at a time
  static constexpr int kSlots = (kRowsInPlace - 1) * H::advance + C::filter[1];

 public:
  explicit DepthwiseGradient(const ConvArgs& a)
      : a_(a), area_(a, true), source_(a), view_(a.yv), dy_(static_cast<const typename Y::type*>(a.y)), step_(W::step * view_.s[2]),
        row_step_(H::step * view_.s[1]) {}

  static bool suits(const ConvArgs& a) { return PlainRows<C>::suits(a) && a.yv.g == 1; }

  void run(long long task) {
    for_chunk<C>(a_, area_, task, [this](const Unit<C>& unit, long long first, long long last, float* partial) {
      source_.select(unit);
      // No chain of products is longer than kChain, and no item touches many pages at a time.
      const long long width = smallest<long long>(unit.column_count, kChain / kPoints * kPoints);
      const long long height = smallest<long long>(largest<long long>(kUsualColumns / unit.column_count, 1), kRowsInPlace);
      for (long long i = 0; i < unit.row_count; i += height) {
        select(unit, i, smallest(height, unit.row_count - i));
        for (long long column = 0; column < unit.column_count; column += width)
          items(unit, column, smallest(column + width, unit.column_count), first, last, partial);
      }
    });
  }

 private:
  // Target rows i .. i + rows - 1, and the source rows that they meet.
  void select(const Unit<C>& unit, long long i, long long rows) {
    rows_ = static_cast<int>(rows);
    dy_row_ = dy_ + unit.image * view_.n + (unit.d.first + unit.plane * A::D::step) * view_.s[0] +
              (unit.h.first + (unit.first_row + i) * H::step) * view_.s[1] + unit.w.first * view_.s[2] + unit.first_column * step_;
    ahead_ = source_.ahead(area_, unit, i + rows, rows);
    dy_ahead_ = dy_row_ + (area_.column_runs > 1 ? area_.columns * step_ : rows * row_step_);
    for (int d = 0; d < C::filter[0]; d++)
      for (int slot = 0; slot < (rows - 1) * H::advance + C::filter[1]; slot++) x_[d][slot] = source_.row(d, i, slot);
  }

  // Columns begin .. end - 1, the channels in the order of memory.
  void items(const Unit<C>& unit, long long begin, long long end, long long first, long long last, float* partial) {
    const Span inner = unit.inner(source_.width());
    for (long long item = first; item < last; item++) {
      const long long group = B::group(a_, item);
      for (int d = 0; d < C::filter[0]; d++)
        for (int h = 0; h < C::filter[1]; h += kRows) {
          float* to = partial + item * P::kItem + P::row(0, d, h);
          int k = 0;
          for (; k + kPart <= C::filter[2]; k += kPart) pass<kPart>(unit, inner, d, h, k, begin, end, group, to + k * kLanes);
          if constexpr (C::filter[2] % kPart > 0) pass<C::filter[2] % kPart>(unit, inner, d, h, k, begin, end, group, to + k * kLanes);
        }
    }
  }

  // Adds to the sums of taps k .. k + kTaps - 1 of filter rows h .. h + kRows - 1, the first of which is at `to`.
  template <int kTaps>
  __attribute__((noinline)) void pass(const Unit<C>& unit, Span inner, int d, int h, int k, long long begin, long long end, long long group,
                                      float* to) const {
    Vec acc[kRows][kTaps] = {};
    const bool first = d == 0 && h == 0 && k == 0;
    const long long pitch = source_.pitch(), tap = group + k * pitch;
    for (int i = 0; i < rows_; i++) {
      const T* x[kRows];
      for (int r = 0; r < kRows; r++) {
        const T* row = h + r < C::filter[1] ? x_[d][i * H::advance + h + r] : nullptr;
        x[r] = row == nullptr ? nullptr : row + tap + begin * W::advance * pitch;
      }
      const auto* dy = dy_row_ + i * row_step_ + group + begin * step_;
      long long column = begin;
      const auto take = [&](auto points, auto edge) GCONV_CPU_LAMBDA {
        constexpr int kCount = decltype(points)::value;
        Span valid{};
        if constexpr (decltype(edge)::value) {
          valid = unit.points(column, source_.width());
          valid.low -= k, valid.high -= k;
        }
        add<kTaps, kCount, decltype(edge)::value>(acc, x, dy, pitch, valid);
        if (first) prefetch<kCount>(i, column, group);
        column += kCount, dy += kCount * step_;
        for (int r = 0; r < kRows; r++)
          if (x[r] != nullptr) x[r] += kCount * W::advance * pitch;
      };
      while (column + kPoints <= end)
        if (column >= inner.low && column + kPoints <= inner.high) take(Count<kPoints>{}, Count<0>{});
        else take(Count<kPoints>{}, Count<1>{});
      if constexpr (kPoints > 7)
        while (column + 7 <= end) take(Count<7>{}, Count<1>{});
      if constexpr (kPoints > 3)
        while (column + 3 <= end) take(Count<3>{}, Count<1>{});
      while (column < end) take(Count<1>{}, Count<1>{});
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      if (h + r >= C::filter[1]) break;
#pragma GCC unroll 16
      for (int t = 0; t < kTaps; t++) {
        float* sum = to + (r * C::filter[2] + t) * kLanes;
        store(sum, load(sum) + acc[r][t]);
      }
    }
  }

  // valid: the source points, counted from the first one of the first tap, that are not padding; with kEdge only.
  template <int kTaps, int kCount, bool kEdge>
  GCONV_CPU_INLINE void add(Vec (&acc)[kRows][kTaps], const T* const* x, const typename Y::type* dy, long long pitch, Span valid) const {
    Vec gradient[kCount];
#pragma GCC unroll 16
    for (int p = 0; p < kCount; p++) gradient[p] = in_register(Y::read_vector(dy + p * step_));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      const T* from = x[r];
      if (from == nullptr) continue;
#pragma GCC unroll 64
      for (int j = 0; j < (kCount - 1) * W::advance + kTaps; j++, from += pitch) {
        if (kEdge && j >= valid.high) break;
        if (kEdge && j < valid.low) continue;
        const Vec value = in_register(S::read_vector(from));
#pragma GCC unroll 16
        for (int t = 0; t < kTaps; t++)
          if (j >= t && (j - t) % W::advance == 0 && (j - t) / W::advance < kCount) acc[r][t] += value * gradient[(j - t) / W::advance];
      }
    }
  }

  // Prefetches what the same columns of the next target rows need.
  template <int kCount>
  GCONV_CPU_INLINE void prefetch(int i, long long column, long long group) const {
    const long long pitch = source_.pitch();
    const T* from = ahead_ + group + i * H::advance * source_.row_pitch() + column * W::advance * pitch;
    for (int r = 0; r < H::advance; r++, from += source_.row_pitch())
      for (int q = 0; q < kCount * W::advance; q++) __builtin_prefetch(from + q * pitch, 0, 2);
    const auto* dy = dy_ahead_ + group + i * row_step_ + column * step_;
    for (int p = 0; p < kCount; p++) __builtin_prefetch(dy + p * step_, 0, 2);
  }

  template <int kValue>
  struct Count {
    static constexpr int value = kValue;
  };

  const ConvArgs& a_;
  const Area<C> area_;
  PlainRows<C> source_;
  const TensorView& view_;
  const typename Y::type* const dy_;
  const long long step_, row_step_;  // elements of dy from one column, and row, to the next
  // The rows being computed:
  int rows_ = 0;
  const typename Y::type* dy_row_ = nullptr;
  const T* ahead_ = nullptr;         // the first source row that the next rows are the first to meet
  const typename Y::type* dy_ahead_ = nullptr;
  const T* x_[C::filter[0]][kSlots];
};

}  // namespace gconv::cpu
