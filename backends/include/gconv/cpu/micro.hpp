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
  for (int v = 0; v < C::vectors; v++) weight[v] = load(w + v * kLanes);
#pragma GCC unroll 32
  for (int p = 0; p < kPoints; p++) {
    const Vec value = source_value<C::merged>(x + p * kStep);
#pragma GCC unroll 8
    for (int v = 0; v < C::vectors; v++) acc[p][v] += value * weight[v];
  }
}

constexpr int kUnrolled = 16;  // lengths up to which the loop over the taps and channels of a row is unrolled

// sums[p][:] = over all rows r and k < depth: x[r][x_shift + p * kStep + k] * w[r][w_shift + k][:]. kDepth is the depth if it is
// at most kUnrolled, or 0.
template <class C, int kPoints, int kStep, int kDepth>
inline void dot(const float* const* x, const float* const* w, int rows, long long x_shift, long long w_shift, long long depth,
                float* sums) {
  using B = Block<C>;
  Vec acc[kPoints][C::vectors] = {};
  for (int r = 0; r < rows; r++) {
    const float* xr = x[r] + x_shift;
    const float* wr = w[r] + w_shift;
    if constexpr (kDepth > 0) {
#pragma GCC unroll 16
      for (int k = 0; k < kDepth; k++) multiply_add<C, kPoints, kStep>(acc, xr + k * B::kValue, wr + k * B::kWidth);
    } else {
      for (long long k = 0; k < depth; k++) multiply_add<C, kPoints, kStep>(acc, xr + k * B::kValue, wr + k * B::kWidth);
    }
  }
#pragma GCC unroll 32
  for (int p = 0; p < kPoints; p++)
#pragma GCC unroll 8
    for (int v = 0; v < C::vectors; v++) store(sums + p * B::kWidth + v * kLanes, acc[p][v]);
}

// sums[r][j][:] += over points p: x[r][p * kStep + j] * y[p][:], for r < kRows and j < used <= kValues.
template <class C, int kRows, int kValues, int kStep>
inline void outer(const float* const* x, const float* y, long long points, float* const* sums, int used) {
  using B = Block<C>;
  Vec acc[kRows][kValues][C::vectors];
  const float* xr[kRows];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; r++) {
    xr[r] = x[r];
#pragma GCC unroll 32
    for (int j = 0; j < kValues; j++)
#pragma GCC unroll 8
      for (int v = 0; v < C::vectors; v++)
        acc[r][j][v] = j < used ? load(sums[r] + j * B::kWidth + v * kLanes) : Vec{};
  }
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
        if (j < used) store(sums[r] + j * B::kWidth + v * kLanes, acc[r][j][v]);
}

}  // namespace gconv::cpu
