// Warpgroup matrix instructions in the simulator: each lane computes its own sums, at once, from operands found as the descriptors say.
// The swizzle goes by address, as measured on an H200. Copies that arrive too late or LDS that is given back too early do not show here.
#pragma once

#include "sim_copy_engine.hpp"

namespace gconv {
namespace hw {

constexpr unsigned kLdsSpan = 1u << 18;  // bytes that a descriptor can name
inline const unsigned char* lds_origin;  // where the block's operands start

// The last bits of an address tell a place in the block's LDS.
GCONV_DEVICE_INLINE unsigned operand_address(const void* p) { return (unsigned)((unsigned long long)p & (kLdsSpan - 1)); }

GCONV_DEVICE_INLINE void wgmma_fence() {}
GCONV_DEVICE_INLINE void wgmma_commit() {}
template <int Groups>
GCONV_DEVICE_INLINE void wgmma_wait() {}
template <int Count>
GCONV_DEVICE_INLINE void wgmma_take(float (&)[Count]) {}
GCONV_DEVICE_INLINE int uniform(int value) { return value; }
template <int Count>
GCONV_DEVICE_INLINE void fewer_registers() {}
template <int Count>
GCONV_DEVICE_INLINE void more_registers() {}

// Element (row, k) of an operand: rows are rows of a or columns of b.
template <class T>
inline float wgmma_element(unsigned low, unsigned high, bool across, int row, int k) {
  unsigned start = (low & 0x3fff) << 4, block = (low >> 16 & 0x3fff) << 4, run = (high & 0x3fff) << 4;
  unsigned at = across ? start + row / 64 * block + k / 8 * run + k % 8 * 128 + row % 64 * 2 : start + row / 8 * run + row % 8 * 128 + k * 2;
  const unsigned char* p = lds_origin + ((at - operand_address(lds_origin)) & (kLdsSpan - 1));
  p = (const unsigned char*)((unsigned long long)p ^ ((unsigned long long)p >> 3 & 0x70));
  unsigned short bits = *(const unsigned short*)p;
  if constexpr (is_same<T, f16>::value) return f16_to_float(bits);
  else return bf16_to_float(bits);
}

// d = (accumulate ? d : 0) + a b of a 64 x N x 16 product.
template <class T, int N, bool AcrossA, bool AcrossB>
inline void wgmma(float (&d)[N / 2], unsigned a, unsigned a_high, unsigned b, unsigned b_high, int accumulate) {
  int row = wave_id() % 4 * 16 + lane_id() / 4, column = lane_id() % 4 * 2;
  float left[2][16];
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k) left[half][k] = wgmma_element<T>(a, a_high, AcrossA, row + half * 8, k);
  for (int j = 0; j < N / 8; ++j)
    for (int e = 0; e < 2; ++e) {
      float right[16];
      for (int k = 0; k < 16; ++k) right[k] = wgmma_element<T>(b, b_high, AcrossB, j * 8 + column + e, k);
      for (int half = 0; half < 2; ++half) {
        float sum = accumulate ? d[j * 4 + half * 2 + e] : 0.0f;
        for (int k = 0; k < 16; ++k) sum += left[half][k] * right[k];
        d[j * 4 + half * 2 + e] = sum;
      }
    }
}

}  // namespace hw
}  // namespace gconv
