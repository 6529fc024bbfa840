// Prefetching in the order of memory.
#pragma once

#include "block.hpp"

namespace gconv::cpu {

// Memory that will be needed soon, prefetched a little at a time and in its order, which is what a memory delivers fastest.
class Ahead {
 public:
  // The part `share` of `shares` of the bytes from `begin` to `end`, in `calls` steps.
  void set(const char* begin, const char* end, long long share, long long shares, long long calls) {
    const long long lines = end > begin ? (end - begin) / kCacheLine : 0;
    next_ = begin + lines * share / shares * kCacheLine, end_ = begin + lines * (share + 1) / shares * kCacheLine;
    step_ = ceil_div((end_ - next_) / kCacheLine, largest(calls, 1LL)) * kCacheLine;
  }
  template <bool kWrite>
  GCONV_CPU_INLINE void step() {
    const char* end = smallest(next_ + step_, end_);
    for (; next_ < end; next_ += kCacheLine) __builtin_prefetch(next_, kWrite, 2);
  }

 private:
  const char* next_ = nullptr;
  const char* end_ = nullptr;
  long long step_ = 0;
};

}  // namespace gconv::cpu
