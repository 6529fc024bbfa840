// The work of forward and bwd_data cut into patches: one image, one target plane, a run of rows and a run of columns, in all phases
// that share their source rows. A patch is computed in strips of a few target rows, each of which packs the source rows that it
// is the first to meet; where one item uses them, a ring of the newest rows is kept, which stays in the first-level cache.
#pragma once

#include "ahead.hpp"
#include "area.hpp"

namespace gconv::cpu {

constexpr int kRowsOfPatch = 16;
constexpr int kRowsOfStrip = 8;
constexpr int kDeepRow = 512;
constexpr long long kBlockedRowFloats = 48 * 1024;  // of a packed row that is walked through again and again: second-level cache
constexpr long long kSumFloats = 6 * 1024;          // of a strip: half of the first-level cache
constexpr long long kPatchBytes = 256 * 1024;  // of source rows: they, the results and the next patch's fit the second-level cache

template <class C>
struct Strips {
  using B = Block<C>;
  using D = AxisOf<C, 0>;
  using H = AxisOf<C, 1>;
  using W = AxisOf<C, 2>;
  static constexpr int kOuter = Area<C>::kPhases / (D::together * H::together * W::together);  // sets of phases
  static constexpr bool kRing = B::kPerGroup == 1;  // whether a packed row is done with after one item
  // Whether sums are kept in memory and added to depth by depth (blocked.hpp): where the weights of a filter row are many.
  static constexpr bool kBlocked = !C::sliding && !B::kLate && C::filter[2] * B::kSource >= kDeepRow;

  const int* target;        // sizes of the result
  long long depth;          // target planes of the largest phase
  long long rows, columns;  // of a patch, in each phase
  long long row_runs, column_runs;
  long long pitch;          // floats of a packed row
  long long slots;          // packed rows kept for one plane
  long long strip;          // target rows computed together

  explicit Strips(const ConvArgs& a) : target(B::kBackward ? a.in : a.out) {
    depth = ceil_div(target[0], D::step);
    const long long width = ceil_div(target[2], W::step), height = ceil_div(target[1], H::step);
    const long long fitting = ((kBlocked ? kBlockedRowFloats : kPackedRowFloats) / B::kPixel - W::span) / W::advance;
    column_runs = ceil_div(width, largest<long long>(fitting, 4 * C::points));
    columns = ceil_div(width, column_runs);
    strip = kBlocked ? largest(1LL, smallest<long long>(kRowsOfStrip, kSumFloats / (columns * B::kWidth))) : C::strip;
    column_runs = ceil_div(width, columns);
    pitch = ceil_div(points(columns + C::points) * B::kPixel, 16) * 16;
    const TensorView& view = B::kBackward ? a.yv : a.xv;
    const long long row_floats = view.s[2] * (B::kBackward ? a.out : a.in)[2];
    const long long row_bytes = largest<long long>(1, row_floats * static_cast<long long>(sizeof(typename C::Source::type)));
    set_rows(height, largest(strip, smallest(rows_that_fit(), kPatchBytes / row_bytes / H::advance)));
    while (rows > strip && a.N * per_image() * B::items(a.G) < kUnitsWanted) set_rows(height, largest(rows / 2, strip));
  }

  // Source points behind a run of target points.
  static long long points(long long targets) { return (targets - 1) * W::advance + W::span; }
  long long per_image() const { return kOuter * depth * row_runs * column_runs; }
  long long scratch_floats() const { return D::span * slots * pitch; }

 private:
  long long rows_that_fit() const {
    if (kRing) return kRowsOfPatch;
    const long long fitting = kPackedFloats / (D::span * pitch);
    return smallest<long long>(largest((fitting - H::span) / H::advance + 1, strip), kRowsOfPatch);
  }

  void set_rows(long long height, long long wanted) {
    row_runs = ceil_div(height, wanted);
    rows = ceil_div(ceil_div(height, row_runs), strip) * strip;
    row_runs = ceil_div(height, rows);
    slots = ((kRing ? strip : rows) - 1) * H::advance + H::span;
  }
};

// One phase of a patch: where its taps meet the packed source, `shift_*` steps after the patch's first plane, row and point.
template <class C>
struct PatchPhase {
  AxisPhase d, h, w;
  int shift_d, shift_h, shift_w;
  long long row_count, column_count;
};

template <class C>
struct Patch {
  using S = Strips<C>;
  using D = typename S::D;
  using H = typename S::H;
  using W = typename S::W;
  static constexpr int kPhases = D::together * H::together * W::together;
  long long image, plane, first_row, first_column;
  long long row_count, column_count;            // of the largest phase
  long long origin_d, origin_h, origin_w;       // the first source plane, row and point
  PatchPhase<C> phase[kPhases];

  Patch(const ConvArgs& a, const S& strips, long long index) {
    first_column = index % strips.column_runs * strips.columns;
    index /= strips.column_runs;
    const int outer = static_cast<int>(index % S::kOuter);
    index /= S::kOuter;
    plane = index % strips.depth;  // neighbours in time share source planes
    index /= strips.depth;
    first_row = index % strips.row_runs * strips.rows;
    image = index / strips.row_runs;
    row_count = column_count = 0;
    const int w = outer % (W::phases / W::together), rest = outer / (W::phases / W::together);
    const int h = rest % (H::phases / H::together), d = rest / (H::phases / H::together);
    for (int i = 0; i < kPhases; i++) {
      PatchPhase<C>& p = phase[i];
      p.w = W::phase(w * W::together + i % W::together, strips.target[2], a.pad[2]);
      p.h = H::phase(h * H::together + i / W::together % H::together, strips.target[1], a.pad[1]);
      p.d = D::phase(d * D::together + i / (W::together * H::together), strips.target[0], a.pad[0]);
      p.row_count = plane < p.d.count ? remaining(p.h.count, first_row, strips.rows) : 0;
      p.column_count = remaining(p.w.count, first_column, strips.columns);
      if (p.column_count == 0) p.row_count = 0;
      row_count = largest(row_count, p.row_count), column_count = largest(column_count, p.column_count);
    }
    const long long base_d = base(&PatchPhase<C>::d), base_h = base(&PatchPhase<C>::h), base_w = base(&PatchPhase<C>::w);
    for (PatchPhase<C>& p : phase) {
      p.shift_d = static_cast<int>(p.d.origin - base_d);
      p.shift_h = static_cast<int>(p.h.origin - base_h);
      p.shift_w = static_cast<int>(p.w.origin - base_w);
    }
    origin_d = base_d + plane * D::advance * D::unit;
    origin_h = base_h + first_row * H::advance * H::unit;
    origin_w = base_w + first_column * W::advance * W::unit;
  }

  // The taps along w of a phase that meet a source point, not padding, at a column; size: source points of a row.
  Span inside(const PatchPhase<C>& p, long long column, long long size) const {
    const long long first = p.w.origin + (first_column + column) * W::advance * W::unit;
    const long long low = first < 0 ? ceil_div(-first, W::unit) : 0;
    const long long high = first < size ? ceil_div(size - first, W::unit) : 0;
    return {smallest<long long>(low, p.w.taps), smallest<long long>(high, p.w.taps)};
  }

  // The columns that may be computed with all taps at once. Padding counts as zeros, which is what a convolution says, unless
  // C::strict: then a weight that meets nothing but padding must not be multiplied at all, since it may be Inf or NaN.
  Span whole(const PatchPhase<C>& p, long long size) const {
    Span span{0, p.column_count};
    if constexpr (C::strict) {
      while (span.low < span.high && inside(p, span.low, size).size() < p.w.taps) span.low++;
      while (span.low < span.high && inside(p, span.high - 1, size).size() < p.w.taps) span.high--;
    }
    return span;
  }

 private:
  static long long remaining(long long count, long long first, long long most) {
    return largest(0LL, smallest(count - first, most));
  }

  // The lowest origin of the phases that have taps. More than one phase shares it only where a unit is one source point.
  long long base(AxisPhase PatchPhase<C>::*axis) const {
    long long low = 0;
    bool found = false;
    for (const PatchPhase<C>& p : phase)
      if ((p.*axis).taps > 0 && (!found || (p.*axis).origin < low)) low = (p.*axis).origin, found = true;
    return low;
  }
};

// Task `task` of `tasks` of all patches and, inside of them, items: compute(patch, next patch, first item, last item).
template <class C, class Compute>
GCONV_CPU_INLINE void for_patches(const ConvArgs& a, const Strips<C>& strips, long long task, long long tasks, Compute compute) {
  const long long items = Block<C>::items(a.G), patches = a.N * strips.per_image(), work = patches * items;
  const long long end = work * (task + 1) / tasks;
  for (long long i = work * task / tasks; i < end;) {
    const long long index = i / items, first = i % items, last = smallest(items, first + end - i);
    const Patch<C> patch(a, strips, index);
    if (patch.row_count > 0) compute(patch, Patch<C>(a, strips, smallest(index + 1, patches - 1)), first, last);
    i += last - first;
  }
}

// The packed source rows of a patch for one block of groups: the newest ones.
template <class C>
class SourceRing {
  using S = Strips<C>;
  using D = typename S::D;
  using H = typename S::H;
  using W = typename S::W;
  using T = typename C::Source::type;

 public:
  SourceRing(const ConvArgs& a, const S& strips, float* floats)
      : strips_(strips), floats_(floats), view_(Block<C>::kBackward ? a.yv : a.xv), size_(Block<C>::kBackward ? a.out : a.in),
        source_(static_cast<const T*>(Block<C>::kBackward ? a.y : a.x)) {}

  void select(const Patch<C>& patch) {
    image_ = source_ + patch.image * view_.n;
    first_d_ = patch.origin_d, first_h_ = patch.origin_h, first_w_ = patch.origin_w;
    packed_ = 0;
  }

  // The source rows before slot `end`, with `points` points each. Rows are asked for in order, and those of a ring are then lost.
  void require(const ConvArgs& a, long long item, long long end, long long points) {
    if (packed_ >= end) return;
    SourcePacker<C> packer(a, view_, item);
    packer.select(first_w_, W::unit, size_[2], points);
    for (int m = 0; m < D::span; m++)
      for (long long slot = packed_; slot < end; slot++)
        if (inside(m, slot)) packer.pack(source_row(m, slot), at(m, slot));
    packed_ = end;
  }

  void restart() { packed_ = 0; }

  // The memory of the newest source plane of a patch, if channels lie last in it; nothing otherwise.
  void extent(const Patch<C>& patch, const char*& begin, const char*& end) const {
    const T* plane = source_ + patch.image * view_.n + (patch.origin_d + (D::span - 1) * D::unit) * view_.s[0];
    const long long low = largest(0LL, patch.origin_h);
    const long long high = smallest<long long>(size_[1], patch.origin_h + ((patch.row_count - 1) * H::advance + H::span) * H::unit);
    begin = reinterpret_cast<const char*>(plane + low * view_.s[1]);
    end = view_.c == 1 && high > low ? reinterpret_cast<const char*>(plane + high * view_.s[1]) : begin;
  }

  // Null on padding.
  GCONV_CPU_INLINE const float* row(long long m, long long slot) const {
    return inside(m, slot) ? at(m, slot) : nullptr;
  }

 private:
  GCONV_CPU_INLINE bool inside(long long m, long long slot) const {
    const long long d = first_d_ + m * D::unit, h = first_h_ + slot * H::unit;
    return d >= 0 && d < size_[0] && h >= 0 && h < size_[1];
  }
  const T* source_row(long long m, long long slot) const {
    return image_ + (first_d_ + m * D::unit) * view_.s[0] + (first_h_ + slot * H::unit) * view_.s[1];
  }
  GCONV_CPU_INLINE float* at(long long m, long long slot) const {
    return floats_ + (m * strips_.slots + (S::kRing ? slot % strips_.slots : slot)) * strips_.pitch;
  }

  const S& strips_;
  float* const floats_;
  const TensorView& view_;
  const int* const size_;
  const T* const source_;
  const T* image_ = nullptr;
  long long first_d_ = 0, first_h_ = 0, first_w_ = 0;
  long long packed_ = 0;
};

}  // namespace gconv::cpu
