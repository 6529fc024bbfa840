// How the channels of a convolution are cut into items: one item is what one register block computes along the channels.
//
// The lanes of a vector are target channels (forward: output channels; bwd_data: input channels; bwd_weight: output channels).
// Groups with few target channels share a vector (C::merged): lane l is channel l % kTarget of group l / kTarget, and source values
// are packed as whole vectors, each lane that of its own group. Otherwise an item is kWidth channels of one group, and source
// values are broadcast. No lane ever reads another group's values, so a NaN or Inf stays in its group.
#pragma once

#include "../args.hpp"
#include "axis.hpp"
#include "vector.hpp"

namespace gconv::cpu {

template <class T>
constexpr T largest(T a, T b) { return a > b ? a : b; }
template <class T>
constexpr T smallest(T a, T b) { return a < b ? a : b; }

template <class C>
struct Block {
  static constexpr bool kBackward = C::direction == Direction::bwd_data;
  static constexpr int kTarget = kBackward ? C::Cg : C::Kg;  // channels of a group along the lanes
  static constexpr int kSource = kBackward ? C::Kg : C::Cg;  // channels of a group that are summed over (bwd_weight: dW's)
  static constexpr int kWidth = kLanes * C::vectors;
  // Whether a packed point is one vector of all channels of the item's groups, spread where it is used and not while packing.
  static constexpr bool kLate = C::merged && kTarget * kSource > 1 && kSource <= kLanes &&
                                (C::direction != Direction::bwd_weight || C::sliding);
  static constexpr int kGroups = C::merged ? kLanes / (kLate ? largest(kTarget, kSource) : kTarget) : 1;
  static constexpr int kPerGroup = C::merged ? 1 : (kTarget + kWidth - 1) / kWidth;
  static constexpr int kValue = C::merged ? kLanes : 1;  // floats that one packed source value takes
  static constexpr int kPixel = kLate ? kLanes : kSource * kValue;  // floats that one packed source point takes
  static_assert(!C::merged || (C::vectors == 1 && kTarget * 2 <= kLanes), "merged groups share one vector");

  static long long items(long long G) { return ceil_div(G, kGroups) * kPerGroup; }
  // The first group of an item, and how many it has.
  static long long group(const ConvArgs& a, long long item) {
    const long long first = item / kPerGroup * kGroups;
    return a.G >= kGroups && first > a.G - kGroups ? a.G - kGroups : first;
  }
  static int groups(const ConvArgs& a) { return a.G < kGroups ? a.G : kGroups; }
};

// The chunks of a bwd_weight are shared out by items where they are fewer than this, in parts of C::range_items or more each so that a
// part reads whole stretches of memory; lower_cpu.py computes the same number.
constexpr int kItemRanges = 24;
template <class C>
inline long long item_ranges(long long items, long long chunks) {
  return smallest<long long>(ceil_div(kItemRanges, chunks), ceil_div(items, C::range_items));
}

// Where the lanes of an item lie in a tensor with groups and target channels.
template <class C>
struct LaneMap {
  static constexpr int kWidth = Block<C>::kWidth;
  long long offset[kWidth];  // elements from channel 0 of group 0
  long long channel;         // of lane 0, counted over all groups
  int count;                 // lanes in use
  bool contiguous;           // offset[l] == offset[0] + l

  LaneMap(const ConvArgs& a, long long item, long long group_stride, long long channel_stride) {
    using B = Block<C>;
    const long long g = B::group(a, item);
    const long long k = C::merged ? 0 : item % B::kPerGroup * kWidth;
    const long long left = B::kTarget - k;
    channel = g * B::kTarget + k;
    count = C::merged ? B::groups(a) * B::kTarget : static_cast<int>(left < kWidth ? left : kWidth);
    for (int l = 0; l < kWidth; l++)
      offset[l] = C::merged ? (g + l / B::kTarget) * group_stride + l % B::kTarget * channel_stride
                            : g * group_stride + (k + l) * channel_stride;
    contiguous = channel_stride == 1 && (!C::merged || group_stride == B::kTarget);
  }
};

}  // namespace gconv::cpu
