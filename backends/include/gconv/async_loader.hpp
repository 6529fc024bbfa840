// AsyncRowLoader: operand tiles that go from global memory to LDS directly, without registers. Only vectors along k can (LDS holds
// rows of k), and only what no prologue changes; the hardware moves kAsyncBytes a lane, and the lanes of a wave fill LDS in order.
#pragma once

#include "row_loader.hpp"

namespace gconv {

template <class S, class Shape, class Operand>
struct CanCopyDirectly {
  static constexpr bool value = Shape::AlongK && !Operand::kTransforms && Shape::Vec * (int)sizeof(typename S::In) >= hw::kAsyncBytes &&
                                (sizeof(typename S::Offset) == 4 || hw::kAsyncWideOffsets);
};

template <class S, class Shape, class Operand_>
struct AsyncRowLoader {
  using Operand = Operand_;
  using T = typename S::In;
  using Offset = typename S::Offset;
  static constexpr int kVec = hw::kAsyncBytes / (int)sizeof(T), kRowUnits = Shape::K / kVec;
  static constexpr int kUnits = Shape::Groups * Shape::Rows * kRowUnits, kPasses = ceil_div(kUnits, Shape::Threads);
  static_assert(Shape::kPitch == Shape::K, "the units of a tile follow each other without padding");
  struct Staged {};

  Point<Offset> row[kPasses];
  int column[kPasses];

  GCONV_DEVICE void init(const Operand& operand) {
    GCONV_UNROLL
    for (int p = 0; p < kPasses; ++p) {
      int unit = hw::thread_id() + p * Shape::Threads, line = unit / kRowUnits;
      column[p] = unit % kRowUnits * kVec;
      row[p] = operand.row(Shape::Groups == 1 ? line : line % Shape::Rows);
      if constexpr (Shape::Groups > 1) row[p].offset += operand.group(line / Shape::Rows);
    }
  }
  GCONV_DEVICE void start(const Operand& operand, T* lds, int step, Staged&) const {
    GCONV_UNROLL
    for (int p = 0; p < kPasses; ++p) {
      int first = hw::wave_id() * hw::kWave + p * Shape::Threads;
      if (kUnits % Shape::Threads != 0 && first + hw::lane_id() >= kUnits) continue;
      Point<Offset> k = operand.k(step, column[p]);
      bool ok = inside<Shape::Axes>(row[p], k, operand.extent);
      hw::async_copy_or_zero(lds + first * kVec, operand.base, (Offset)(row[p].offset + k.offset), ok);
    }
  }
  GCONV_DEVICE void finish(const Operand&, T*, int, Staged&) const {}
};

// Direct where it can be, through registers where not.
template <class S, class Shape, class Operand, bool Direct>
struct AsyncLoaderOf {
  using type = RowLoader<Shape, Operand>;
};
template <class S, class Shape, class Operand>
struct AsyncLoaderOf<S, Shape, Operand, true> {
  using type = AsyncRowLoader<S, Shape, Operand>;
};

}  // namespace gconv
