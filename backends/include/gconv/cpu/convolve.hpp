// forward and bwd_data: each result is one sum, started and finished in registers.
#pragma once

#include "blocked.hpp"
#include "depthwise.hpp"
#include "store.hpp"
#include "tile.hpp"

namespace gconv::cpu {

// A run of points as blocks of the sizes C::blocks, largest first, that cover it with the least waste and, of those, are fewest.
template <class C>
class Blocks {
 public:
  static constexpr int kKinds = sizeof(C::blocks) / sizeof(int);
  long long count[kKinds] = {};

  explicit Blocks(long long points) {
    long long trial[kKinds] = {};
    choose<0>(points, 0, 0, trial);
  }
  long long covered() const {
    long long points = 0;
    for (int k = 0; k < kKinds; k++) points += count[k] * C::blocks[k];
    return points;
  }

 private:
  template <int kKind>
  void choose(long long left, long long covers, long long blocks, long long* trial) {
    constexpr int kSize = C::blocks[kKind];
    const long long most = left > 0 ? ceil_div(left, kSize) : 0;
    for (long long n = most; n >= 0 && n >= most - 3; n--) {
      trial[kKind] = n;
      if constexpr (kKind + 1 < kKinds) choose<kKind + 1>(left - n * kSize, covers + n * kSize, blocks + n, trial);
      else if (n == most) keep(covers + n * kSize, blocks + n, trial);
    }
  }
  void keep(long long covers, long long blocks, const long long* trial) {
    if (best_ >= 0 && (covers > best_ || (covers == best_ && blocks >= fewest_))) return;
    best_ = covers, fewest_ = blocks;
    for (int k = 0; k < kKinds; k++) count[k] = trial[k];
  }
  long long best_ = -1, fewest_ = 0;
};

template <class C>
class Convolver {
  using B = Block<C>;
  using P = PackedWeights<C>;
  using S = Strips<C>;
  using W = typename S::W;
  using Cut = Blocks<C>;
  using Phase = PatchPhase<C>;
  static constexpr bool kTile = C::sliding;
  static constexpr int kRows = C::filter[0] * C::filter[1];
  static constexpr int kMostSliding = kLanes == 16 ? 7 : 4;  // taps whose weights fit into registers beside the sums

 public:
  explicit Convolver(const ConvArgs& a)
      : a_(a), strips_(a), scratch_(floats()), source_(a, strips_, scratch_.data()), view_(B::kBackward ? a.xv : a.yv) {
    x_ = reinterpret_cast<const float**>(scratch_.data() + strips_.scratch_floats());
    w_ = x_ + kRows;
    sums_ = scratch_.data() + strips_.scratch_floats() + pointer_floats();
  }

  void run(long long task) {
    for_patches<C>(a_, strips_, task, a_.splits,
                   [this](const Patch<C>& patch, const Patch<C>& next, long long first, long long last) {
                     compute_items(patch, next, first, last);
                   });
  }

 private:
  static constexpr int kPointerFloats = 2;  // floats that a pointer takes
  static_assert(sizeof(float*) <= kPointerFloats * sizeof(float), "pointers fit their scratch memory");

  static constexpr long long pointer_floats() { return ceil_div(2 * kRows * kPointerFloats, 16) * 16; }
  long long sum_pitch() const { return (strips_.columns + C::points) * B::kWidth; }
  long long floats() const { return strips_.scratch_floats() + pointer_floats() + (S::kBlocked ? strips_.strip * sum_pitch() : 0); }

  // One phase's columns: those computed in blocks with all taps, and how they are cut.
  struct Columns {
    Span whole;
    Cut cut;
    Columns() : whole{0, 0}, cut(0) {}
    Columns(const Patch<C>& patch, const Phase& phase, long long size)
        : whole(patch.whole(phase, size)), cut(whole.size()) {}
  };

  void compute_items(const Patch<C>& patch, const Patch<C>& next, long long first, long long last) {
    Columns columns[Patch<C>::kPhases];
    long long points = 0;
    for (int p = 0; p < Patch<C>::kPhases; p++) {
      if (patch.phase[p].row_count == 0) continue;
      columns[p] = Columns(patch, patch.phase[p], width());
      points = largest(points, largest(patch.phase[p].column_count, columns[p].whole.low + columns[p].cut.covered()));
    }
    points = S::points(points);
    long long packed_group = -1;
    source_.select(patch);
    for (long long item = first; item < last; item++) {
      if (B::group(a_, item) != packed_group) source_.restart();
      packed_group = B::group(a_, item);
      look_ahead(patch, next, item, points);
      for (long long i = 0; i < patch.row_count; i += strips_.strip) {
        const long long count = smallest(strips_.strip, patch.row_count - i);
        source_.require(a_, item, (i + count - 1) * S::H::advance + S::H::span, points);
        for (int p = 0; p < Patch<C>::kPhases; p++) {
          const long long rows = smallest<long long>(count, patch.phase[p].row_count - i);
          if (rows > 0) strip(patch, patch.phase[p], columns[p], item, i, rows);
        }
      }
    }
  }

  // The next patch's source and result, a share for each item.
  void look_ahead(const Patch<C>& patch, const Patch<C>& next, long long item, long long points) {
    const long long items = B::items(a_.G);
    const long long calls = ceil_div(patch.row_count, C::strip) * ceil_div(points, C::points) * Patch<C>::kPhases;
    const char *begin, *end;
    source_.extent(next, begin, end);
    ahead_.set(begin, end, item, items, calls);
    const auto* result = static_cast<const typename C::Result::type*>(B::kBackward ? a_.x : a_.y) + next.image * view_.n +
                         next.plane * S::D::step * view_.s[0] + next.first_row * S::H::step * view_.s[1];
    const long long rows = view_.c == 1 ? next.row_count * S::H::step : 0;
    ahead_result_.set(reinterpret_cast<const char*>(result), reinterpret_cast<const char*>(result + rows * view_.s[1]), item, items,
                      calls);
  }

  // Where results go: the lanes, the offset of the first target row and of its first column, and where the columns end.
  struct Target {
    const LaneMap<C>& lanes;
    long long row, first, end;
    int rows = 0;  // source rows that were collected
  };

  Target target_of(const Patch<C>& patch, const Phase& phase, const Columns& columns, const LaneMap<C>& lanes, long long i) const {
    const long long row = patch.image * view_.n + (phase.d.first + patch.plane * S::D::step) * view_.s[0] +
                          (phase.h.first + (patch.first_row + i) * S::H::step) * view_.s[1];
    return {lanes, row, phase.w.first * view_.s[2] + patch.first_column * W::step * view_.s[2], columns.whole.high};
  }

  // `rows` target rows of a phase from row i on.
  void strip(const Patch<C>& patch, const Phase& phase, const Columns& columns, long long item, long long i, long long rows) {
    const LaneMap<C> lanes(a_, item, view_.g, view_.c);
    if constexpr (S::kBlocked) {
      blocked(patch, phase, columns, lanes, item, i, rows);
    } else {
      if (rows == C::strip) return with_taps<C::strip>(patch, phase, columns, lanes, item, i);
      if constexpr (C::strip > 1)
        for (long long r = 0; r < rows; r++) with_taps<1>(patch, phase, columns, lanes, item, i + r);
    }
  }

  void blocked(const Patch<C>& patch, const Phase& phase, const Columns& columns, const LaneMap<C>& lanes, long long item, long long i,
               long long rows) {
    const long long pitch = sum_pitch();
    for (long long r = 0; r < rows; r++)
      for (long long j = 0; j < columns.cut.covered() * B::kWidth; j += kLanes) gconv::cpu::store(sums_ + r * pitch + j, Vec{});
    BlockedStrip<C, Cut>(source_, phase, columns.cut, columns.whole.low, i, rows, sums_, pitch)
        .run(static_cast<const float*>(a_.workspace) + item * P::kItem);
    for (long long r = 0; r < rows; r++) {
      Target target = target_of(patch, phase, columns, lanes, i + r);
      for (long long column = columns.whole.low; column < columns.whole.high; column += C::points) {
        ahead_.template step<false>();
        ahead_result_.template step<true>();
        float* sums = sums_ + r * pitch + (column - columns.whole.low) * B::kWidth;
        store(target, sums, column, smallest<long long>(C::points, columns.whole.high - column), 0);
      }
      if constexpr (C::strict) edges(patch, phase, target, item, i + r, columns.whole, 0);
    }
  }

  template <int kStrip>
  void with_taps(const Patch<C>& patch, const Phase& phase, const Columns& columns, const LaneMap<C>& lanes, long long item,
                 long long i) {
    if constexpr (W::max_taps > 1 && W::min_taps < W::max_taps)
      if (phase.w.taps == W::max_taps - 1) return cut<kStrip, W::max_taps - 1>(patch, phase, columns, lanes, item, i);
    cut<kStrip, W::max_taps>(patch, phase, columns, lanes, item, i);
  }

  // kTaps: those along w, unless there are none.
  template <int kStrip, int kTaps>
  void cut(const Patch<C>& patch, const Phase& phase, const Columns& columns, const LaneMap<C>& lanes, long long item, long long i) {
    Target target = target_of(patch, phase, columns, lanes, i);
    if constexpr (!kTile || C::strict) target.rows = phase.w.taps > 0 ? collect(phase, item, i) : 0;
    long long column = columns.whole.low;
    blocks<kStrip, kTaps, 0>(phase, columns.cut, target, item, i, columns.whole.low);
    if constexpr (C::strict)
      for (int r = 0; r < kStrip; r++) edges(patch, phase, target, item, i + r, columns.whole, r);
  }

  template <int kStrip, int kTaps, int kKind>
  void blocks(const Phase& phase, const Cut& cut, const Target& target, long long item, long long i, long long column) {
    for (long long b = 0; b < cut.count[kKind]; b++, column += C::blocks[kKind])
      block<kStrip, C::blocks[kKind], kTaps>(phase, target, item, i, column);
    if constexpr (kKind + 1 < Cut::kKinds) blocks<kStrip, kTaps, kKind + 1>(phase, cut, target, item, i, column);
  }

  // The source and weight rows that meet at target row i.
  int collect(const Phase& phase, long long item, long long i) {
    const float* weights = static_cast<const float*>(a_.workspace) + phase.w.weight_base * P::kTap;
    int count = 0;
    for (int d = 0; d < phase.d.taps; d++)
      for (int h = 0; h < phase.h.taps; h++)
        if (const float* x = source_.row(phase.shift_d + d, i * S::H::advance + phase.shift_h + h)) {
          x_[count] = x + phase.shift_w * B::kPixel;
          w_[count++] = weights + P::row(item, phase.d.weight_base + d, phase.h.weight_base + h);
        }
    return count;
  }

  template <int kStrip, int kPoints, int kTaps>
  void block(const Phase& phase, const Target& target, long long item, long long i, long long column) {
    alignas(64) float sums[kStrip * kPoints * B::kWidth];
    if constexpr (kTile) {
      const float* weights = static_cast<const float*>(a_.workspace) + item * P::kItem;
      RowTile<C, kStrip, kPoints, kTaps>().run(source_, phase, weights, i, column, sums);
    } else if constexpr (B::kLate) {
      constexpr int kFixed = kTaps <= kMostSliding ? kTaps : 0;
      SlidingDot<C, kPoints, W::advance, kFixed>().run(x_, w_, target.rows, column * W::advance * B::kPixel, 0, phase.w.taps, sums);
    } else {
      constexpr int kDepth = kTaps * B::kSource <= kUnrolled ? kTaps * B::kSource : 0;
      constexpr int kStep = W::advance * B::kPixel;
      dot<C, kPoints, kStep, kDepth>(x_, w_, target.rows, column * kStep, 0, phase.w.taps * B::kSource, sums);
    }
    ahead_.step<false>();
    ahead_result_.step<true>();
    const long long points = smallest<long long>(kPoints, target.end - column);
    for (int r = 0; r < kStrip; r++) store(target, sums + r * kPoints * B::kWidth, column, points, r);
  }

  // The columns outside `whole`, each with the taps that do not fall on padding.
  void edges(const Patch<C>& patch, const Phase& phase, Target& target, long long item, long long i, Span whole, int r) {
    target.rows = phase.w.taps > 0 ? collect(phase, item, i) : 0;
    for (long long column = 0; column < phase.column_count; column++) {
      if (column >= whole.low && column < whole.high) continue;
      const Span inside = patch.inside(phase, column, width());
      alignas(64) float sums[B::kWidth];
      const long long x_shift = (column * W::advance + inside.low) * B::kPixel, w_shift = inside.low * P::kTap;
      if constexpr (B::kLate) SlidingDot<C, 1, W::advance, 0>().run(x_, w_, target.rows, x_shift, w_shift, inside.size(), sums);
      else dot<C, 1, W::advance * B::kPixel, 0>(x_, w_, target.rows, x_shift, w_shift, inside.size() * B::kSource, sums);
      store(target, sums, column, 1, r);
    }
  }

  void store(const Target& target, float* sums, long long column, long long points, int r) {
    const long long step = W::step * view_.s[2];
    const long long first = target.row + r * S::H::step * view_.s[1] + target.first + column * step;
    store_points<C>(a_, B::kBackward ? a_.x : a_.y, target.lanes, sums, points, first, step);
  }

  long long width() const { return (B::kBackward ? a_.out : a_.in)[2]; }

  const ConvArgs& a_;
  const S strips_;
  const Scratch scratch_;
  SourceRing<C> source_;
  const TensorView& view_;
  const float** x_;
  const float** w_;
  float* sums_;
  Ahead ahead_, ahead_result_;
};

// Task t of args.splits.
template <class C>
void convolve(const ConvArgs& a, long long task) {
  if constexpr (C::in_place)
    if (DepthwiseConvolver<C>::suits(a)) return DepthwiseConvolver<C>(a).run(task);
  Convolver<C>(a).run(task);
}

}  // namespace gconv::cpu
