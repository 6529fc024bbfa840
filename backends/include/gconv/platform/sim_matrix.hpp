// Matrix instructions executed for a whole wave by their published lane layouts.
//
// Sources: AMD Matrix Instruction Calculator (CDNA1-3, RDNA3, RDNA4), the CDNA4 and gfx1250 forms as AMD's Composable Kernel
// and MLIR lower to them, and the PTX ISA, sections "Matrix fragments for mma.m16n8k8 / m16n8k16" and "ldmatrix".
// Numerics: d + a[0] b[0] + a[1] b[1] + ... in float, k ascending. Products of 16-bit inputs are exact; hardware may sum in
// another order and round differently between the terms.
#pragma once

#include "sim_abi.hpp"
#include "sim_convert.hpp"

namespace gconv {
namespace sim {

enum class Type { kF32, kTf32, kF16, kBf16 };

struct RowK {
  int row, k;
};
struct RowCol {
  int row, col;
};

// A layout says which element of A (row, k), of B (column, k) and of D (row, column) a lane holds as its i-th element; 16-bit
// elements count through the registers from the low half up.

template <int M_, int N_, int K_>
struct CdnaLayout {
  static constexpr int M = M_, N = N_, K = K_, kLanes = 64;
  static constexpr int kInputs = M * K / 64, kOutputs = M * N / 64;
  static constexpr RowK a(int lane, int i) { return {lane % M, lane / M * kInputs + i}; }
  static constexpr RowK b(int lane, int i) { return a(lane, i); }
  static constexpr RowCol d(int lane, int r) { return {r / 4 * (256 / N) + lane / N * 4 + r % 4, lane % N}; }
};

// Both half waves must hold the operands.
struct Gfx11Layout {
  static constexpr int M = 16, N = 16, K = 16, kLanes = 32, kInputs = 16, kOutputs = 8;
  static constexpr RowK a(int lane, int i) { return {lane % 16, i}; }
  static constexpr RowK b(int lane, int i) { return a(lane, i); }
  static constexpr RowCol d(int lane, int r) { return {2 * r + lane / 16, lane % 16}; }
};

struct Gfx12Layout {
  static constexpr int M = 16, N = 16, K = 16, kLanes = 32, kInputs = 8, kOutputs = 8;
  static constexpr RowK a(int lane, int i) { return {lane % 16, i / 4 * 8 + lane / 16 * 4 + i % 4}; }
  static constexpr RowK b(int lane, int i) { return a(lane, i); }
  static constexpr RowCol d(int lane, int r) { return {lane / 16 * 8 + r, lane % 16}; }
};

template <int K_>
struct Gfx1250Layout : Gfx12Layout {
  static constexpr int K = K_, kInputs = K / 2, kRun = K == 32 ? 8 : 2;  // consecutive k in one lane
  static constexpr RowK a(int lane, int i) { return {lane % 16, i / kRun * 2 * kRun + lane / 16 * kRun + i % kRun}; }
  static constexpr RowK b(int lane, int i) { return a(lane, i); }
};

template <int K_>
struct PtxLayout {
  static constexpr int M = 16, N = 8, K = K_, kLanes = 32, kInputs = K / 2, kOutputs = 4;
  static constexpr RowK a(int lane, int i) { return {lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2}; }
  static constexpr RowK b(int lane, int i) { return {lane / 4, i / 2 * 8 + lane % 4 * 2 + i % 2}; }
  static constexpr RowCol d(int lane, int r) { return {lane / 4 + r / 2 * 8, lane % 4 * 2 + r % 2}; }
};

struct PtxTf32Layout : PtxLayout<8> {
  static constexpr RowK a(int lane, int i) { return {lane / 4 + i % 2 * 8, lane % 4 + i / 2 * 4}; }
  static constexpr RowK b(int lane, int i) { return {lane / 4, lane % 4 + i * 4}; }
};

// The layout as tables: where in row-major A (M x K), B (K x N) and D (M x N) the elements of all lanes lie, lane by lane.
template <class Layout>
struct Places {
  static constexpr int kInputsB = Layout::kInputs * Layout::N / Layout::M;
  static constexpr int kCountA = Layout::kLanes * Layout::kInputs, kCountB = Layout::kLanes * kInputsB;
  static constexpr int kCountD = Layout::kLanes * Layout::kOutputs;
  static_assert(kCountD == Layout::M * Layout::N, "every element of D has one place");
  short a[kCountA] = {}, b[kCountB] = {}, d[kCountD] = {};

  constexpr Places() {
    for (int lane = 0; lane < Layout::kLanes; ++lane) {
      for (int i = 0; i < Layout::kInputs; ++i)
        a[lane * Layout::kInputs + i] = short(Layout::a(lane, i).row * Layout::K + Layout::a(lane, i).k);
      for (int i = 0; i < kInputsB; ++i)
        b[lane * kInputsB + i] = short(Layout::b(lane, i).k * Layout::N + Layout::b(lane, i).row);
      for (int r = 0; r < Layout::kOutputs; ++r)
        d[lane * Layout::kOutputs + r] = short(Layout::d(lane, r).row * Layout::N + Layout::d(lane, r).col);
    }
  }
};

// One operand of all lanes as floats. Collecting the bits first lets the compiler convert many at once.
template <Type type, int lanes, int inputs>
inline void read_operand(float* to, const short* places, void* const* operands, const unsigned* MatrixOperands::*which) {
  constexpr bool wide = type == Type::kF32 || type == Type::kTf32;
  constexpr int registers = wide ? inputs : inputs / 2;
  unsigned bits[lanes * registers];
  float values[lanes * inputs];
  for (int lane = 0; lane < lanes; ++lane)
    __builtin_memcpy(bits + lane * registers, ((const MatrixOperands*)operands[lane])->*which, registers * sizeof(unsigned));
  for (int i = 0; i < lanes * registers; ++i) {
    unsigned short low = (unsigned short)bits[i], high = (unsigned short)(bits[i] >> 16);
    if constexpr (type == Type::kF32) values[i] = bits_as<float>(bits[i]);
    if constexpr (type == Type::kTf32) values[i] = round_to_tf32(bits_as<float>(bits[i]));
    if constexpr (type == Type::kF16) values[2 * i] = f16_to_float(low), values[2 * i + 1] = f16_to_float(high);
    if constexpr (type == Type::kBf16) values[2 * i] = bf16_to_float(low), values[2 * i + 1] = bf16_to_float(high);
  }
  for (int i = 0; i < lanes * inputs; ++i) to[places[i]] = values[i];
}

constexpr int kVector = 4;  // what every CPU has; divides every N
typedef float Vector __attribute__((vector_size(kVector * sizeof(float))));
inline Vector load_vector(const float* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class Layout, Type type>
const char* multiply(void* const* operands, int lanes) {
  if (lanes != Layout::kLanes) return "needs a full wave, but the block ends inside it";
  static constexpr Places<Layout> places;
  constexpr int M = Layout::M, N = Layout::N, K = Layout::K, outputs = Layout::kOutputs;
  float a[M * K], b[K * N], d[M * N];
  read_operand<type, Layout::kLanes, Layout::kInputs>(a, places.a, operands, &MatrixOperands::a);
  read_operand<type, Layout::kLanes, places.kInputsB>(b, places.b, operands, &MatrixOperands::b);
  for (int lane = 0; lane < lanes; ++lane)
    for (int r = 0; r < outputs; ++r) d[places.d[lane * outputs + r]] = ((const MatrixOperands*)operands[lane])->d[r];
  for (int m = 0; m < M; ++m) {
    Vector row[N / kVector];
    __builtin_memcpy(row, d + m * N, sizeof row);
    for (int k = 0; k < K; ++k)
      for (int n = 0; n < N / kVector; ++n) row[n] += a[m * K + k] * load_vector(b + k * N + n * kVector);
    __builtin_memcpy(d + m * N, row, sizeof row);
  }
  for (int lane = 0; lane < lanes; ++lane)
    for (int r = 0; r < outputs; ++r) ((MatrixOperands*)operands[lane])->d[r] = d[places.d[lane * outputs + r]];
  return nullptr;
}

template <Type type>
const char* multiply_gfx11(void* const* operands, int lanes) {
  for (int lane = 16; lane < lanes; ++lane) {
    const auto &low = *(const MatrixOperands*)operands[lane - 16], &high = *(const MatrixOperands*)operands[lane];
    if (__builtin_memcmp(low.a, high.a, 32) != 0 || __builtin_memcmp(low.b, high.b, 32) != 0)
      return "needs the same operands in lanes 0-15 and 16-31";
  }
  return multiply<Gfx11Layout, type>(operands, lanes);
}

inline const char* shuffle(void* const* operands, int lanes) {
  for (int lane = 0; lane < lanes; ++lane) {
    auto& mine = *(ShuffleOperands*)operands[lane];
    if (mine.source >= lanes) return "reads a lane that the block does not have";
    mine.result = ((const ShuffleOperands*)operands[mine.source])->value;
  }
  return nullptr;
}

// Lane 8 j + r gives the address of row r of matrix j; lane t receives elements (t / 4, 2 (t % 4)) and the next, or the
// same two of the transposed matrix.
inline const char* ldmatrix(void* const* operands, int lanes) {
  if (lanes != 32) return "needs a full warp, but the block ends inside it";
  for (int lane = 0; lane < lanes; ++lane) {
    auto& mine = *(LdmatrixOperands*)operands[lane];
    for (int j = 0; j < mine.matrices; ++j) {
      unsigned short pair[2];
      for (int i = 0; i < 2; ++i) {
        int row = mine.transpose ? lane % 4 * 2 + i : lane / 4, col = mine.transpose ? lane / 4 : lane % 4 * 2 + i;
        pair[i] = ((const LdmatrixOperands*)operands[8 * j + row])->row[col];
      }
      mine.result[j] = pair[0] | (unsigned)pair[1] << 16;
    }
  }
  return nullptr;
}

inline const char* wave_sync(void* const*, int) { return nullptr; }

inline const char* mbarrier_wait(void* const* operands, int lanes) {
  for (int lane = 0; lane < lanes; ++lane) {
    auto& mine = *(WaitOperands*)operands[lane];
    mine.done = mine.barrier->parity != mine.parity;
    if (mine.done != ((const WaitOperands*)operands[0])->done) return "needs all lanes to wait for the same phase";
  }
  return nullptr;
}

struct Operation {
  const char* name;
  const char* (*execute)(void* const* operands, int lanes);  // an explanation if the operands are not acceptable
};

// Indexed by Op.
constexpr Operation kOperations[kOpCount] = {
    {"a shuffle", shuffle},
    {"ldmatrix", ldmatrix},
    {"a meeting of the wave", wave_sync},
    {"an mbarrier", mbarrier_wait},
    {"mfma_16x16x16_f16", multiply<CdnaLayout<16, 16, 16>, Type::kF16>},
    {"mfma_32x32x8_f16", multiply<CdnaLayout<32, 32, 8>, Type::kF16>},
    {"mfma_16x16x16_bf16", multiply<CdnaLayout<16, 16, 16>, Type::kBf16>},
    {"mfma_32x32x8_bf16", multiply<CdnaLayout<32, 32, 8>, Type::kBf16>},
    {"mfma_16x16x8_bf16", multiply<CdnaLayout<16, 16, 8>, Type::kBf16>},
    {"mfma_32x32x4_bf16", multiply<CdnaLayout<32, 32, 4>, Type::kBf16>},
    {"mfma_16x16x4_f32", multiply<CdnaLayout<16, 16, 4>, Type::kF32>},
    {"mfma_32x32x2_f32", multiply<CdnaLayout<32, 32, 2>, Type::kF32>},
    {"mfma_16x16x32_f16", multiply<CdnaLayout<16, 16, 32>, Type::kF16>},
    {"mfma_32x32x16_f16", multiply<CdnaLayout<32, 32, 16>, Type::kF16>},
    {"mfma_16x16x32_bf16", multiply<CdnaLayout<16, 16, 32>, Type::kBf16>},
    {"mfma_32x32x16_bf16", multiply<CdnaLayout<32, 32, 16>, Type::kBf16>},
    {"wmma_16x16x16_f16", multiply_gfx11<Type::kF16>},
    {"wmma_16x16x16_bf16", multiply_gfx11<Type::kBf16>},
    {"wmma_16x16x16_f16", multiply<Gfx12Layout, Type::kF16>},
    {"wmma_16x16x16_bf16", multiply<Gfx12Layout, Type::kBf16>},
    {"wmma_16x16x32_f16", multiply<Gfx1250Layout<32>, Type::kF16>},
    {"wmma_16x16x32_bf16", multiply<Gfx1250Layout<32>, Type::kBf16>},
    {"wmma_16x16x4_f32", multiply<Gfx1250Layout<4>, Type::kF32>},
    {"mma_m16n8k16_f16", multiply<PtxLayout<16>, Type::kF16>},
    {"mma_m16n8k16_bf16", multiply<PtxLayout<16>, Type::kBf16>},
    {"mma_m16n8k8_f16", multiply<PtxLayout<8>, Type::kF16>},
    {"mma_m16n8k8_bf16", multiply<PtxLayout<8>, Type::kBf16>},
    {"mma_m16n8k8_tf32", multiply<PtxTf32Layout, Type::kTf32>},
};

}  // namespace sim
}  // namespace gconv
