// Packing into dense fp32: rows of the source (prologue applied, zeros where only padding is), and the weights.
#pragma once

#include "micro.hpp"

namespace gconv::cpu {

template <class B, int c = 0>
GCONV_CPU_INLINE void store_spread(float* to, Vec v) {
  if constexpr (c < B::kSource) {
    store(to + c * kLanes, spread<B, c>(v));
    store_spread<B, c + 1>(to, v);
  }
}

// The source channels of one item, read row by row. A packed row is [point][channel][kValue].
template <class C>
class SourcePacker {
  using B = Block<C>;
  using S = typename C::Source;
  using T = typename S::type;
  static constexpr int kChannels = B::kGroups * B::kSource;  // of an item
  static constexpr bool kWholeVectors = C::merged && (B::kLate || (B::kSource == B::kTarget && kChannels == kLanes));

 public:
  SourcePacker(const ConvArgs& a, const TensorView& view, long long item)
      : a_(a), view_(view), group_(B::group(a, item)), groups_(B::groups(a)) {
    const bool channels_last = view.c == 1 && (!C::merged || view.g == B::kSource);
    by_point_ = channels_last && (!C::merged || (kWholeVectors && groups_ == B::kGroups));
    gaps_ = C::merged && !by_point_ && (B::kGroups * B::kTarget != kLanes || groups_ != B::kGroups || B::kLate);
  }

  // The points origin + j * unit, 0 <= j < points, of every row to be packed; those outside [0, size) are zeros.
  void select(long long origin, int unit, long long size, long long points) {
    points_ = points, step_ = unit * view_.s[2];
    low_ = smallest(origin < 0 ? ceil_div(-origin, unit) : 0LL, points);
    high_ = largest(low_, smallest(origin < size ? ceil_div(size - origin, unit) : 0LL, points));
    first_ = group_ * view_.g + (origin + low_ * unit) * view_.s[2];
  }

  // Prefetches the next item's channels of the points of a row. Only where channels lie side by side is this what comes next.
  void prefetch(const T* row) const {
    constexpr int kBytes = (C::merged ? kLanes : B::kSource) * static_cast<int>(sizeof(T));
    if (!by_point_) return;
    const T* from = row + first_;
    for (long long j = low_; j < high_; j++, from += step_) prefetch_after<kBytes>(from);
  }

  void pack(const T* row, float* to) const {
    zero(to, gaps_ ? points_ : low_);
    zero(to + high_ * B::kPixel, points_ - high_);
    if (low_ == high_) return;
    if (by_point_) pack_points(row + first_, to + low_ * B::kPixel);
    else pack_channels(row + first_, to + low_ * B::kPixel);
  }

 private:
  GCONV_CPU_INLINE static void zero(float* to, long long points) {
    for (long long i = 0; i < points * B::kPixel; i += B::kValue)
      if constexpr (C::merged) store(to + i, Vec{});
      else to[i] = 0.0f;
  }

  GCONV_CPU_INLINE Vec read_vector(const T* from, long long channel) const {
    constexpr int kRead = C::merged ? kChannels : kLanes;
    Vec v = kRead == kLanes ? S::read_vector(from) : S::read_some(from, kRead);
    if constexpr (C::has_prologue)
      for (int l = 0; l < smallest(kRead, kLanes); l++) v[l] = C::prologue(a_, v[l], channel + l);
    return v;
  }

  GCONV_CPU_INLINE float read(const T* from, long long channel) const {
    const float v = S::read(from);
    if constexpr (C::has_prologue) return C::prologue(a_, v, channel);
    return v;
  }

  // Channels lie side by side.
  void pack_points(const T* from, float* to) const {
    const long long channel = group_ * B::kSource;
    for (long long j = low_; j < high_; j++, from += step_, to += B::kPixel) {
      if constexpr (kWholeVectors) {
        if constexpr (B::kLate) store(to, read_vector(from, channel));
        else store_spread<B>(to, read_vector(from, channel));
      } else {
        int c = 0;
        for (; c + kLanes <= B::kSource; c += kLanes) store(to + c, read_vector(from + c, channel + c));
        if constexpr (B::kSource % kLanes != 0 && !C::has_prologue) {
          store_some(to + c, S::read_some(from + c, B::kSource % kLanes), B::kSource % kLanes);
        } else {
          for (; c < B::kSource; c++) to[c] = read(from + c, channel + c);
        }
      }
    }
  }

  // Any strides: one channel at a time, so that the points of a channels-first tensor are read in order.
  void pack_channels(const T* from, float* to) const {
    for (int g = 0; g < groups_; g++)
      for (int c = 0; c < B::kSource; c++) {
        const T* source = from + g * view_.g + c * view_.c;
        float* target = to + (B::kLate ? g * B::kSource + c : c * B::kValue + (C::merged ? g * B::kTarget : 0));
        const long long channel = (group_ + g) * B::kSource + c;
        for (long long j = 0; j < high_ - low_; j++) {
          const float v = read(source + j * step_, channel);
          for (int l = 0; l < (C::merged && !B::kLate ? B::kTarget : 1); l++) target[j * B::kPixel + l] = v;
        }
      }
  }

  const ConvArgs& a_;
  const TensorView& view_;
  const long long group_;
  const int groups_;
  bool by_point_;  // whether whole points can be read at once
  bool gaps_;      // whether some lanes stay zero
  long long points_ = 0, low_ = 0, high_ = 0, first_ = 0, step_ = 0;
};

template <class C, int kAxis>
using AxisOf = Axis<C::direction, C::filter[kAxis], C::stride[kAxis], C::dilation[kAxis]>;

// Packed weights: [item][d][h][w][source channel][kWidth], taps in the packed order of axis.hpp.
template <class C>
struct PackedWeights {
  using B = Block<C>;
  static constexpr int kTaps = C::filter[0] * C::filter[1] * C::filter[2];
  static constexpr long long kTap = static_cast<long long>(B::kSource) * B::kWidth;
  static constexpr long long kItem = kTap * kTaps;

  static long long row(long long item, int d, int h) {
    return item * kItem + (static_cast<long long>(d) * C::filter[1] + h) * C::filter[2] * kTap;
  }

  // The filter tap at each packed position of an axis.
  template <int kAxis>
  static void tap_order(int* order) {
    using A = AxisOf<C, kAxis>;
    for (int r = 0; r < A::kClasses; r++) {
      const AxisPhase p = A::phase(r * A::kSteps, 1, 0);
      for (int at = 0; at < p.taps; at++) order[p.weight_base + at] = A::tap_at(p, at);
    }
  }
};

// Whether weights lie as [lane][d][h][w][channel] without gaps, so that the taps and channels of a lane are one run.
template <class C>
bool dense_lanes(const TensorView& w) {
  return w.c == 1 && w.s[2] == C::Cg && (C::filter[1] == 1 || w.s[1] == C::filter[2] * w.s[2]) &&
         (C::filter[0] == 1 || w.s[0] == C::filter[1] * C::filter[2] * w.s[2]);
}

// One item's weights in the packed order, if the lanes' runs are in that order: kLanes of a run at a time, transposed.
template <class C>
void pack_runs(const typename C::Weight::type* w, const LaneMap<C>& lanes, float* to) {
  using B = Block<C>;
  using W = typename C::Weight;
  constexpr long long kRun = PackedWeights<C>::kTaps * static_cast<long long>(B::kSource);
  for (int first = 0; first < B::kWidth; first += kLanes) {
    const int used = largest(0, smallest(kLanes, lanes.count - first));
    long long k = 0;
    for (; k + kLanes <= kRun; k += kLanes) {
      Vec v[kLanes] = {};
      for (int l = 0; l < used; l++) v[l] = W::read_vector(w + lanes.offset[first + l] + k);
      transpose(v);
      for (int i = 0; i < kLanes; i++) store(to + (k + i) * B::kWidth + first, v[i]);
    }
    for (; k < kRun; k++)
      for (int l = 0; l < kLanes; l++)
        to[k * B::kWidth + first + l] = l < used ? W::read(w + lanes.offset[first + l] + k) : 0.0f;
  }
}

// The weights of one tap and source channel.
template <class C>
GCONV_CPU_INLINE void pack_lanes(const typename C::Weight::type* from, const LaneMap<C>& lanes, float* to) {
  using W = typename C::Weight;
  int l = 0;
  if (lanes.contiguous)
    for (; l + kLanes <= lanes.count; l += kLanes) store(to + l, W::read_vector(from + lanes.offset[0] + l));
  for (; l < LaneMap<C>::kWidth; l++) to[l] = l < lanes.count ? W::read(from + lanes.offset[l]) : 0.0f;
}

// Task t of args.splits: pack the weights of its items into the workspace.
template <class C>
void pack_weights(const ConvArgs& a, long long task) {
  using B = Block<C>;
  using P = PackedWeights<C>;
  using W = typename C::Weight;
  int order_d[C::filter[0]], order_h[C::filter[1]], order_w[C::filter[2]];
  P::template tap_order<0>(order_d);
  P::template tap_order<1>(order_h);
  P::template tap_order<2>(order_w);
  const long long target = B::kBackward ? a.wv.c : a.wv.n, source = B::kBackward ? a.wv.n : a.wv.c;
  const bool runs = !B::kBackward && dense_lanes<C>(a.wv);
  const long long items = B::items(a.G);
  for (long long item = items * task / a.splits; item < items * (task + 1) / a.splits; item++) {
    const LaneMap<C> lanes(a, item, a.wv.g, target);
    float* to = static_cast<float*>(a.workspace) + item * P::kItem;
    if (runs) {
      pack_runs<C>(static_cast<const typename W::type*>(a.w), lanes, to);
      continue;
    }
    for (int d : order_d)
      for (int h : order_h)
        for (int w : order_w) {
          const auto* tap = static_cast<const typename W::type*>(a.w) + d * a.wv.s[0] + h * a.wv.s[1] + w * a.wv.s[2];
          for (int c = 0; c < B::kSource; c++, to += B::kWidth) pack_lanes<C>(tap + c * source, lanes, to);
        }
  }
}

}  // namespace gconv::cpu
