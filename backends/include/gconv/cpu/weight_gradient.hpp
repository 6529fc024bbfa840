// bwd_weight: fp32 partial sums per chunk of the output points, then an ordered sum over the chunks.
//
// The number of chunks (args.splits) depends on the problem only, so the result does not depend on the number of threads.
#pragma once

#include "ahead.hpp"
#include "area.hpp"
#include "depthwise_gradient.hpp"
#include "gradient_tile.hpp"
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
      look_ahead(unit, item);
      if constexpr (C::sliding) add_tiles<0>(unit, item);
      else for (int d = 0; d < C::filter[0]; d++)
        for (long long i = 0; i < unit.row_count; i++) add_row(unit, item, d, i);
    }
  }

  // The rows after the unit's, a share for each item. They need not be there.
  void look_ahead(const Unit<C>& unit, long long item) {
    const long long items = B::items(a_.G), steps = unit.row_count * C::filter[0], next = unit.first_row + unit.row_count;
    const auto* x = static_cast<const typename C::Source::type*>(a_.x) + unit.image * a_.xv.n;
    const long long below = unit.h.origin + next * A::H::advance * A::H::unit + (A::H::max_taps - A::H::advance) * A::H::unit;
    for (int d = 0; d < A::D::max_taps; d++) {
      const auto* plane = x + (unit.d.origin + unit.plane * A::D::advance * A::D::unit + d * A::D::unit) * a_.xv.s[0];
      const long long rows = a_.xv.c == 1 ? unit.row_count * A::H::advance * A::H::unit : 0;
      ahead_[d].set(reinterpret_cast<const char*>(plane + below * a_.xv.s[1]),
                    reinterpret_cast<const char*>(plane + (below + rows) * a_.xv.s[1]), item, items, steps);
    }
    const auto* dy = static_cast<const typename Y::type*>(a_.y) + unit.image * a_.yv.n + unit.plane * A::D::step * a_.yv.s[0];
    const long long first = next * A::H::step, rows = a_.yv.c == 1 ? unit.row_count * A::H::step : 0;
    ahead_[A::D::max_taps].set(reinterpret_cast<const char*>(dy + first * a_.yv.s[1]),
                               reinterpret_cast<const char*>(dy + (first + rows) * a_.yv.s[1]), item, items, steps);
  }

  GCONV_CPU_INLINE void step_ahead() {
    for (Ahead& one : ahead_) one.template step<false>();
  }

  // All filter rows, a few rows and channels at a time.
  template <int kChannel>
  void add_tiles(const Unit<C>& unit, long long item) {
    using G = GradientShape<C>;
    if constexpr (kChannel + G::kChannels <= B::kSource) {
      constexpr int kBlocks = (B::kSource - kChannel) / G::kChannels;
      for (int b = 0; b < kBlocks; b++) add_channels<G::kChannels>(unit, item, kChannel + b * G::kChannels);
      add_tiles<kChannel + kBlocks * G::kChannels>(unit, item);
    } else if constexpr (kChannel < B::kSource) {
      add_channels<B::kSource - kChannel>(unit, item, kChannel);
    }
  }

  template <int kChannels>
  void add_channels(const Unit<C>& unit, long long item, int channel) {
    constexpr int kRows = GradientShape<C>::kRows, kRest = C::filter[1] % kRows;
    for (int d = 0; d < C::filter[0]; d++) {
      for (int h = 0; h + kRows <= C::filter[1]; h += kRows) add_tile<kRows, kChannels>(unit, item, d, h, channel);
      if constexpr (kRest > 0) add_tile<kRest, kChannels>(unit, item, d, C::filter[1] - kRest, channel);
    }
  }

  template <int kRows, int kChannels>
  void add_tile(const Unit<C>& unit, long long item, int d, int h, int channel) {
    const long long origin = unit.w.origin + unit.first_column * A::W::advance * A::W::unit;
    const Span real{origin < 0 ? ceil_div(-origin, A::W::unit) : 0,
                    origin < a_.in[2] ? ceil_div(a_.in[2] - origin, A::W::unit) : 0};
    GradientTile<C, kRows, kChannels> tile(dy_, area_.columns * B::kWidth, unit.column_count, channel, real,
                                           partial_ + P::row(item, d, h) + channel * B::kWidth);
    for (long long i = 0; i < unit.row_count + kRows - 1; i++) {
      const int low = static_cast<int>(largest(0LL, i - unit.row_count + 1)), high = static_cast<int>(smallest<long long>(kRows - 1, i));
      if (const float* x = source_.row(d, i, h)) tile.add(x, i, low, high);
      if (channel == 0 && h == 0) step_ahead();
    }
    tile.unload();
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
    if (lanes.contiguous) {
      int l = 0;
      for (; l + kLanes <= lanes.count; l += kLanes) store(to + l, Y::read_vector(from + lanes.offset[0] + l));
      if (l < lanes.count) store(to + l, Y::read_some(from + lanes.offset[0] + l, lanes.count - l)), l += kLanes;
      for (; l < B::kWidth; l += kLanes) store(to + l, Vec{});
    } else {
      for (int l = 0; l < B::kWidth; l++) to[l] = l < lanes.count ? Y::read(from + lanes.offset[l]) : 0.0f;
    }
  }

  // Target row i against plane d of the filter.
  void add_row(const Unit<C>& unit, long long item, int d, long long i) {
    step_ahead();
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
  Ahead ahead_[A::D::max_taps + 1];
};

template <class C>
void accumulate(const ConvArgs& a, long long task) {
  if constexpr (C::in_place)
    if (DepthwiseGradient<C>::suits(a)) return DepthwiseGradient<C>(a).run(task);
  WeightGradient<C>(a).run(task);
}

// Adds up the chunks of `count` vectors: `from` those of the first chunk, `stride` floats to the next one's.
template <int kCount>
GCONV_CPU_INLINE void add_chunks(const float* from, long long stride, int chunks, long long step, Vec (&sum)[kCount]) {
  for (int i = 0; i < kCount; i++) sum[i] = load(from + i * step);
  for (int s = 1; s < chunks; s++) {
    from += stride;
    for (int i = 0; i < kCount; i++) sum[i] += load(from + i * step);
  }
}

// Task t of kItemRanges or, if they are fewer, items: sum the chunks in their order and store.
template <class C>
class Reduction {
  using B = Block<C>;
  using P = PackedWeights<C>;
  using R = typename C::Result;

 public:
  explicit Reduction(const ConvArgs& a) : a_(a), stride_(B::items(a.G) * P::kItem) {}

  void run(long long task) {
    const long long items = B::items(a_.G), ranges = smallest<long long>(kItemRanges, items);
    const bool runs = !C::has_epilogue && dense_lanes<C>(a_.wv);
    for (long long item = items * task / ranges; item < items * (task + 1) / ranges; item++) {
      const LaneMap<C> lanes(a_, item, a_.wv.g, a_.wv.n);
      const float* from = static_cast<const float*>(a_.workspace) + item * P::kItem;
      if (runs) store_runs(lanes, from);
      else store_each(lanes, from);
    }
  }

 private:
  static constexpr long long kRun = P::kItem / B::kWidth;  // taps and channels

  // The taps and channels of a lane are one run in memory: kLanes of them at a time, transposed.
  void store_runs(const LaneMap<C>& lanes, const float* from) {
    auto* dw = static_cast<typename R::type*>(a_.w);
    for (int first = 0; first < lanes.count; first += kLanes) {
      const int used = smallest(kLanes, lanes.count - first);
      long long k = 0;
      for (; k + kLanes <= kRun; k += kLanes) {
        Vec v[kLanes];
        add_chunks<kLanes>(from + k * B::kWidth + first, stride_, a_.splits, B::kWidth, v);
        transpose(v);
        for (int l = 0; l < used; l++) R::write_vector(dw + lanes.offset[first + l] + k, v[l]);
      }
      for (; k < kRun; k++) {
        Vec v[1];
        add_chunks<1>(from + k * B::kWidth + first, stride_, a_.splits, B::kWidth, v);
        for (int l = 0; l < used; l++) R::write(dw + lanes.offset[first + l] + k, v[0][l]);
      }
    }
  }

  void store_each(const LaneMap<C>& lanes, const float* from) {
    for (int d = 0; d < C::filter[0]; d++)
      for (int h = 0; h < C::filter[1]; h++)
        for (int w = 0; w < C::filter[2]; w++)
          for (int c = 0; c < B::kSource; c++, from += B::kWidth) {
            alignas(64) float sums[B::kWidth];
            Vec v[C::vectors];
            add_chunks<C::vectors>(from, stride_, a_.splits, kLanes, v);
            for (int i = 0; i < C::vectors; i++) store(sums + i * kLanes, v[i]);
            store_points<C>(a_, a_.w, lanes, sums, 1, d * a_.wv.s[0] + h * a_.wv.s[1] + w * a_.wv.s[2] + c * a_.wv.c, 0);
          }
  }

  const ConvArgs& a_;
  const long long stride_;
};

template <class C>
void reduce(const ConvArgs& a, long long task) {
  Reduction<C>(a).run(task);
}

}  // namespace gconv::cpu
