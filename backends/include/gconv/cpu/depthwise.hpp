// forward and bwd_data of depthwise convolution on channels-last tensors, without packing the source.
//
// A register block is kRows target rows by kPoints columns of one vector of channels. A source point is read once for all taps of
// a filter row (or of a part of a long one) and for both target rows; taps that meet padding are left out.
#pragma once

#include "in_place.hpp"
#include "store.hpp"

namespace gconv::cpu {

template <class C>
class DepthwiseConvolver {
  using A = Area<C>;
  using B = Block<C>;
  using P = PackedWeights<C>;
  using H = typename A::H;
  using W = typename A::W;
  using S = typename C::Source;
  using R = typename C::Result;
  using T = typename S::type;
  static constexpr int kRows = kRegisters == 32 && H::max_taps > 1 ? 2 : 1;
  static constexpr int kMostTaps = kRegisters == 32 ? 8 : 7;  // whose weights stay in registers beside the sums
  static constexpr int kParts = (W::max_taps + kMostTaps - 1) / kMostTaps;
  static constexpr int kPart = (W::max_taps + kParts - 1) / kParts;  // taps taken together
  static constexpr int kPoints = smallest(14, (kRegisters - 1 - kRows * kPart) / kRows);
  static constexpr int kMeetings = A::D::max_taps * ((kRows - 1) * H::advance + H::max_taps);
  static constexpr bool kLong = A::D::max_taps * H::max_taps * W::max_taps > kChain;
  static constexpr long long kStreamBytes = 1 << 22;  // results from this size on do not pass through the caches

  // Which of the target rows a source row meets.
  enum Met { kFirst = 1, kSecond = 2, kBoth = 3 };

  // A source row, and the weights of the filter row with which it meets each target row.
  struct Meeting {
    const T* x;
    const float* w[kRows];
  };

  using Sums = Vec[kRows][kPoints];

 public:
  explicit DepthwiseConvolver(const ConvArgs& a)
      : a_(a), area_(a, true), source_(a), view_(B::kBackward ? a.xv : a.yv), result_(static_cast<typename R::type*>(B::kBackward ? a.x : a.y)),
        step_(W::step * view_.s[2]), row_step_(H::step * view_.s[1]), streams_(streams()) {}

  static bool suits(const ConvArgs& a) { return PlainRows<C>::suits(a) && (B::kBackward ? a.xv : a.yv).g == 1; }

  void run(long long task) {
    for_units<C>(a_, area_, task, a_.splits, [this](const Unit<C>& unit, long long first, long long last) {
      source_.select(unit);
      for (long long i = 0; i < unit.row_count; i += kRows) compute(unit, i, first, last);
    });
    if (streams_) stream_end();
  }

 private:
  // Whether whole cache lines are written, and so many that the caches would not keep them.
  bool streams() const {
    const int* size = B::kBackward ? a_.in : a_.out;
    const long long bytes = static_cast<long long>(a_.N) * size[0] * size[1] * size[2] * a_.G * static_cast<long long>(sizeof(Vec));
    const long long strides = view_.n | view_.s[0] | view_.s[1] | view_.s[2] | a_.G;
    return kStreams && sizeof(typename R::type) == sizeof(float) && bytes / kLanes >= kStreamBytes && strides % kLanes == 0 &&
           reinterpret_cast<__UINTPTR_TYPE__>(result_) % sizeof(Vec) == 0;
  }

  // Target rows i .. i + kRows - 1 of the unit.
  void compute(const Unit<C>& unit, long long i, long long first, long long last) {
    rows_ = static_cast<int>(smallest<long long>(kRows, unit.row_count - i));
    at_ = unit.image * view_.n + (unit.d.first + unit.plane * A::D::step) * view_.s[0] +
          (unit.h.first + (unit.first_row + i) * H::step) * view_.s[1] + unit.w.first * view_.s[2] + unit.first_column * step_;
    ahead_ = source_.ahead(area_, unit, i + rows_, rows_);
    result_ahead_ = area_.column_runs > 1 ? area_.columns * step_ : kRows * row_step_;
    int count = 0;
    for (int set = 0; set < 3; set++) {
      if (unit.w.taps > 0) collect(unit, i, kSets[set], count);
      end_[set] = count;
    }
    if (unit.w.taps == W::max_taps) return columns<W::max_taps>(unit, first, last);
    if constexpr (W::min_taps < W::max_taps && W::max_taps > 1)
      if (unit.w.taps == W::max_taps - 1) return columns<W::max_taps - 1>(unit, first, last);
    if constexpr (W::min_taps == 0) columns<0>(unit, first, last);
  }

  // Appends the source rows that meet just the target rows of `set`.
  void collect(const Unit<C>& unit, long long i, Met set, int& count) {
    const float* weights = static_cast<const float*>(a_.workspace) + unit.w.weight_base * P::kTap;
    for (int d = 0; d < unit.d.taps; d++)
      for (int slot = 0; slot < (rows_ - 1) * H::advance + unit.h.taps; slot++) {
        Meeting meeting{source_.row(d, i, slot), {}};
        int met = 0;
        for (int r = 0; r < rows_; r++) {
          const int h = slot - r * H::advance;
          if (h < 0 || h >= unit.h.taps) continue;
          meeting.w[r] = weights + P::row(0, unit.d.weight_base + d, unit.h.weight_base + h);
          met |= 1 << r;
        }
        if (met == set && meeting.x != nullptr) meetings_[count++] = meeting;
      }
  }

  // Full blocks of columns in the middle, and at both ends blocks of about equal size.
  template <int kTaps>
  void columns(const Unit<C>& unit, long long first, long long last) {
    const Span inner = unit.inner(source_.width());
    const long long count = unit.column_count, full = largest<long long>(ceil_div(count, kPoints) - 2, 0);
    const long long ends = count - full * kPoints, left = ends <= kPoints ? ends : (ends + 1) / 2, right = left + full * kPoints;
    for (long long column = 0, end; column < count; column = end) {
      end = column < right ? (column < left ? left : column + kPoints) : count;
      if (end - column == kPoints && column >= inner.low && end <= inner.high) items<kTaps, false>(column, kPoints, {}, first, last);
      else items<kTaps, true>(column, end - column, unit.points(column, source_.width()), first, last);
    }
  }

  // The channels of a block of columns in the order of memory.
  template <int kTaps, bool kEdge>
  __attribute__((noinline)) void items(long long column, long long points, Span valid, long long first, long long last) {
    for (long long item = first; item < last; item++) block<kTaps, kEdge>(item, column, points, valid);
  }

  // valid: the source points, counted from the block's first one, that are not padding; with kEdge only.
  template <int kTaps, bool kEdge>
  GCONV_CPU_INLINE void block(long long item, long long column, long long points, Span valid) {
    const long long group = B::group(a_, item);
    Sums acc = {}, total = {};
    if constexpr (kTaps > 0) {
      const long long shift = column * W::advance * source_.pitch() + group, weights = item * P::kItem;
      int chain = 0;
      const auto add_rows = [&](auto set, int begin, int end) GCONV_CPU_LAMBDA {
        for (int m = begin; m < end; m++) add<kTaps, kEdge, decltype(set)::value>(acc, total, chain, meetings_[m], shift, weights, points, valid);
      };
      add_rows(Set<kFirst>{}, 0, end_[0]);
      if constexpr (kRows > 1) add_rows(Set<kBoth>{}, end_[0], end_[1]), add_rows(Set<kSecond>{}, end_[1], end_[2]);
      if constexpr (kLong) unload(acc, total);
    }
    write<kEdge>(kLong ? total : acc, column, points, group);
    prefetch(column, kEdge ? points : kPoints, group);
  }

  template <int kTaps, bool kEdge, Met kMet>
  GCONV_CPU_INLINE void add(Sums& acc, Sums& total, int& chain, const Meeting& meeting, long long shift, long long weights,
                            long long points, Span valid) const {
    const T* x = meeting.x + shift;
    const float* w[kRows];
    for (int r = 0; r < kRows; r++) w[r] = meeting.w[r] + weights;
    int k = 0;
    if constexpr (kTaps >= kPart)
      for (; k + kPart <= kTaps; k += kPart, x += kPart * source_.pitch()) {
        if constexpr (kLong) make_room<kPart>(acc, total, chain);
        add_part<kPart, kEdge, kMet>(acc, x, w, points, {valid.low - k, valid.high - k});
        for (int r = 0; r < kRows; r++) w[r] += kPart * kLanes;
      }
    if constexpr (kTaps % kPart > 0) {
      if constexpr (kLong) make_room<kTaps % kPart>(acc, total, chain);
      add_part<kTaps % kPart, kEdge, kMet>(acc, x, w, points, {valid.low - k, valid.high - k});
    }
  }

  // Long chains gather rounding errors.
  template <int kTaps>
  GCONV_CPU_INLINE static void make_room(Sums& acc, Sums& total, int& chain) {
    if (chain + kTaps > kChain) unload(acc, total), chain = 0;
    chain += kTaps;
  }

  GCONV_CPU_INLINE static void unload(Sums& acc, Sums& total) {
#pragma GCC unroll 2
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 16
      for (int p = 0; p < kPoints; p++) total[r][p] += acc[r][p], acc[r][p] = Vec{};
  }

  template <int kTaps, bool kEdge, Met kMet>
  GCONV_CPU_INLINE void add_part(Sums& acc, const T* x, const float* const* w, long long points, Span valid) const {
    Vec weight[kRows][kTaps];
#pragma GCC unroll 2
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 8
      for (int k = 0; k < kTaps; k++)
        if (kMet >> r & 1) weight[r][k] = in_register(load(w[r] + k * kLanes));
    const long long high = kEdge ? smallest<long long>(valid.high, (points - 1) * W::advance + kTaps) : 0;
    const long long pitch = source_.pitch();
#pragma GCC unroll 64
    for (int j = 0; j < (kPoints - 1) * W::advance + kTaps; j++, x += pitch) {
      if (kEdge && j >= high) break;
      if (kEdge && j < valid.low) continue;
      const Vec value = in_register(S::read_vector(x));
#pragma GCC unroll 8
      for (int k = 0; k < kTaps; k++)
        if (j >= k && (j - k) % W::advance == 0 && (j - k) / W::advance < kPoints)
#pragma GCC unroll 2
          for (int r = 0; r < kRows; r++)
            if (kMet >> r & 1) acc[r][(j - k) / W::advance] += value * weight[r][k];
    }
  }

  template <bool kEdge>
  GCONV_CPU_INLINE void write(const Sums& acc, long long column, long long points, long long group) const {
    const long long step = step_;
    const bool streams = streams_;
#pragma GCC unroll 2
    for (int r = 0; r < kRows; r++) {
      if (r >= rows_) break;
      long long at = at_ + r * row_step_ + column * step + group;
#pragma GCC unroll 16
      for (int p = 0; p < kPoints; p++, at += step) {
        if (kEdge && p >= points) break;
        Vec sum = acc[r][p];
        if constexpr (C::has_epilogue)
          for (int l = 0; l < kLanes; l++) sum[l] = C::epilogue(a_, sum[l], group + l, at + l);
        if (kStreams && streams) stream(result_ + at, sum);
        else R::write_vector(result_ + at, sum);
      }
    }
  }

  // Prefetches what the same columns of the next target rows need: too far apart for the processor to foresee.
  GCONV_CPU_INLINE void prefetch(long long column, long long points, long long group) const {
    const long long pitch = source_.pitch(), step = step_;
    const T* from = ahead_ + column * W::advance * pitch + group;
    for (int r = 0; r < kRows * H::advance; r++, from += source_.row_pitch())
      for (long long p = 0; p < points * W::advance; p++) __builtin_prefetch(from + p * pitch, 0, 2);
    if (streams_) return;
    auto* to = result_ + at_ + result_ahead_ + column * step + group;
    for (int r = 0; r < kRows; r++, to += row_step_)
      for (long long p = 0; p < points; p++) __builtin_prefetch(to + p * step, 1, 2);
  }

  template <Met kMet>
  struct Set {
    static constexpr Met value = kMet;
  };
  static constexpr Met kSets[3] = {kFirst, kBoth, kSecond};

  const ConvArgs& a_;
  const Area<C> area_;
  PlainRows<C> source_;
  const TensorView& view_;
  typename R::type* const result_;
  const long long step_, row_step_;  // elements of the result from one target column, and target row, to the next
  const bool streams_;
  // The rows being computed:
  int rows_ = 0;
  long long at_ = 0;            // where the first one begins in the result
  const T* ahead_ = nullptr;    // the first source row that the next ones are the first to meet
  long long result_ahead_ = 0;  // from at_ to what is written next
  Meeting meetings_[kMeetings];
  int end_[3] = {};             // of the meetings of each of kSets
};

}  // namespace gconv::cpu
