// bwd_weight: fp32 partial sums per chunk of the output points, then an ordered sum over the chunks.
//
// The number of chunks (args.splits) depends on the problem only, so the result does not depend on the number of threads.
#pragma once

#include "area.hpp"
#include "depthwise_gradient.hpp"
#include "store.hpp"

namespace gconv::cpu {

template <class C>
class WeightGradient {
  using B = Block<C>;
  using A = Area<C>;
  using P = PackedWeights<C>;
  using Y = typename C::Gradient;
  static constexpr int kRow = C::filter[2] * B::kSource;  // sums of one filter row
  // A short filter row leaves registers free: take several rows at once.
  static constexpr int kTogether = kRow * 2 <= C::points ? smallest(C::points / kRow, C::filter[1]) : 1;

 public:
  explicit WeightGradient(const ConvArgs& a) : a_(a), area_(a), scratch_(floats()), source_(area_, scratch_.data()) {
    dy_ = scratch_.data() + area_.scratch_floats();
  }

  void run(long long task) {
    for_chunk<C>(a_, area_, task, [this](const Unit<C>& unit, long long first, long long last, float* partial) {
      partial_ = partial;
      add_unit(unit, first, last);
    });
  }

 private:
  long long floats() const { return area_.scratch_floats() + area_.rows * area_.columns * B::kWidth; }

  void add_unit(const Unit<C>& unit, long long first, long long last) {
    long long packed_group = -1;
    for (long long item = first; item < last; item++) {
      if (B::group(a_, item) != packed_group) source_.pack(a_, unit, item, unit.column_count);
      packed_group = B::group(a_, item);
      pack_gradient(unit, item);
      for (int d = 0; d < C::filter[0]; d++)
        for (long long i = 0; i < unit.row_count; i++) add_row(unit, item, d, i);
    }
  }

  // dy of the unit's points as [row][column][kWidth].
  void pack_gradient(const Unit<C>& unit, long long item) {
    const LaneMap<C> lanes(a_, item, a_.yv.g, a_.yv.c);
    const long long plane = unit.image * a_.yv.n + (unit.d.first + unit.plane * A::D::step) * a_.yv.s[0];
    const long long step = A::W::step * a_.yv.s[2];
    for (long long i = 0; i < unit.row_count; i++) {
      const long long row = plane + (unit.h.first + (unit.first_row + i) * A::H::step) * a_.yv.s[1];
      const auto* from = static_cast<const typename Y::type*>(a_.y) + row + unit.w.first * a_.yv.s[2] + unit.first_column * step;
      float* to = dy_ + i * area_.columns * B::kWidth;
      for (long long j = 0; j < unit.column_count; j++, from += step, to += B::kWidth) pack_point(lanes, from, to);
    }
  }

  GCONV_CPU_INLINE static void pack_point(const LaneMap<C>& lanes, const typename Y::type* from, float* to) {
    prefetch_after<B::kWidth * sizeof(typename Y::type)>(from + lanes.offset[0]);
    if (lanes.contiguous && lanes.count == B::kWidth) {
      for (int l = 0; l < B::kWidth; l += kLanes) store(to + l, Y::read_vector(from + lanes.offset[0] + l));
    } else {
      for (int l = 0; l < B::kWidth; l++) to[l] = l < lanes.count ? Y::read(from + lanes.offset[l]) : 0.0f;
    }
  }

  // Target row i against plane d of the filter.
  void add_row(const Unit<C>& unit, long long item, int d, long long i) {
    const float* dy = dy_ + i * area_.columns * B::kWidth;
    const float* x[C::filter[1]];
    float* sums[C::filter[1]];
    int count = 0;
    for (int h = 0; h < C::filter[1]; h++)
      if (const float* row = source_.row(d, i, h)) {
        x[count] = row;
        sums[count++] = partial_ + P::row(item, d, h);
      }
    const Span whole = unit.whole(a_.in[2]);
    if constexpr (C::strict)
      for (int r = 0; r < count; r++) add_edges(unit, x[r], dy, whole, sums[r], a_.in[2]);
    for (int r = 0; r < count; r++) x[r] += whole.low * A::kPointStep;
    dy += whole.low * B::kWidth;
    int r = 0;
    if constexpr (kTogether > 1)
      for (; r + kTogether <= count; r += kTogether)
        outer<C, kTogether, kRow, A::kPointStep>(x + r, dy, whole.size(), sums + r, kRow);
    for (; r < count; r++) add_filter_row(x[r], dy, whole.size(), sums[r]);
  }

  // The columns outside `whole`, each with the taps that do not fall on padding.
  static void add_edges(const Unit<C>& unit, const float* x, const float* dy, Span whole, float* sums, long long size) {
    for (long long column = 0; column < unit.column_count; column++) {
      if (column >= whole.low && column < whole.high) continue;
      const Span inside = unit.inside(column, size);
      for (long long j = inside.low * B::kSource; j < inside.high * B::kSource; j++) {
        const float* from = x + column * A::kPointStep + j * B::kValue;
        float* to = sums + j * B::kWidth;
        outer<C, 1, 1, A::kPointStep>(&from, dy + column * B::kWidth, 1, &to, 1);
      }
    }
  }

  static void add_filter_row(const float* x, const float* dy, long long points, float* sums) {
    if constexpr (kRow <= C::points) {
      outer<C, 1, kRow, A::kPointStep>(&x, dy, points, &sums, kRow);
    } else {
      constexpr Cover<C::points, C::few_points> cover(kRow);
      int j = 0;
      for (int b = 0; b < cover.large; b++, j += C::points) add_values<C::points>(x, dy, points, sums, j);
      for (int b = 0; b < cover.small; b++, j += C::few_points) add_values<C::few_points>(x, dy, points, sums, j);
    }
  }

  template <int kValues>
  static void add_values(const float* x, const float* dy, long long points, float* sums, int j) {
    const float* from = x + j * B::kValue;
    float* to = sums + j * B::kWidth;
    outer<C, 1, kValues, A::kPointStep>(&from, dy, points, &to, smallest(kValues, kRow - j));
  }

  const ConvArgs& a_;
  const Area<C> area_;
  const Scratch scratch_;
  PackedSource<C> source_;
  float* dy_;
  float* partial_ = nullptr;
};

template <class C>
void accumulate(const ConvArgs& a, long long task) {
  if constexpr (C::in_place)
    if (DepthwiseGradient<C>::suits(a)) return DepthwiseGradient<C>(a).run(task);
  WeightGradient<C>(a).run(task);
}

// Task t of item_ranges(items): sum the chunks in their order and store.
template <class C>
void reduce(const ConvArgs& a, long long task) {
  using B = Block<C>;
  using P = PackedWeights<C>;
  const long long items = B::items(a.G), ranges = item_ranges<C>(items);
  for (long long item = items * task / ranges; item < items * (task + 1) / ranges; item++) {
    const LaneMap<C> lanes(a, item, a.wv.g, a.wv.n);
    const float* from = static_cast<const float*>(a.workspace) + item * P::kItem;
    for (int d = 0; d < C::filter[0]; d++)
      for (int h = 0; h < C::filter[1]; h++)
        for (int w = 0; w < C::filter[2]; w++)
          for (int c = 0; c < B::kSource; c++, from += B::kWidth) {
            alignas(64) float sums[B::kWidth];
            for (int l = 0; l < B::kWidth; l++) sums[l] = from[l];
            for (int s = 1; s < a.splits; s++)
              for (int l = 0; l < B::kWidth; l++) sums[l] += from[s * items * P::kItem + l];
            store_points<C>(a, a.w, lanes, sums, 1, d * a.wv.s[0] + h * a.wv.s[1] + w * a.wv.s[2] + c * a.wv.c, 0);
          }
  }
}

}  // namespace gconv::cpu
