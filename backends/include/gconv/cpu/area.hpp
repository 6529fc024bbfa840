// The work of a problem cut into units: one image, one phase, one target plane, a run of rows and a run of columns.
#pragma once

#include "micro.hpp"
#include "pack.hpp"

namespace gconv::cpu {

constexpr long long kPackedRowFloats = 4096;    // a packed source row should stay in the first-level cache with its neighbours
constexpr long long kPackedFloats = 48 * 1024;  // all packed rows of a unit should stay in the second-level cache
constexpr long long kTileFloats = 9 * 1024;     // or, where each is read several times, in the first-level cache
constexpr int kUsualRows = 8;
constexpr long long kUnitsWanted = 64;
constexpr int kRowsInPlace = 8;
constexpr long long kColumnsInPlace = 384;  // source points of a row of a unit read in place, about
constexpr long long kColumnsOfOneRow = 128;

template <class C>
struct Area {
  using B = Block<C>;
  using D = AxisOf<C, 0>;
  using H = AxisOf<C, 1>;
  using W = AxisOf<C, 2>;
  static constexpr int kPhases = D::phases * H::phases * W::phases;
  static constexpr int kPointStep = W::advance * B::kPixel;  // floats from one target point's source to the next one's

  const int* target;        // sizes of the target: the result, or dy for bwd_weight
  long long depth;          // target planes of the largest phase
  long long rows, columns;  // rows and columns of a unit
  long long row_runs, column_runs;
  long long pitch;          // floats of a packed source row
  long long slots;          // packed source rows of a unit for one plane

  // in_place: the source is read where it lies, and not packed.
  explicit Area(const ConvArgs& a, bool in_place = false) : target(B::kBackward ? a.in : a.out) {
    depth = ceil_div(target[0], D::step);
    const long long width = ceil_div(target[2], W::step), height = ceil_div(target[1], H::step);
    if (in_place) {
      set_in_place(width, height);
      return;
    }
    const long long fitting = (kPackedRowFloats / B::kPixel - W::max_taps) / W::advance;
    column_runs = ceil_div(width, largest<long long>(fitting, 4 * C::points));
    columns = ceil_div(ceil_div(width, column_runs), C::points) * C::points;
    column_runs = ceil_div(width, columns);
    pitch = ceil_div(packed_points(columns + C::points) * B::kPixel + C::points * B::kValue, 16) * 16;
    set_rows(height, rows_that_fit());
    while (rows > 1 && a.N * units_per_image() * B::items(a.G) < kUnitsWanted) set_rows(height, rows / 2);
  }

  // Source points behind a run of target points.
  static long long packed_points(long long targets) { return (targets - 1) * W::advance + W::max_taps; }

  long long units_per_image() const { return kPhases * depth * row_runs * column_runs; }
  long long scratch_floats() const { return D::max_taps * slots * pitch; }

 private:
  void set_in_place(long long width, long long height) {
    pitch = 0;
    columns = ceil_div(width, ceil_div(width * W::advance, height > 1 ? kColumnsInPlace : kColumnsOfOneRow));
    column_runs = ceil_div(width, columns);
    set_rows(height, kRowsInPlace);
    if (rows % 2 == 1 && row_runs > 1) set_rows(height, rows + 1);
  }

  long long rows_that_fit() const {
    const long long floats = C::direction == Direction::bwd_weight && C::sliding ? kTileFloats : kPackedFloats;
    const long long gradient = C::direction == Direction::bwd_weight ? columns * B::kWidth : 0;
    const long long count = (floats - (H::max_taps - H::advance) * D::max_taps * pitch) / (H::advance * D::max_taps * pitch + gradient);
    return smallest<long long>(largest<long long>(count, C::sliding ? 2 : 1), largest(kUsualRows, H::max_taps));
  }

  void set_rows(long long height, long long wanted) {
    row_runs = ceil_div(height, wanted);
    rows = ceil_div(height, row_runs);
    slots = (rows - 1) * H::advance + H::max_taps;
  }
};

struct Span {
  long long low, high;
  long long size() const { return high > low ? high - low : 0; }
};

// One unit. `first_row` and `first_column` count targets of the phase; `row_count` and `column_count` may be 0.
template <class C>
struct Unit {
  using A = Area<C>;
  long long image, plane;
  AxisPhase d, h, w;
  long long first_row, row_count, first_column, column_count;
  bool first_phase;  // whether the unit is the first of those that share its source rows

  Unit(const ConvArgs& a, const A& area, long long index) {
    // Phases are inside of rows: they read the same source rows and write the same target rows.
    const long long run = index % area.column_runs;
    index /= area.column_runs;
    const int phase = static_cast<int>(index % A::kPhases);
    index /= A::kPhases;
    first_phase = phase == 0;
    const long long row_run = index % area.row_runs;
    index /= area.row_runs;
    plane = index % area.depth;
    image = index / area.depth;
    w = A::W::phase(phase % A::W::phases, area.target[2], a.pad[2]);
    h = A::H::phase(phase / A::W::phases % A::H::phases, area.target[1], a.pad[1]);
    d = A::D::phase(phase / (A::W::phases * A::H::phases), area.target[0], a.pad[0]);
    first_row = row_run * area.rows;
    first_column = run * area.columns;
    row_count = plane < d.count ? remaining(h.count, first_row, area.rows) : 0;
    column_count = remaining(w.count, first_column, area.columns);
  }

  bool empty() const { return row_count <= 0 || column_count <= 0; }

  // The taps along w that meet a source point, not padding, at a column of the unit; size: source points of a row.
  Span inside(long long column, long long size) const {
    const long long first = w.origin + (first_column + column) * A::W::advance * A::W::unit;
    const long long low = first < 0 ? ceil_div(-first, A::W::unit) : 0;
    const long long high = first < size ? ceil_div(size - first, A::W::unit) : 0;
    return {smallest<long long>(low, w.taps), smallest<long long>(high, w.taps)};
  }

  // The source points, counted from where `column` begins, that are not padding.
  Span points(long long column, long long size) const {
    const long long first = w.origin + (first_column + column) * A::W::advance * A::W::unit;
    return {first < 0 ? ceil_div(-first, A::W::unit) : 0, first < size ? ceil_div(size - first, A::W::unit) : 0};
  }

  // The columns that may be computed with all taps at once. Padding counts as zeros, which is what a convolution says, unless
  // C::strict: then a weight that meets nothing but padding must not be multiplied at all, since it may be Inf or NaN.
  Span whole(long long size) const {
    Span span{0, column_count};
    if constexpr (C::strict) {
      while (span.low < span.high && inside(span.low, size).size() < w.taps) span.low++;
      while (span.low < span.high && inside(span.high - 1, size).size() < w.taps) span.high--;
    }
    return span;
  }

  // The columns at which every tap meets a source point.
  Span inner(long long size) const {
    constexpr long long kStep = A::W::advance * A::W::unit;
    const long long first = w.origin + first_column * kStep, room = size - 1 - (w.taps - 1) * A::W::unit - first;
    const long long low = first < 0 ? ceil_div(-first, kStep) : 0, high = room < 0 ? 0 : room / kStep + 1;
    if (w.taps == 0) return {0, column_count};
    return {smallest(low, column_count), largest(smallest(low, column_count), smallest(high, column_count))};
  }

 private:
  static long long remaining(long long count, long long first, long long most) { return smallest(count - first, most); }
};

// Task `task` of `tasks` of all units and, inside of them, items, so that neighbours in memory are worked on together:
// compute(unit, first item, last item).
template <class C, class Compute>
GCONV_CPU_INLINE void for_units(const ConvArgs& a, const Area<C>& area, long long task, long long tasks, Compute compute) {
  const long long items = Block<C>::items(a.G), work = a.N * area.units_per_image() * items;
  const long long end = work * (task + 1) / tasks;
  for (long long i = work * task / tasks; i < end;) {
    const long long index = i / items, first = i % items, last = smallest(items, first + end - i);
    const Unit<C> unit(a, area, index);
    if (!unit.empty()) compute(unit, first, last);
    i += last - first;
  }
}

// Task `task` of args.splits * item_ranges(items, args.splits): one chunk of the units for one range of items, whose partial sums are zeroed
// first: add(unit, first item, last item, partial sums of item 0).
template <class C, class Add>
GCONV_CPU_INLINE void for_chunk(const ConvArgs& a, const Area<C>& area, long long task, Add add) {
  constexpr long long kItem = PackedWeights<C>::kItem;
  const long long items = Block<C>::items(a.G), ranges = item_ranges<C>(items, a.splits);
  const long long chunk = task / ranges, range = task % ranges;  // neighbours in time share source rows
  const long long first = items * range / ranges, last = items * (range + 1) / ranges;
  float* partial = static_cast<float*>(a.workspace) + chunk * items * kItem;
  for (long long i = first * kItem; i < last * kItem; i++) partial[i] = 0.0f;
  const long long units = a.N * area.units_per_image();
  for (long long i = units * chunk / a.splits; i < units * (chunk + 1) / a.splits; i++) {
    const Unit<C> unit(a, area, i);
    if (!unit.empty()) add(unit, first, last, partial);
  }
}

// The packed source rows behind a unit, for one block of groups.
template <class C>
class PackedSource {
  using A = Area<C>;
  using T = typename C::Source::type;

 public:
  PackedSource(const Area<C>& area, float* floats) : area_(area), floats_(floats) {}

  // points: target points to serve, at least the unit's columns.
  void pack(const ConvArgs& a, const Unit<C>& unit, long long item, long long points) {
    size_h_ = size(a)[1], first_h_ = unit.h.origin + unit.first_row * A::H::advance * A::H::unit;
    size_d_ = size(a)[0], first_d_ = unit.d.origin + unit.plane * A::D::advance * A::D::unit;
    SourcePacker<C> packer(a, view(a), item);
    select(a, packer, unit, points);
    for_rows(a, unit, 0, (unit.row_count - 1) * A::H::advance + unit.h.taps, [&](const T* from, int m, long long slot) {
      packer.pack(from, at(m, slot));
    });
  }

  // Prefetches the next item's points of those source rows that target row i is the first to meet.
  void prefetch(const ConvArgs& a, const Unit<C>& unit, long long item, long long i) const {
    SourcePacker<C> packer(a, view(a), item);
    select(a, packer, unit, unit.column_count);
    const long long end = i * A::H::advance + unit.h.taps, first = i == 0 ? 0 : largest<long long>(end - A::H::advance, 0);
    for_rows(a, unit, first, end, [&](const T* from, int, long long) { packer.prefetch(from); });
  }

  // The packed row that tap (d, h) of the unit's target row i meets; null on padding.
  const float* row(int d, long long i, int h) const {
    const long long slot = i * A::H::advance + h;
    return inside(d, slot) ? at(d, slot) : nullptr;
  }

 private:
  bool inside(int m, long long slot) const {
    const long long d = first_d_ + m * A::D::unit, h = first_h_ + slot * A::H::unit;
    return d >= 0 && d < size_d_ && h >= 0 && h < size_h_;
  }
  static const TensorView& view(const ConvArgs& a) { return Block<C>::kBackward ? a.yv : a.xv; }
  static const int* size(const ConvArgs& a) { return Block<C>::kBackward ? a.out : a.in; }

  static void select(const ConvArgs& a, SourcePacker<C>& packer, const Unit<C>& unit, long long points) {
    const long long column = unit.w.origin + unit.first_column * A::W::advance * A::W::unit;
    packer.select(column, A::W::unit, size(a)[2], (points - 1) * A::W::advance + unit.w.taps);
  }

  // use(row, plane, slot) for the source rows of the unit that are not padding, with slots from first to end.
  template <class Use>
  GCONV_CPU_INLINE void for_rows(const ConvArgs& a, const Unit<C>& unit, long long first, long long end, Use use) const {
    const TensorView& strides = view(a);
    const T* image = static_cast<const T*>(Block<C>::kBackward ? a.y : a.x) + unit.image * strides.n;
    for (int m = 0; m < unit.d.taps; m++)
      for (long long slot = first; slot < end; slot++)
        if (inside(m, slot))
          use(image + (first_d_ + m * A::D::unit) * strides.s[0] + (first_h_ + slot * A::H::unit) * strides.s[1], m, slot);
  }

  float* at(int m, long long slot) const { return floats_ + (m * area_.slots + slot) * area_.pitch; }

  const Area<C>& area_;
  float* const floats_;
  long long size_d_ = 0, size_h_ = 0, first_d_ = 0, first_h_ = 0;
};

}  // namespace gconv::cpu
