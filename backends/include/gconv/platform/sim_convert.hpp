// fp16 and bf16 in plain integer and float arithmetic, so that any C++17 compiler gives the same bits.
#pragma once

namespace gconv {
namespace sim {

template <class To, class From>
inline __attribute__((always_inline)) To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "a reinterpretation keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// Exact. Shifting the exponent field and multiplying by 2^112 also makes subnormals right; only Inf and NaN need a fix.
inline __attribute__((always_inline)) float f16_to_float(unsigned short bits) {
  unsigned shifted = (unsigned)(bits & 0x7fff) << 13;
  float magnitude = bits_as<float>(shifted) * 0x1p112f;
  unsigned special = shifted >= 0x0f800000u ? 0x7f800000u : 0u;
  return bits_as<float>(bits_as<unsigned>(magnitude) | special | (unsigned)(bits & 0x8000) << 16);
}

// Round to nearest, ties to even; too large becomes Inf; a NaN stays a NaN.
inline __attribute__((always_inline)) unsigned short float_to_f16(float value) {
  unsigned u = bits_as<unsigned>(value), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (unsigned short)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // 65520 and above round to Inf
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 1/2 rounds to a multiple of 2^-24, the spacing of fp16 subnormals, in the low bits of the sum.
    float sum = bits_as<float>(magnitude) + 0.5f;
    return (unsigned short)(sign | (bits_as<unsigned>(sum) - 0x3f000000u));
  }
  unsigned rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return (unsigned short)(sign | (rounded - 0x38000000u) >> 13);
}

inline __attribute__((always_inline)) float bf16_to_float(unsigned short bits) { return bits_as<float>((unsigned)bits << 16); }

inline __attribute__((always_inline)) unsigned short float_to_bf16(float value) {
  unsigned u = bits_as<unsigned>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (unsigned short)(u >> 16 | 0x40u);
  return (unsigned short)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

// cvt.rna.tf32.f32: round to 10 mantissa bits, ties away from zero.
inline __attribute__((always_inline)) float round_to_tf32(float value) {
  unsigned u = bits_as<unsigned>(value);
  if ((u & 0x7f800000u) == 0x7f800000u) return value;
  return bits_as<float>((u + 0x1000u) & 0xffffe000u);
}

}  // namespace sim
}  // namespace gconv
