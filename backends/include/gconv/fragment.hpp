// Fragment maps and Mma: one struct per matrix instruction. All of them have the same shape:
//   M, N, K               the instruction's tile
//   kA, kB, kAcc          32-bit registers of the two operands and the accumulator in each lane
//   a_offset(pitch)       where in a row-major [row][k] tile in LDS this lane reads; load_a(registers, tile + a_offset)
//   multiply(acc, a, b)   acc += a * b^T for the wave
//   acc_row(e) + lane_row(), acc_col(e) + lane_col()   the element of the tile that accumulator register e holds
// Operand B is stored as [column][k], so that both operands are read along k.
#pragma once

#include "device.hpp"

namespace gconv {

template <int Words>
GCONV_DEVICE void copy_words(unsigned (&r)[Words], const void* from) {
  if constexpr (Words % 4 == 0) {
    GCONV_UNROLL
    for (int i = 0; i < Words / 4; ++i) {
      Raw<16> part = ((const Raw<16>*)from)[i];
      GCONV_UNROLL
      for (int j = 0; j < 4; ++j) r[4 * i + j] = part.word[j];
    }
  } else {
    Raw<4 * Words> part = *(const Raw<4 * Words>*)from;
    GCONV_UNROLL
    for (int j = 0; j < Words; ++j) r[j] = part.word[j];
  }
}

#if !defined(GCONV_NVIDIA)

// Operands of AMD matrix instructions: lane l holds PerLane consecutive k of row l % Rows, starting at k = l / Rows * PerLane.
template <class T, int Rows, int K, int PerLane>
struct LaneRows {
  static constexpr int kPerLane = PerLane, kWords = PerLane * (int)sizeof(T) / 4;
  static GCONV_DEVICE int offset(int pitch) {
    int lane = hw::lane_id();
    return lane % Rows * pitch + (K == PerLane ? 0 : lane / Rows * PerLane);
  }
  static GCONV_DEVICE void load(unsigned (&r)[kWords], const T* from) { copy_words(r, from); }
};

// Accumulators of 16x16 MFMA: lane l has column l % 16, rows l / 16 * 4 + e.
struct Acc16x16 {
  static constexpr int kAcc = 4;
  static GCONV_DEVICE int lane_row() { return hw::lane_id() / 16 * 4; }
  static GCONV_DEVICE int lane_col() { return hw::lane_id() % 16; }
  static constexpr GCONV_DEVICE int acc_row(int e) { return e; }
  static constexpr GCONV_DEVICE int acc_col(int) { return 0; }
};
// Accumulators of 32x32 MFMA: lane l has column l % 32, rows e / 4 * 8 + l / 32 * 4 + e % 4.
struct Acc32x32 {
  static constexpr int kAcc = 16;
  static GCONV_DEVICE int lane_row() { return hw::lane_id() / 32 * 4; }
  static GCONV_DEVICE int lane_col() { return hw::lane_id() % 32; }
  static constexpr GCONV_DEVICE int acc_row(int e) { return e / 4 * 8 + e % 4; }
  static constexpr GCONV_DEVICE int acc_col(int) { return 0; }
};
// Accumulators of RDNA3 WMMA: lane l has column l % 16, rows 2 e + l / 16.
struct AccWmma11 {
  static constexpr int kAcc = 8;
  static GCONV_DEVICE int lane_row() { return hw::lane_id() / 16; }
  static GCONV_DEVICE int lane_col() { return hw::lane_id() % 16; }
  static constexpr GCONV_DEVICE int acc_row(int e) { return 2 * e; }
  static constexpr GCONV_DEVICE int acc_col(int) { return 0; }
};
// Accumulators of RDNA4 and gfx1250 WMMA: lane l has column l % 16, rows l / 16 * 8 + e.
struct AccWmma12 {
  static constexpr int kAcc = 8;
  static GCONV_DEVICE int lane_row() { return hw::lane_id() / 16 * 8; }
  static GCONV_DEVICE int lane_col() { return hw::lane_id() % 16; }
  static constexpr GCONV_DEVICE int acc_row(int e) { return e; }
  static constexpr GCONV_DEVICE int acc_col(int) { return 0; }
};

#define GCONV_AMD_INSTRUCTION(name, T, m, n, k, per_lane, Acc)                                  \
  struct name : Acc {                                                                           \
    using A = LaneRows<T, m, k, per_lane>;                                                      \
    using B = LaneRows<T, n, k, per_lane>;                                                      \
    static constexpr int M = m, N = n, K = k, kA = A::kWords, kB = B::kWords;                   \
    static GCONV_DEVICE int a_offset(int pitch) { return A::offset(pitch); }                    \
    static GCONV_DEVICE int b_offset(int pitch) { return B::offset(pitch); }                    \
    static GCONV_DEVICE void load_a(unsigned (&r)[kA], const T* from) { A::load(r, from); }     \
    static GCONV_DEVICE void load_b(unsigned (&r)[kB], const T* from) { B::load(r, from); }     \
    static GCONV_DEVICE void multiply(float (&acc)[Acc::kAcc], const unsigned (&a)[kA], const unsigned (&b)[kB]) { \
      hw::name(acc, a, b);                                                                      \
    }                                                                                           \
  };

#if defined(GCONV_CDNA)
GCONV_AMD_INSTRUCTION(mfma_16x16x16_f16, f16, 16, 16, 16, 4, Acc16x16)
GCONV_AMD_INSTRUCTION(mfma_32x32x8_f16, f16, 32, 32, 8, 4, Acc32x32)
GCONV_AMD_INSTRUCTION(mfma_16x16x4_f32, float, 16, 16, 4, 1, Acc16x16)
GCONV_AMD_INSTRUCTION(mfma_32x32x2_f32, float, 32, 32, 2, 1, Acc32x32)
#if defined(__gfx908__)
GCONV_AMD_INSTRUCTION(mfma_16x16x8_bf16, bf16, 16, 16, 8, 2, Acc16x16)
GCONV_AMD_INSTRUCTION(mfma_32x32x4_bf16, bf16, 32, 32, 4, 2, Acc32x32)
#else
GCONV_AMD_INSTRUCTION(mfma_16x16x16_bf16, bf16, 16, 16, 16, 4, Acc16x16)
GCONV_AMD_INSTRUCTION(mfma_32x32x8_bf16, bf16, 32, 32, 8, 4, Acc32x32)
#endif
#if defined(__gfx950__)
GCONV_AMD_INSTRUCTION(mfma_16x16x32_f16, f16, 16, 16, 32, 8, Acc16x16)
GCONV_AMD_INSTRUCTION(mfma_32x32x16_f16, f16, 32, 32, 16, 8, Acc32x32)
GCONV_AMD_INSTRUCTION(mfma_16x16x32_bf16, bf16, 16, 16, 32, 8, Acc16x16)
GCONV_AMD_INSTRUCTION(mfma_32x32x16_bf16, bf16, 32, 32, 16, 8, Acc32x32)
#endif
#elif defined(GCONV_GFX11)
GCONV_AMD_INSTRUCTION(wmma_16x16x16_f16, f16, 16, 16, 16, 16, AccWmma11)
GCONV_AMD_INSTRUCTION(wmma_16x16x16_bf16, bf16, 16, 16, 16, 16, AccWmma11)
#elif defined(GCONV_GFX12)
GCONV_AMD_INSTRUCTION(wmma_16x16x16_f16, f16, 16, 16, 16, 8, AccWmma12)
GCONV_AMD_INSTRUCTION(wmma_16x16x16_bf16, bf16, 16, 16, 16, 8, AccWmma12)
#elif defined(GCONV_GFX1250)
GCONV_AMD_INSTRUCTION(wmma_16x16x4_f32, float, 16, 16, 4, 2, AccWmma12)

// Both operands of the 16-bit 16x16x32 instruction: half wave h holds k = h * 8 .. + 7 and 16 + h * 8 .. + 7.
template <class T>
struct LaneRuns {
  static GCONV_DEVICE int offset(int pitch) {
    int lane = hw::lane_id();
    return lane % 16 * pitch + lane / 16 * 8;
  }
  static GCONV_DEVICE void load(unsigned (&r)[8], const T* from) {
    unsigned low[4], high[4];
    copy_words(low, from);
    copy_words(high, from + 16);
    GCONV_UNROLL
    for (int i = 0; i < 4; ++i) {
      r[i] = low[i];
      r[4 + i] = high[i];
    }
  }
};
#define GCONV_GFX1250_INSTRUCTION(name, T)                                                          \
  struct name : AccWmma12 {                                                                         \
    static constexpr int M = 16, N = 16, K = 32, kA = 8, kB = 8;                                    \
    static GCONV_DEVICE int a_offset(int pitch) { return LaneRuns<T>::offset(pitch); }              \
    static GCONV_DEVICE int b_offset(int pitch) { return LaneRuns<T>::offset(pitch); }              \
    static GCONV_DEVICE void load_a(unsigned (&r)[8], const T* from) { LaneRuns<T>::load(r, from); } \
    static GCONV_DEVICE void load_b(unsigned (&r)[8], const T* from) { LaneRuns<T>::load(r, from); } \
    static GCONV_DEVICE void multiply(float (&acc)[8], const unsigned (&a)[8], const unsigned (&b)[8]) { hw::name(acc, a, b); } \
  };
GCONV_GFX1250_INSTRUCTION(wmma_16x16x32_f16, f16)
GCONV_GFX1250_INSTRUCTION(wmma_16x16x32_bf16, bf16)
#undef GCONV_GFX1250_INSTRUCTION
#endif
#undef GCONV_AMD_INSTRUCTION

#else  // NVIDIA

// Accumulators of m16n8: lane l has rows l / 4 + e / 2 * 8, columns l % 4 * 2 + e % 2.
struct AccM16N8 {
  static constexpr int kAcc = 4;
  static GCONV_DEVICE int lane_row() { return hw::lane_id() / 4; }
  static GCONV_DEVICE int lane_col() { return hw::lane_id() % 4 * 2; }
  static constexpr GCONV_DEVICE int acc_row(int e) { return e / 2 * 8; }
  static constexpr GCONV_DEVICE int acc_col(int e) { return e % 2; }
};
// ldmatrix: each lane names one row of eight 16-byte rows of a matrix; the four matrices of A are (rows 0-7, 8-15) x (k 0-7, 8-15).
#define GCONV_NVIDIA_K16(name, T)                                                                            \
  struct name : AccM16N8 {                                                                                   \
    static constexpr int M = 16, N = 8, K = 16, kA = 4, kB = 2;                                              \
    static GCONV_DEVICE int a_offset(int pitch) { return hw::lane_id() % 16 * pitch + hw::lane_id() / 16 * 8; }     \
    static GCONV_DEVICE int b_offset(int pitch) { return hw::lane_id() % 8 * pitch + hw::lane_id() / 8 % 2 * 8; }   \
    static GCONV_DEVICE void load_a(unsigned (&r)[4], const T* from) { hw::ldmatrix_x4(r, from); }           \
    static GCONV_DEVICE void load_b(unsigned (&r)[2], const T* from) { hw::ldmatrix_x2(r, from); }           \
    static GCONV_DEVICE void multiply(float (&acc)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { hw::name(acc, a, b); } \
  };
GCONV_NVIDIA_K16(mma_m16n8k16_f16, f16)
GCONV_NVIDIA_K16(mma_m16n8k16_bf16, bf16)
#undef GCONV_NVIDIA_K16

// tf32: A is (row l / 4 + 8 i, k l % 4 + 4 j) in register i + 2 j; B is (k l % 4 + 4 j, column l / 4) in register j.
struct mma_m16n8k8_tf32 : AccM16N8 {
  static constexpr int M = 16, N = 8, K = 8, kA = 4, kB = 2;
  static GCONV_DEVICE int a_offset(int pitch) { return hw::lane_id() / 4 * pitch + hw::lane_id() % 4; }
  static GCONV_DEVICE int b_offset(int pitch) { return a_offset(pitch); }
  static GCONV_DEVICE void load_rows(unsigned* r, const float* from) {
    __builtin_memcpy(&r[0], from, 4);
    __builtin_memcpy(&r[1], from + 4, 4);
  }
  template <int Pitch>
  static GCONV_DEVICE void load_a_pitched(unsigned (&r)[4], const float* from) {
    __builtin_memcpy(&r[0], from, 4);
    __builtin_memcpy(&r[1], from + 8 * Pitch, 4);
    __builtin_memcpy(&r[2], from + 4, 4);
    __builtin_memcpy(&r[3], from + 8 * Pitch + 4, 4);
  }
  static GCONV_DEVICE void load_b(unsigned (&r)[2], const float* from) { load_rows(r, from); }
  static GCONV_DEVICE void multiply(float (&acc)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    hw::mma_m16n8k8_tf32(acc, a, b);
  }
};

#endif

// True fp32 without a matrix instruction, one k at a time: a 16x16 tile of which lane l holds 16 * 16 / wave elements:
// columns l % 4 * 4 + e % 4, rows (l / 4) * kRows + e / 4.
struct fma {
  static constexpr int M = 16, N = 16, K = 1;
  static constexpr int kRows = 64 / hw::kWave, kA = kRows, kB = 4, kAcc = 4 * kRows;
  static GCONV_DEVICE int lane_row() { return hw::lane_id() / 4 * kRows; }
  static GCONV_DEVICE int lane_col() { return hw::lane_id() % 4 * 4; }
  static constexpr GCONV_DEVICE int acc_row(int e) { return e / 4; }
  static constexpr GCONV_DEVICE int acc_col(int e) { return e % 4; }
  static GCONV_DEVICE int a_offset(int pitch) { return lane_row() * pitch; }
  static GCONV_DEVICE int b_offset(int pitch) { return lane_col() * pitch; }
  template <int Pitch, int Count>
  static GCONV_DEVICE void load_rows(unsigned (&r)[Count], const float* from) {
    GCONV_UNROLL
    for (int i = 0; i < Count; ++i) __builtin_memcpy(&r[i], from + i * Pitch, 4);
  }
  static GCONV_DEVICE void multiply(float (&acc)[kAcc], const unsigned (&a)[kA], const unsigned (&b)[kB]) {
    GCONV_UNROLL
    for (int i = 0; i < kRows; ++i) {
      GCONV_UNROLL
      for (int j = 0; j < 4; ++j) {
        float x, y;
        __builtin_memcpy(&x, &a[i], 4);
        __builtin_memcpy(&y, &b[j], 4);
        acc[4 * i + j] = __builtin_fmaf(x, y, acc[4 * i + j]);
      }
    }
  }
};

// Operand reads that need the pitch at compile time go through these two; the rest ignore it.
template <class Instruction, int Pitch, class T>
GCONV_DEVICE void load_a(unsigned (&r)[Instruction::kA], const T* from) {
  if constexpr (is_same<Instruction, fma>::value) fma::load_rows<Pitch>(r, from);
#if defined(GCONV_NVIDIA)
  else if constexpr (is_same<Instruction, mma_m16n8k8_tf32>::value) mma_m16n8k8_tf32::load_a_pitched<Pitch>(r, from);
#endif
  else Instruction::load_a(r, from);
}
template <class Instruction, int Pitch, class T>
GCONV_DEVICE void load_b(unsigned (&r)[Instruction::kB], const T* from) {
  if constexpr (is_same<Instruction, fma>::value) fma::load_rows<Pitch>(r, from);
  else Instruction::load_b(r, from);
}

}  // namespace gconv
