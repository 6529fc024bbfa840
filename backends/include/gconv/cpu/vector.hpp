// Vectors of kLanes floats by the compiler's vector extensions, and the storage types fp32, fp16 and bf16.
// GCONV_LANES is defined by the generated source: 16 (AVX-512), 8 (AVX2), 4 (SSE, NEON).
#pragma once

#define GCONV_CPU_INLINE inline __attribute__((always_inline))
#define GCONV_CPU_LAMBDA __attribute__((always_inline))

namespace gconv::cpu {

constexpr int kLanes = GCONV_LANES;
constexpr int kCacheLine = 64;  // bytes
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;  // vector registers
#else
constexpr int kRegisters = 16;
#endif

typedef float Vec __attribute__((vector_size(4 * GCONV_LANES)));
typedef unsigned UVec __attribute__((vector_size(4 * GCONV_LANES)));
typedef unsigned short HVec __attribute__((vector_size(2 * GCONV_LANES)));

template <class To, class From>
GCONV_CPU_INLINE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

GCONV_CPU_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

GCONV_CPU_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }

// Stores past the caches, for whole cache lines that nobody reads soon.
#if defined(__AVX512F__)
constexpr bool kStreams = true;
GCONV_CPU_INLINE void stream(float* p, Vec v) {
#ifdef __clang__
  __builtin_nontemporal_store(v, reinterpret_cast<Vec*>(p));
#else
  __builtin_ia32_movntps512(p, v);
#endif
}
GCONV_CPU_INLINE void stream_end() { __builtin_ia32_sfence(); }
#else
constexpr bool kStreams = false;
GCONV_CPU_INLINE void stream(float* p, Vec v) { store(p, v); }
GCONV_CPU_INLINE void stream_end() {}
#endif
template <class T>
GCONV_CPU_INLINE void stream(T*, Vec) {}  // of narrow elements, which are not streamed

// Prefetches the kBytes after the next kBytes, such as another item's channels: too far apart for the processor to foresee.
template <int kBytes>
GCONV_CPU_INLINE void prefetch_after(const void* from) {
  constexpr int kStep = kBytes < kCacheLine ? kCacheLine : kBytes;
#pragma GCC unroll 8
  for (int i = 0; i < kBytes; i += kCacheLine) __builtin_prefetch(static_cast<const char*>(from) + kStep + i, 0, 2);
}

// Every lane the same. Subtracting +0 changes no value, not even -0, so the compiler drops it.
GCONV_CPU_INLINE Vec broadcast(float s) { return s - Vec{}; }

// The first `count` lanes, and zeros. Memory behind them is not touched.
GCONV_CPU_INLINE Vec load_some(const float* p, int count) {
#if defined(__AVX512F__)
  return __builtin_ia32_loadups512_mask(p, Vec{}, static_cast<unsigned short>((1u << count) - 1));
#else
  float lanes[kLanes] = {};
  __builtin_memcpy(lanes, p, static_cast<__SIZE_TYPE__>(count) * sizeof(float));
  return load(lanes);
#endif
}

GCONV_CPU_INLINE void store_some(float* p, Vec v, int count) {
#if defined(__AVX512F__)
  __builtin_ia32_storeups512_mask(p, v, static_cast<unsigned short>((1u << count) - 1));
#else
  float lanes[kLanes];
  store(lanes, v);
  __builtin_memcpy(p, lanes, static_cast<__SIZE_TYPE__>(count) * sizeof(float));
#endif
}

// Lane l of the result is lane index[l] of a, or of b where index[l] is kLanes or more.
GCONV_CPU_INLINE Vec choose_lanes(Vec a, Vec b, UVec index) {
#ifdef __clang__
  Vec r;
  for (int l = 0; l < kLanes; l++) r[l] = index[l] < kLanes ? a[index[l]] : b[index[l] - kLanes];
  return r;
#else
  return __builtin_shuffle(a, b, index);
#endif
}

// Swaps the parts of two rows that a step of a transposition exchanges: lanes whose number has the bit kBit, or has it not.
template <int kBit>
GCONV_CPU_INLINE void exchange(Vec& a, Vec& b) {
  UVec low = {}, high = {};
  for (int l = 0; l < kLanes; l++) low[l] = l & kBit ? kLanes + l - kBit : l, high[l] = l & kBit ? kLanes + l : l + kBit;
  const Vec first = choose_lanes(a, b, low);
  b = choose_lanes(a, b, high), a = first;
}

template <int kBit = 1>
GCONV_CPU_INLINE void transpose(Vec (&v)[kLanes]) {
  if constexpr (kBit < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++)
      if ((i & kBit) == 0) exchange<kBit>(v[i], v[i + kBit]);
    transpose<2 * kBit>(v);
  }
}

// The conversions below work on one element (F = float, U = unsigned) and on vectors (F = Vec, U = UVec) alike.

template <class F, class U>
GCONV_CPU_INLINE F bf16_to_float(U h) {
  return bits_as<F>(h << 16);
}

// Round to nearest even; a NaN keeps its upper bits and becomes quiet.
template <class F, class U>
GCONV_CPU_INLINE U float_to_bf16(F f) {
  const U u = bits_as<U>(f);
  const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 0x40u) : rounded;
}

// The fp16 bits moved to fp32 places stand for a value 2^112 too small, subnormals included.
template <class F, class U>
GCONV_CPU_INLINE F fp16_to_float(U h) {
  const U magnitude = (h & 0x7fffu) << 13;
  const U finite = bits_as<U>(bits_as<F>(magnitude) * 0x1p112f);
  const U special = magnitude | 0x7f800000u;
  return bits_as<F>((magnitude >= (0x7c00u << 13) ? special : finite) | ((h & 0x8000u) << 16));
}

// Round to nearest even. Results below 2^-14 are rounded by the adder: in 0.5 + |f| the last place is 2^-24.
template <class F, class U>
GCONV_CPU_INLINE U float_to_fp16(F f) {
  const U u = bits_as<U>(f);
  const U magnitude = u & 0x7fffffffu;
  const U normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const U subnormal = bits_as<U>(bits_as<F>(magnitude) + 0.5f) - 0x3f000000u;
  const U overflow = magnitude > 0x7f800000u ? U{} + 0x7e00u : U{} + 0x7c00u;
  const U finite = magnitude < 0x38800000u ? subnormal : normal;
  return (magnitude >= 0x477ff000u ? overflow : finite) | ((u >> 16) & 0x8000u);
}

struct Fp32 {
  using type = float;
  static GCONV_CPU_INLINE float read(const float* p) { return *p; }
  static GCONV_CPU_INLINE Vec read_vector(const float* p) { return load(p); }
  static GCONV_CPU_INLINE void write(float* p, float v) { *p = v; }
  static GCONV_CPU_INLINE void write_vector(float* p, Vec v) { store(p, v); }
  static GCONV_CPU_INLINE Vec read_some(const float* p, int count) { return load_some(p, count); }
  static GCONV_CPU_INLINE void write_some(float* p, Vec v, int count) { store_some(p, v, count); }
};

template <class Format>
struct Half {
  using type = unsigned short;
  static GCONV_CPU_INLINE float read(const type* p) { return Format::template widen<float, unsigned>(*p); }
  static GCONV_CPU_INLINE Vec read_vector(const type* p) {
    HVec h;
    __builtin_memcpy(&h, p, sizeof(h));
    return Format::template widen<Vec, UVec>(__builtin_convertvector(h, UVec));
  }
  static GCONV_CPU_INLINE void write(type* p, float v) { *p = type(Format::template narrow<float, unsigned>(v)); }
  static GCONV_CPU_INLINE void write_vector(type* p, Vec v) {
    const HVec h = __builtin_convertvector((Format::template narrow<Vec, UVec>(v)), HVec);
    __builtin_memcpy(p, &h, sizeof(h));
  }
  static GCONV_CPU_INLINE Vec read_some(const type* p, int count) {
    type lanes[kLanes] = {};
    __builtin_memcpy(lanes, p, static_cast<__SIZE_TYPE__>(count) * sizeof(type));
    return read_vector(lanes);
  }
  static GCONV_CPU_INLINE void write_some(type* p, Vec v, int count) {
    type lanes[kLanes];
    write_vector(lanes, v);
    __builtin_memcpy(p, lanes, static_cast<__SIZE_TYPE__>(count) * sizeof(type));
  }
};

struct Bf16Format {
  template <class F, class U>
  static GCONV_CPU_INLINE F widen(U h) { return bf16_to_float<F, U>(h); }
  template <class F, class U>
  static GCONV_CPU_INLINE U narrow(F f) { return float_to_bf16<F, U>(f); }
};

struct Fp16Format {
  template <class F, class U>
  static GCONV_CPU_INLINE F widen(U h) { return fp16_to_float<F, U>(h); }
  template <class F, class U>
  static GCONV_CPU_INLINE U narrow(F f) { return float_to_fp16<F, U>(f); }
};

using Bf16 = Half<Bf16Format>;
using Fp16 = Half<Fp16Format>;

}  // namespace gconv::cpu
