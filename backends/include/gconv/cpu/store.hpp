// Storing finished sums: the epilogue, one rounding to the result's dtype, any strides.
#pragma once

#include "block.hpp"

namespace gconv::cpu {

// sums: kWidth floats of one point (changed in place); at: the element offset of that point in the result.
template <class C>
GCONV_CPU_INLINE void store_point(const ConvArgs& a, void* result, const LaneMap<C>& lanes, float* sums, long long at) {
  using R = typename C::Result;
  constexpr int kWidth = LaneMap<C>::kWidth;
  auto* to = static_cast<typename R::type*>(result) + at;
  if (lanes.contiguous && lanes.count == kWidth) {
    if constexpr (C::has_epilogue)
      for (int l = 0; l < kWidth; l++) sums[l] = C::epilogue(a, sums[l], lanes.channel + l, at + lanes.offset[0] + l);
    for (int l = 0; l < kWidth; l += kLanes) R::write_vector(to + lanes.offset[0] + l, load(sums + l));
    return;
  }
  for (int l = 0; l < lanes.count; l++) {
    const long long offset = lanes.offset[l];
    if constexpr (C::has_epilogue) sums[l] = C::epilogue(a, sums[l], lanes.channel + l, at + offset);
    R::write(to + offset, sums[l]);
  }
}

}  // namespace gconv::cpu
