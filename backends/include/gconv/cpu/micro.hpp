// The register micro-kernels, the scratch memory of a task, and the cutting of a run of points into register blocks.
#pragma once

#include "block.hpp"

namespace gconv::cpu {

// Scratch memory of one task. Taken from the heap each time: tasks are long, and a thread keeps nothing between kernels.
class Scratch {
 public:
  explicit Scratch(long long floats) : memory_(__builtin_malloc(static_cast<__SIZE_TYPE__>(floats) * sizeof(float) + kAlignment)) {
    if (memory_ == nullptr) __builtin_abort();  // a kernel cannot report errors, and there is no memory left to go on with
  }
  ~Scratch() { __builtin_free(memory_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* data() const {
    const auto address = reinterpret_cast<__UINTPTR_TYPE__>(memory_);
    return reinterpret_cast<float*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  static constexpr __UINTPTR_TYPE__ kAlignment = 64;
  void* const memory_;
};

// `points` as blocks of the sizes kLarge and kSmall that cover them with the least waste: `large` large ones, then `small` small ones.
template <int kLarge, int kSmall>
struct Cover {
  long long large = 0;
  long long small = 0;
  constexpr explicit Cover(long long points) {
    long long best = -1;
    for (long long n = ceil_div(points, kLarge); n >= 0 && n >= points / kLarge - 2; n--) {
      const long long left = points - n * kLarge;
      const long long m = left > 0 ? ceil_div(left, kSmall) : 0;
      const long long covered = n * kLarge + m * kSmall;
      if (best < 0 || covered < best) best = covered, large = n, small = m;
    }
  }
  constexpr long long covered() const { return large * kLarge + small * kSmall; }
};

// The value itself. g++ would read it from memory again for each use, and then loads are what takes the time.
GCONV_CPU_INLINE Vec in_register(Vec value) {
#if defined(__AVX512F__)
  asm("" : "+v"(value));
#elif defined(__x86_64__)
  asm("" : "+x"(value));
#endif
  return value;
}

// Lane l becomes lane (l / kTarget) * kSource + c: channel c of each lane's own group.
template <class B, int c>
GCONV_CPU_INLINE Vec spread(Vec v) {
  if constexpr (B::kSource * B::kTarget == 1) return v;
#ifdef __clang__
  Vec r;
  for (int l = 0; l < kLanes; l++) r[l] = v[(l / B::kTarget * B::kSource + c) % kLanes];
  return r;
#else
  UVec index = {};
  for (int l = 0; l < kLanes; l++) index[l] = (l / B::kTarget * B::kSource + c) % kLanes;
  return __builtin_shuffle(v, index);
#endif
}

template <bool kMerged>
GCONV_CPU_INLINE Vec source_value(const float* x) {
  if constexpr (kMerged) return load(x);
  else return broadcast(*x);
}

// acc[p][:] += x[p * kStep] * w[:]
template <class C, int kPoints, int kStep>
GCONV_CPU_INLINE void multiply_add(Vec (&acc)[kPoints][C::vectors], const float* x, const float* w) {
  Vec weight[C::vectors];
#pragma GCC unroll 8
  for (int v = 0; v < C::vectors; v++) weight[v] = in_register(load(w + v * kLanes));
#pragma GCC unroll 32
  for (int p = 0; p < kPoints; p++) {
    const Vec value = source_value<C::merged>(x + p * kStep);
#pragma GCC unroll 8
    for (int v = 0; v < C::vectors; v++) acc[p][v] += value * weight[v];
  }
}

constexpr int kUnrolled = 16;  // lengths up to which the loop over the taps and channels of a row is unrolled

constexpr int kChain = 64;     // products summed in a row before their sum is added to others: long chains gather rounding errors

// Moves register sums to memory, where `first` ones replace what is there and others are added; the registers are zero again.
template <class C, int kPoints>
GCONV_CPU_INLINE void unload(Vec (&acc)[kPoints][C::vectors], float* sums, bool first) {
#pragma GCC unroll 32
  for (int p = 0; p < kPoints; p++)
#pragma GCC unroll 8
    for (int v = 0; v < C::vectors; v++) {
      float* to = sums + p * Block<C>::kWidth + v * kLanes;
      store(to, first ? acc[p][v] : load(to) + acc[p][v]);
      acc[p][v] = Vec{};
    }
}

// sums[p][:] = over all rows r and k < depth: x[r][x_shift + p * kStep + k] * w[r][w_shift + k][:]. kDepth is the depth if it is
// at most kUnrolled, or 0.
template <class C, int kPoints, int kStep, int kDepth>
inline void dot(const float* const* x, const float* const* w, int rows, long long x_shift, long long w_shift, long long depth,
                float* sums) {
  using B = Block<C>;
  Vec acc[kPoints][C::vectors] = {};
  long long chain = 0;
  bool first = true;
  const auto make_room = [&](long long count) {
    if constexpr (kDepth > 0 && C::filter[0] * C::filter[1] * kDepth <= kChain) return;
    if (chain + count > kChain) unload<C, kPoints>(acc, sums, first), chain = 0, first = false;
    chain += count;
  };
  for (int r = 0; r < rows; r++) {
    const float* xr = x[r] + x_shift;
    const float* wr = w[r] + w_shift;
    if constexpr (kDepth > 0) {
      make_room(kDepth);
#pragma GCC unroll 16
      for (int k = 0; k < kDepth; k++) multiply_add<C, kPoints, kStep>(acc, xr + k * B::kValue, wr + k * B::kWidth);
    } else {
      for (long long k = 0; k < depth;) {
        const long long end = smallest<long long>(k + kChain, depth);
        make_room(end - k);
        for (; k < end; k++) multiply_add<C, kPoints, kStep>(acc, xr + k * B::kValue, wr + k * B::kWidth);
      }
    }
  }
  unload<C, kPoints>(acc, sums, first);
}

// The same as dot for C::vectors == 1, channel by channel: the weights of all taps of a channel stay in registers while its source
// points pass by, each of which is read once for all taps. kTaps is 0 or the taps of a row.
template <class C, int kPoints, int kAdvance, int kTaps>
class SlidingDot {
  using B = Block<C>;

 public:
  GCONV_CPU_INLINE void run(const float* const* x, const float* const* w, int rows, long long x_shift, long long w_shift, long long taps,
                            float* sums) {
    sums_ = sums;
    for (int r = 0; r < rows; r++) {
      if constexpr (B::kLate) spread_channels<0>(x[r] + x_shift, w[r] + w_shift, taps);
      else
        for (int c = 0; c < B::kSource; c++)
          add(x[r] + x_shift, w[r] + w_shift + c * B::kWidth, taps, [c](const float* from) { return broadcast(from[c]); });
    }
    unload<C, kPoints>(acc_, sums, first_);
  }

 private:
  template <int c>
  GCONV_CPU_INLINE void spread_channels(const float* x, const float* w, long long taps) {
    if constexpr (c < B::kSource) {
      add(x, w + c * B::kWidth, taps, [](const float* from) { return spread<B, c>(load(from)); });
      spread_channels<c + 1>(x, w, taps);
    }
  }

  template <class Value>
  GCONV_CPU_INLINE void add(const float* x, const float* w, long long taps, Value value) {
    constexpr int kTap = B::kSource * B::kWidth;
    make_room(taps);
    if constexpr (kTaps > 0) {
      Vec weight[kTaps];
#pragma GCC unroll 8
      for (int k = 0; k < kTaps; k++) weight[k] = in_register(load(w + k * kTap));
#pragma GCC unroll 64
      for (int j = 0; j < (kPoints - 1) * kAdvance + kTaps; j++) {
        const Vec v = in_register(value(x + j * B::kPixel));
#pragma GCC unroll 8
        for (int k = 0; k < kTaps; k++)
          if (j >= k && (j - k) % kAdvance == 0 && (j - k) / kAdvance < kPoints) acc_[(j - k) / kAdvance][0] += v * weight[k];
      }
    } else {
      for (long long k = 0; k < taps; k++) {
        const Vec weight = in_register(load(w + k * kTap));
#pragma GCC unroll 32
        for (int p = 0; p < kPoints; p++) acc_[p][0] += value(x + (p * kAdvance + k) * B::kPixel) * weight;
      }
    }
  }

  GCONV_CPU_INLINE void make_room(long long count) {
    if constexpr (C::filter[0] * C::filter[1] * C::filter[2] * B::kSource <= kChain) return;
    if (chain_ + count > kChain) unload<C, kPoints>(acc_, sums_, first_), chain_ = 0, first_ = false;
    chain_ += count;
  }

  Vec acc_[kPoints][1] = {};
  float* sums_ = nullptr;
  long long chain_ = 0;
  bool first_ = true;
};

// sums[r][j][:] += over points p: x[r][p * kStep + j] * y[p][:], for r < kRows and j < used <= kValues.
template <class C, int kRows, int kValues, int kStep>
inline void outer(const float* const* x, const float* y, long long points, float* const* sums, int used) {
  using B = Block<C>;
  Vec acc[kRows][kValues][C::vectors] = {};  // added to the sums at the end, so that no chain is longer than a row
  const float* xr[kRows];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; r++) xr[r] = x[r];
  for (long long p = 0; p < points; p++, y += B::kWidth) {
    Vec gradient[C::vectors];
#pragma GCC unroll 8
    for (int v = 0; v < C::vectors; v++) gradient[v] = load(y + v * kLanes);
#pragma GCC unroll 32
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 32
      for (int j = 0; j < kValues; j++) {
        const Vec value = source_value<C::merged>(xr[r] + p * kStep + j * B::kValue);
#pragma GCC unroll 8
        for (int v = 0; v < C::vectors; v++) acc[r][j][v] += value * gradient[v];
      }
  }
#pragma GCC unroll 32
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 32
    for (int j = 0; j < kValues; j++)
#pragma GCC unroll 8
      for (int v = 0; v < C::vectors; v++)
        if (j < used) {
          float* to = sums[r] + j * B::kWidth + v * kLanes;
          store(to, load(to) + acc[r][j][v]);
        }
}

}  // namespace gconv::cpu
