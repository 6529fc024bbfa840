// Storing finished sums: the epilogue, one rounding to the result's dtype, any strides.
#pragma once

#include "block.hpp"

namespace gconv::cpu {

// sums: kWidth floats for each point (changed in place); at: the element offset of the first point in the result, step: to the next.
template <class C>
GCONV_CPU_INLINE void store_points(const ConvArgs& a, void* result, const LaneMap<C>& lanes, float* sums, long long points,
                                   long long at, long long step) {
  using R = typename C::Result;
  constexpr int kWidth = LaneMap<C>::kWidth;
  // The next item's channels of the same point: too far apart for the processor to foresee.
  constexpr int kNext = largest(kWidth * static_cast<int>(sizeof(typename R::type)), kCacheLine);
  auto* to = static_cast<typename R::type*>(result);
  if (lanes.contiguous) {
    at += lanes.offset[0];
    for (long long p = 0; p < points; p++, sums += kWidth, at += step) {
      __builtin_prefetch(reinterpret_cast<const char*>(to + at) + kNext, 1, 2);
      if constexpr (C::has_epilogue)
        for (int l = 0; l < lanes.count; l++) sums[l] = C::epilogue(a, sums[l], lanes.channel + l, at + l);
      if (lanes.count == kWidth) {
        for (int l = 0; l < kWidth; l += kLanes) R::write_vector(to + at + l, load(sums + l));
        continue;
      }
      int l = 0;
      for (; l + kLanes <= lanes.count; l += kLanes) R::write_vector(to + at + l, load(sums + l));
      if (l < lanes.count) R::write_some(to + at + l, load(sums + l), lanes.count - l);
    }
    return;
  }
  for (long long p = 0; p < points; p++, sums += kWidth, at += step)
    for (int l = 0; l < lanes.count; l++) {
      float value = sums[l];
      if constexpr (C::has_epilogue) value = C::epilogue(a, value, lanes.channel + l, at + lanes.offset[l]);
      R::write(to + at + lanes.offset[l], value);
    }
}

}  // namespace gconv::cpu
