// Element types, raw vectors, and small compile-time helpers. No standard headers: device builds are freestanding.
#pragma once

namespace gconv {

enum Direction { kForward, kBwdData, kBwdWeight };

struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};

template <class A, class B>
struct is_same {
  static constexpr bool value = false;
};
template <class A>
struct is_same<A, A> {
  static constexpr bool value = true;
};

template <bool Condition, class A, class B>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};

// Per-axis compile-time values, axes d, h, w; an axis that a problem does not have has the neutral value.
template <int D, int H, int W>
struct Int3 {
  static constexpr int d = D, h = H, w = W;
  static constexpr int product = D * H * W;
};

#if defined(__CUDACC__)
#define GCONV_CONSTEXPR __host__ __device__ constexpr
#else
#define GCONV_CONSTEXPR constexpr
#endif

GCONV_CONSTEXPR int ceil_div(int a, int b) { return (a + b - 1) / b; }
template <class T>
GCONV_CONSTEXPR T min_of(T a, T b) {
  return a < b ? a : b;
}
GCONV_CONSTEXPR int max_of(int a, int b) { return a > b ? a : b; }
GCONV_CONSTEXPR int gcd_of(int a, int b) { return b == 0 ? a : gcd_of(b, a % b); }

// `Bytes` bytes moved by one load or store; naturally aligned.
template <int Bytes>
struct alignas(Bytes) Raw {
  unsigned word[Bytes / 4];
};
template <>
struct alignas(2) Raw<2> {
  unsigned short word[1];
};

// Coordinate of a row or column that must not be read: the sum of two of them is still outside every image.
constexpr int kFar = -(1 << 30);

}  // namespace gconv
