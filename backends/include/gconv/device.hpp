// What device code is written against: one platform layer, chosen by an explicit -D, and the conversions all of them share.
#pragma once

#include "types.hpp"

// Which family of matrix instructions the arch has.
#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define GCONV_CDNA 1
#elif defined(__gfx1250__)
#define GCONV_GFX1250 1
#elif defined(__gfx1200__) || defined(__gfx1201__)
#define GCONV_GFX12 1
#elif defined(__gfx1100__)
#define GCONV_GFX11 1
#elif defined(GCONV_PLATFORM_CUDA) || defined(GCONV_SIM_SM)
#define GCONV_NVIDIA 1
#else
#error "unknown arch: define its macro, such as __gfx942__"
#endif

#if defined(GCONV_PLATFORM_HIP)
#include "platform/hip.hpp"
#elif defined(GCONV_PLATFORM_CUDA)
#include "platform/cuda.hpp"
#elif defined(GCONV_PLATFORM_SIM)
#include "platform/sim.hpp"
#else
#error "define GCONV_PLATFORM_HIP, GCONV_PLATFORM_CUDA or GCONV_PLATFORM_SIM"
#endif
#ifndef GCONV_DEVICE
#define GCONV_DEVICE GCONV_DEVICE_INLINE
#endif

#include "args.hpp"

namespace gconv {

GCONV_DEVICE float to_float(float value) { return value; }
GCONV_DEVICE float to_float(f16 value) { return hw::f16_to_float(value.bits); }
GCONV_DEVICE float to_float(bf16 value) { return hw::bf16_to_float(value.bits); }

template <class T>
GCONV_DEVICE T from_float(float value) {
  T result = {};
  if constexpr (is_same<T, float>::value) result = value;
  else if constexpr (is_same<T, f16>::value) result.bits = hw::float_to_f16(value);
  else result.bits = hw::float_to_bf16(value);
  return result;
}

// n / d for 0 <= n < 2^31 (args.hpp says how the constants are made).
GCONV_DEVICE int divide(int n, FastDivisor d) {
  return d.mul == 0 ? n : (int)(hw::multiply_high((unsigned)n, d.mul) >> d.shift);
}

}  // namespace gconv
