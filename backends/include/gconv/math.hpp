// The functions of prologues and epilogues, in float: one source for AMD and NVIDIA device code, the simulator and the CPU.
//
// No standard header and no device library: arithmetic, square root and bit patterns are all it needs. Everything is free of
// branches, so that compilers can vectorise it. NaN goes in, NaN comes out; infinities behave as the functions' limits.
// The polynomials are minimax fits of the stated functions (relative error, Lawson's algorithm), rounded to float; the largest
// measured errors stand in tests/test_math_header.py. Reduction of exp and log as in W. Cody, W. Waite, Software Manual for the
// Elementary Functions (1980); the rational variable of the normal tail as in M. Shepherd, J. Laframboise, Math. Comp. 36 (1981).
#pragma once

#ifndef GCONV_DEVICE_INLINE
#define GCONV_DEVICE_INLINE static inline __attribute__((always_inline))
#endif

namespace gconv {
namespace math {

#if defined(GCONV_PLATFORM_CUDA)
GCONV_DEVICE_INLINE int to_bits(float a) { return __float_as_int(a); }
GCONV_DEVICE_INLINE float from_bits(int bits) { return __int_as_float(bits); }
GCONV_DEVICE_INLINE float sqrt(float a) { return __fsqrt_rn(a); }
#else
GCONV_DEVICE_INLINE int to_bits(float a) {
  int bits;
  __builtin_memcpy(&bits, &a, sizeof(bits));
  return bits;
}
GCONV_DEVICE_INLINE float from_bits(int bits) {
  float a;
  __builtin_memcpy(&a, &bits, sizeof(a));
  return a;
}
GCONV_DEVICE_INLINE float sqrt(float a) { return __builtin_sqrtf(a); }
#endif

GCONV_DEVICE_INLINE float where(bool condition, float a, float b) { return condition ? a : b; }
GCONV_DEVICE_INLINE float abs(float a) { return from_bits(to_bits(a) & 0x7fffffff); }
GCONV_DEVICE_INLINE float copysign(float a, float sign) {
  return from_bits((to_bits(a) & 0x7fffffff) | (to_bits(sign) & (int)0x80000000));
}

// A comparison with NaN is false; the second test keeps a NaN in `a`.
GCONV_DEVICE_INLINE float minimum(float a, float b) { return ((a < b) | (a != a)) ? a : b; }
GCONV_DEVICE_INLINE float maximum(float a, float b) { return ((a > b) | (a != a)) ? a : b; }
GCONV_DEVICE_INLINE float clamp(float a, float low, float high) { return minimum(maximum(a, low), high); }
GCONV_DEVICE_INLINE float relu(float a) { return a < 0.0f ? 0.0f : a; }
GCONV_DEVICE_INLINE float leaky_relu(float a, float slope) { return a >= 0.0f ? a : slope * a; }
GCONV_DEVICE_INLINE float rsqrt(float a) { return 1.0f / sqrt(a); }

// exp(a + tail) for a tail that is small against 1. a = n ln 2 + r with |r| <= ln 2 / 2, exp(r) = 1 + r + r^2 P(r); ln 2 is split
// so that n times its first part is exact. Outside [-110, 100] the result is 0 or Inf in float, and clamping keeps 2^n in range.
GCONV_DEVICE_INLINE float exp_sum(float a, float tail) {
  a = clamp(a, -110.0f, 100.0f);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold
  const float shifted = a * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const int power = to_bits(shifted) - to_bits(kRound);
  const float r = ((a - n * 0.693359375f) - n * -2.12194440e-4f) + tail;
  float p = 0.001395172f;
  p = p * r + 0.008369599f;
  p = p * r + 0.041666187f;
  p = p * r + 0.16666512f;
  p = p * r + 0.5f;
  const float value = (p * (r * r) + r) + 1.0f;
  const int half = power >> 1;  // in two steps: 2^power itself may not be a float, and subnormal results round once
  return value * from_bits((half + 127) << 23) * from_bits((power - half + 127) << 23);
}
GCONV_DEVICE_INLINE float exp(float a) { return exp_sum(a, 0.0f); }

// a = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); log(1 + f) = f - f^2 / 2 + f^3 P(f).
GCONV_DEVICE_INLINE float log(float a) {
  const bool subnormal = a < 1.17549435e-38f;
  const int bits = to_bits(subnormal ? a * 8388608.0f : a);
  const int k = (bits - 0x3f3504f3) >> 23;
  const float f = from_bits(bits - k * 0x800000) - 1.0f;
  const float n = (float)k - (subnormal ? 23.0f : 0.0f);
  float p = 0.067445874f;
  p = p * f + -0.11674819f;
  p = p * f + 0.11888589f;
  p = p * f + -0.12405753f;
  p = p * f + 0.14219521f;
  p = p * f + -0.16667986f;
  p = p * f + 0.20002119f;
  p = p * f + -0.2500001f;
  p = p * f + 0.33333313f;
  const float square = f * f;
  const float value = (n * -2.12194440e-4f + (p * f * square - 0.5f * square)) + f + n * 0.693359375f;
  const float infinity = from_bits(0x7f800000);
  const float special = a == 0.0f ? -infinity : a < 0.0f ? from_bits(0x7fc00000) : a;  // a: +Inf or NaN
  return ((a > 0.0f) & (a < infinity)) ? value : special;
}

// Below 0.625: a + a^3 P(a^2). Above: 1 - 2 / (exp(2 |a|) + 1).
GCONV_DEVICE_INLINE float tanh(float a) {
  const float size = abs(a), square = a * a;
  float p = -0.0056669773f;
  p = p * square + 0.020606177f;
  p = p * square + -0.053730007f;
  p = p * square + 0.13331331f;
  p = p * square + -0.33333278f;
  const float large = 1.0f - 2.0f / (exp(2.0f * size) + 1.0f);
  return size < 0.625f ? a + a * (square * p) : copysign(large, a);
}

// exp(-scale z^2) for scale 1/2 or 1. The leading 12 bits of z square exactly; the rest is a small correction.
GCONV_DEVICE_INLINE float exp_minus_square(float z, float scale) {
  const float lead = from_bits(to_bits(z) & (int)0xfffff000);
  return exp_sum(-scale * (lead * lead), -scale * ((z - lead) * (z + lead)));
}

// exp(z^2 / 2) times the upper tail of the normal distribution at z >= 0: P((z - 4) / (z + 4)) / (1 + z), fitted on [0, 14.6].
GCONV_DEVICE_INLINE float mills_ratio(float z) {
  const float t = (z - 4.0f) / (z + 4.0f);
  float p = -7.169087e-05f;
  p = p * t + -6.0769267e-05f;
  p = p * t + 0.0006927178f;
  p = p * t + -0.00030369466f;
  p = p * t + -0.005004289f;
  p = p * t + 0.01794021f;
  p = p * t + -0.032197285f;
  p = p * t + 0.028599977f;
  p = p * t + 0.013999597f;
  p = p * t + -0.09670347f;
  p = p * t + 0.4720532f;
  return p / (1.0f + z);
}

// Below 1: a + a R(a^2). Above: 1 - erfc |a|, erfc z = 2 exp(-z^2) mills_ratio(sqrt(2) z).
GCONV_DEVICE_INLINE float erf(float a) {
  const float size = minimum(abs(a), 10.0f), square = size * size;
  float p = 7.853907e-05f;
  p = p * square + -0.0008010209f;
  p = p * square + 0.0051883296f;
  p = p * square + -0.026853813f;
  p = p * square + 0.112835854f;
  p = p * square + -0.37612626f;
  p = p * square + 0.12837917f;
  const float large = 1.0f - 2.0f * exp_minus_square(size, 1.0f) * mills_ratio(1.41421356f * size);
  return size < 1.0f ? a + a * p : copysign(large, a);
}

// With exp(-|a|), which cannot overflow.
GCONV_DEVICE_INLINE float sigmoid(float a) {
  const float z = exp(-abs(a));
  return (a >= 0.0f ? 1.0f : z) / (1.0f + z);
}

// a times the normal distribution function; its tail is computed as such, so that negative results keep their relative accuracy.
GCONV_DEVICE_INLINE float gelu(float a) {
  const float z = minimum(abs(a), 15.0f);
  const float tail = exp_minus_square(z, 0.5f) * mills_ratio(z);
  return a * (a < 0.0f ? tail : 1.0f - tail);
}

// 0.5 a (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))), as a sigmoid of twice the argument.
GCONV_DEVICE_INLINE float gelu_tanh(float a) { return a * sigmoid(1.59576912f * (a + 0.044715f * (a * a) * a)); }
GCONV_DEVICE_INLINE float silu(float a) { return a * sigmoid(a); }

// Rounding to nearest even in a shorter format; NaN stays NaN, what is too large becomes Inf.
GCONV_DEVICE_INLINE float round_fp32(float a) { return a; }
GCONV_DEVICE_INLINE float round_bf16(float a) {
  const unsigned bits = (unsigned)to_bits(a);
  const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return a != a ? a : from_bits((int)rounded);
}
GCONV_DEVICE_INLINE float round_fp16(float a) {
  const unsigned bits = (unsigned)to_bits(a) & 0x7fffffffu;
  const float size = from_bits((int)bits);
  const float normal = from_bits((int)((bits + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u));
  const float small = (size + 0.5f) - 0.5f;  // floats in [0.5, 1) are multiples of 2^-24, as the subnormals of fp16 are
  const float value = size < 6.103515625e-05f ? small : size >= 65520.0f ? from_bits(0x7f800000) : normal;
  return a != a ? a : copysign(value, a);
}

}  // namespace math
}  // namespace gconv
