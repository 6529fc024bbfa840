// The platform layer for AMD GPUs: clang -x hip without any ROCm header or device library.
#pragma once

#define GCONV_DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define GCONV_DEVICE_INLINE GCONV_DEVICE
#define GCONV_KERNEL extern "C" __attribute__((global))
#define GCONV_LAUNCH_BOUNDS(threads, blocks_per_cu) \
  __attribute__((amdgpu_flat_work_group_size(threads, threads), amdgpu_waves_per_eu(((threads) / 256 > 0 ? (threads) / 256 : 1) * (blocks_per_cu))))
#define GCONV_LDS(T, name, count, byte_offset) __attribute__((shared)) __attribute__((aligned(16))) T name[count]
#define GCONV_UNROLL _Pragma("unroll")
#define GCONV_CLUSTER(blocks)
#define GCONV_KEEP_LOOP _Pragma("nounroll")

namespace gconv {
namespace hw {

#if defined(GCONV_CDNA)
constexpr int kWave = 64;
#else
constexpr int kWave = 32;
#endif

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x8 __attribute__((ext_vector_type(8)));
typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef _Float16 f16x4 __attribute__((ext_vector_type(4)));
typedef _Float16 f16x8 __attribute__((ext_vector_type(8)));
typedef _Float16 f16x16 __attribute__((ext_vector_type(16)));
typedef short s16x2 __attribute__((ext_vector_type(2)));
typedef short s16x4 __attribute__((ext_vector_type(4)));
typedef short s16x8 __attribute__((ext_vector_type(8)));
typedef short s16x16 __attribute__((ext_vector_type(16)));
typedef unsigned u32x4 __attribute__((ext_vector_type(4)));
typedef unsigned u32x2 __attribute__((ext_vector_type(2)));

template <class To, class From>
GCONV_DEVICE To bit_cast(const From& from) {
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

GCONV_DEVICE int thread_id() { return __builtin_amdgcn_workitem_id_x(); }
GCONV_DEVICE int block_id_x() { return __builtin_amdgcn_workgroup_id_x(); }
GCONV_DEVICE int block_id_y() { return __builtin_amdgcn_workgroup_id_y(); }
GCONV_DEVICE int block_id_z() { return __builtin_amdgcn_workgroup_id_z(); }
GCONV_DEVICE int lane_id() { return thread_id() & (kWave - 1); }
// Scalar: every lane of a wave has the same value, and saying so keeps address arithmetic out of the vector registers.
GCONV_DEVICE int wave_id() { return __builtin_amdgcn_readfirstlane(thread_id() / kWave); }

GCONV_DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
GCONV_DEVICE void raise_priority() { __builtin_amdgcn_s_setprio(1); }
GCONV_DEVICE void lower_priority() { __builtin_amdgcn_s_setprio(0); }
#define GCONV_SCHED_GROUP_BARRIER(mask, size, group) __builtin_amdgcn_sched_group_barrier(mask, size, group)
#define GCONV_SCHED_BARRIER() __builtin_amdgcn_sched_barrier(0)
// Launches never overlap here.
GCONV_DEVICE void let_launches_start() {}
GCONV_DEVICE void wait_for_launches() {}
GCONV_DEVICE unsigned multiply_high(unsigned a, unsigned b) { return ((unsigned long long)a * b) >> 32; }

GCONV_DEVICE float f16_to_float(unsigned short bits) { return (float)bit_cast<_Float16>(bits); }
GCONV_DEVICE unsigned short float_to_f16(float value) { return bit_cast<unsigned short>((_Float16)value); }
GCONV_DEVICE float bf16_to_float(unsigned short bits) { return bit_cast<float>((unsigned)bits << 16); }
GCONV_DEVICE unsigned short float_to_bf16(float value) {
  unsigned u = bit_cast<unsigned>(value);
  unsigned rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return value == value ? rounded : (u >> 16) | 0x40u;  // a NaN stays a (quiet) NaN
}

#if !defined(GCONV_GFX1250) && __has_builtin(__builtin_amdgcn_make_buffer_rsrc)
#define GCONV_BUFFER_LOADS 1
#endif

#if defined(GCONV_BUFFER_LOADS)
#if defined(GCONV_CDNA)
constexpr unsigned kBufferFlags = 0x00020000u;  // word 3 of a raw buffer descriptor, gfx9
#else
constexpr unsigned kBufferFlags = 0x31004000u;  // gfx11, gfx12
#endif
constexpr unsigned kBufferBytes = 0xfffffff0u;

template <int Bytes>
GCONV_DEVICE Raw<Bytes> buffer_load(__amdgpu_buffer_rsrc_t resource, unsigned offset) {
  if constexpr (Bytes == 16) return bit_cast<Raw<16>>(__builtin_amdgcn_raw_buffer_load_b128(resource, offset, 0, 0));
  else if constexpr (Bytes == 8) return bit_cast<Raw<8>>(__builtin_amdgcn_raw_buffer_load_b64(resource, offset, 0, 0));
  else if constexpr (Bytes == 4) return bit_cast<Raw<4>>(__builtin_amdgcn_raw_buffer_load_b32(resource, offset, 0, 0));
  else return bit_cast<Raw<2>>(__builtin_amdgcn_raw_buffer_load_b16(resource, offset, 0, 0));
}
#endif

// The vector at byte `offset` behind the block-uniform `base`, or zeros where it is not valid.
template <int Bytes>
GCONV_DEVICE Raw<Bytes> load_or_zero(const void* base, unsigned offset, bool valid) {
#if defined(GCONV_BUFFER_LOADS)
  auto resource = __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, kBufferBytes, kBufferFlags);
  return buffer_load<Bytes>(resource, valid ? offset : 0xffffffffu);
#else
  Raw<Bytes> zero = {};
  return valid ? *(const Raw<Bytes>*)((const char*)base + offset) : zero;
#endif
}
template <int Bytes>
GCONV_DEVICE Raw<Bytes> load_or_zero(const void* base, unsigned long long offset, bool valid) {
  Raw<Bytes> zero = {};
  return valid ? *(const Raw<Bytes>*)((const char*)base + offset) : zero;
}

// Direct copies from global memory to LDS: kAsyncBytes a lane, lane l of the wave to lds_wave_base + l * kAsyncBytes; zeros where not
// valid. async_wait: all copies of this wave have arrived.
#if defined(__gfx950__)
constexpr int kAsyncBytes = 16;
#else
constexpr int kAsyncBytes = 4;
#endif
constexpr bool kAsyncWideOffsets = false;
#if (defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)) && defined(GCONV_BUFFER_LOADS)
GCONV_DEVICE void async_copy_or_zero(void* lds_wave_base, const void* base, unsigned offset, bool valid) {
  auto resource = __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, kBufferBytes, kBufferFlags);
  __builtin_amdgcn_raw_ptr_buffer_load_lds(resource, (__attribute__((address_space(3))) void*)lds_wave_base, kAsyncBytes,
                                           valid ? offset : 0xffffffffu, 0, 0, 0);
}
#else
GCONV_DEVICE void async_copy_or_zero(void*, const void*, unsigned, bool);  // named by a loader that the rules refuse here
#endif
GCONV_DEVICE void async_commit() {}
GCONV_DEVICE void async_wait() {
#if defined(GCONV_CDNA)
  __builtin_amdgcn_s_waitcnt(0x0f70);  // vmcnt(0)
#endif
}

#if defined(GCONV_CDNA)
#define GCONV_MFMA(name, builtin, Operand, Acc, words, regs)                                             \
  GCONV_DEVICE void name(float (&d)[regs], const unsigned (&a)[words], const unsigned (&b)[words]) {     \
    Acc acc = bit_cast<Acc>(d);                                                                          \
    acc = builtin(bit_cast<Operand>(a), bit_cast<Operand>(b), acc, 0, 0, 0);                             \
    __builtin_memcpy(&d, &acc, sizeof(acc));                                                             \
  }
GCONV_MFMA(mfma_16x16x16_f16, __builtin_amdgcn_mfma_f32_16x16x16f16, f16x4, f32x4, 2, 4)
GCONV_MFMA(mfma_32x32x8_f16, __builtin_amdgcn_mfma_f32_32x32x8f16, f16x4, f32x16, 2, 16)
GCONV_MFMA(mfma_16x16x4_f32, __builtin_amdgcn_mfma_f32_16x16x4f32, float, f32x4, 1, 4)
GCONV_MFMA(mfma_32x32x2_f32, __builtin_amdgcn_mfma_f32_32x32x2f32, float, f32x16, 1, 16)
#if defined(__gfx908__)
GCONV_MFMA(mfma_16x16x8_bf16, __builtin_amdgcn_mfma_f32_16x16x8bf16, s16x2, f32x4, 1, 4)
GCONV_MFMA(mfma_32x32x4_bf16, __builtin_amdgcn_mfma_f32_32x32x4bf16, s16x2, f32x16, 1, 16)
#else
GCONV_MFMA(mfma_16x16x16_bf16, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k, s16x4, f32x4, 2, 4)
GCONV_MFMA(mfma_32x32x8_bf16, __builtin_amdgcn_mfma_f32_32x32x8bf16_1k, s16x4, f32x16, 2, 16)
#endif
#if defined(__gfx950__)
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));
GCONV_MFMA(mfma_16x16x32_f16, __builtin_amdgcn_mfma_f32_16x16x32_f16, f16x8, f32x4, 4, 4)
GCONV_MFMA(mfma_32x32x16_f16, __builtin_amdgcn_mfma_f32_32x32x16_f16, f16x8, f32x16, 4, 16)
GCONV_MFMA(mfma_16x16x32_bf16, __builtin_amdgcn_mfma_f32_16x16x32_bf16, bf16x8, f32x4, 4, 4)
GCONV_MFMA(mfma_32x32x16_bf16, __builtin_amdgcn_mfma_f32_32x32x16_bf16, bf16x8, f32x16, 4, 16)
#endif
#undef GCONV_MFMA
#endif

#define GCONV_WMMA(name, call, Operand, words)                                                      \
  GCONV_DEVICE void name(float (&d)[8], const unsigned (&ra)[words], const unsigned (&rb)[words]) { \
    f32x8 acc = bit_cast<f32x8>(d);                                                                 \
    Operand a = bit_cast<Operand>(ra), b = bit_cast<Operand>(rb);                                   \
    acc = call;                                                                                     \
    __builtin_memcpy(&d, &acc, sizeof(acc));                                                        \
  }
#if defined(GCONV_GFX11)
GCONV_WMMA(wmma_16x16x16_f16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, acc), f16x16, 8)
GCONV_WMMA(wmma_16x16x16_bf16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, acc), s16x16, 8)
#elif defined(GCONV_GFX12)
GCONV_WMMA(wmma_16x16x16_f16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, acc), f16x8, 4)
GCONV_WMMA(wmma_16x16x16_bf16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, acc), s16x8, 4)
#elif defined(GCONV_GFX1250)
typedef __bf16 bf16x16 __attribute__((ext_vector_type(16)));
GCONV_WMMA(wmma_16x16x32_f16, __builtin_amdgcn_wmma_f32_16x16x32_f16(false, a, false, b, (short)0, acc, false, false), f16x16, 8)
GCONV_WMMA(wmma_16x16x32_bf16, __builtin_amdgcn_wmma_f32_16x16x32_bf16(false, a, false, b, (short)0, acc, false, false), bf16x16, 8)
GCONV_WMMA(wmma_16x16x4_f32, __builtin_amdgcn_wmma_f32_16x16x4_f32(false, a, false, b, (short)0, acc, false, false), f32x2, 2)
#endif
#undef GCONV_WMMA

}  // namespace hw
}  // namespace gconv
