// Matrix instructions of the simulated arch: names and register counts as on the device; sim_matrix.hpp has the lane layouts.
// An instruction that the arch lacks is not declared, so that its use does not compile.
#pragma once

namespace gconv {
namespace hw {

#define GCONV_SIM_MATRIX(name, op, d_regs, a_regs, b_regs)                                          \
  GCONV_DEVICE_INLINE void name(float (&d)[d_regs], const unsigned (&a)[a_regs], const unsigned (&b)[b_regs], \
                                int line = __builtin_LINE(), const char* file = __builtin_FILE()) { \
    sim::MatrixOperands operands = {d, a, b};                                                       \
    sim::collective(sim::op, &operands, {file, line});                                              \
  }

#if defined(GCONV_SIM_CDNA)
GCONV_SIM_MATRIX(mfma_16x16x16_f16, kMfma16x16x16F16, 4, 2, 2)
GCONV_SIM_MATRIX(mfma_32x32x8_f16, kMfma32x32x8F16, 16, 2, 2)
GCONV_SIM_MATRIX(mfma_16x16x4_f32, kMfma16x16x4F32, 4, 1, 1)
GCONV_SIM_MATRIX(mfma_32x32x2_f32, kMfma32x32x2F32, 16, 1, 1)
#if defined(__gfx908__)
GCONV_SIM_MATRIX(mfma_16x16x8_bf16, kMfma16x16x8Bf16, 4, 1, 1)
GCONV_SIM_MATRIX(mfma_32x32x4_bf16, kMfma32x32x4Bf16, 16, 1, 1)
#else
GCONV_SIM_MATRIX(mfma_16x16x16_bf16, kMfma16x16x16Bf16, 4, 2, 2)
GCONV_SIM_MATRIX(mfma_32x32x8_bf16, kMfma32x32x8Bf16, 16, 2, 2)
#endif
#if defined(__gfx950__)
GCONV_SIM_MATRIX(mfma_16x16x32_f16, kMfma16x16x32F16, 4, 4, 4)
GCONV_SIM_MATRIX(mfma_32x32x16_f16, kMfma32x32x16F16, 16, 4, 4)
GCONV_SIM_MATRIX(mfma_16x16x32_bf16, kMfma16x16x32Bf16, 4, 4, 4)
GCONV_SIM_MATRIX(mfma_32x32x16_bf16, kMfma32x32x16Bf16, 16, 4, 4)
#endif
#elif defined(GCONV_GFX11)
GCONV_SIM_MATRIX(wmma_16x16x16_f16, kWmmaGfx11F16, 8, 8, 8)
GCONV_SIM_MATRIX(wmma_16x16x16_bf16, kWmmaGfx11Bf16, 8, 8, 8)
#elif defined(GCONV_GFX12)
GCONV_SIM_MATRIX(wmma_16x16x16_f16, kWmmaGfx12F16, 8, 4, 4)
GCONV_SIM_MATRIX(wmma_16x16x16_bf16, kWmmaGfx12Bf16, 8, 4, 4)
#elif defined(GCONV_GFX1250)
GCONV_SIM_MATRIX(wmma_16x16x32_f16, kWmma16x16x32F16, 8, 8, 8)
GCONV_SIM_MATRIX(wmma_16x16x32_bf16, kWmma16x16x32Bf16, 8, 8, 8)
GCONV_SIM_MATRIX(wmma_16x16x4_f32, kWmma16x16x4F32, 8, 2, 2)
#elif defined(GCONV_SIM_SM)
GCONV_SIM_MATRIX(mma_m16n8k16_f16, kMma16x8x16F16, 4, 4, 2)
GCONV_SIM_MATRIX(mma_m16n8k16_bf16, kMma16x8x16Bf16, 4, 4, 2)
GCONV_SIM_MATRIX(mma_m16n8k8_f16, kMma16x8x8F16, 4, 2, 1)
GCONV_SIM_MATRIX(mma_m16n8k8_bf16, kMma16x8x8Bf16, 4, 2, 1)
GCONV_SIM_MATRIX(mma_m16n8k8_tf32, kMma16x8x8Tf32, 4, 4, 2)  // rounds its inputs to tf32
#endif
#undef GCONV_SIM_MATRIX

#if defined(GCONV_SIM_SM)
typedef const unsigned char* LdsAddress;
GCONV_DEVICE_INLINE LdsAddress lds_address(const void* p) { return (LdsAddress)p; }
GCONV_DEVICE_INLINE void ldmatrix(unsigned* r, const void* row, int matrices, bool transpose, sim::Site site) {
  sim::LdmatrixOperands operands = {{}, matrices, transpose, r};
  if (lane_id() < 8 * matrices) {  // the other lanes' addresses are not used
    sim::check_alignment(row, 16, site);
    for (int i = 0; i < 8; ++i) operands.row[i] = ((const unsigned short*)row)[i];
  }
  sim::collective(sim::kLdmatrix, &operands, site);
}
#define GCONV_SIM_LDMATRIX(name, matrices, transpose)                                                                  \
  GCONV_DEVICE_INLINE void name(unsigned (&r)[matrices], const void* row, int line = __builtin_LINE(),                 \
                                const char* file = __builtin_FILE()) {                                                 \
    ldmatrix(r, row, matrices, transpose, {file, line});                                                               \
  }
GCONV_SIM_LDMATRIX(ldmatrix_x1, 1, false)
GCONV_SIM_LDMATRIX(ldmatrix_x2, 2, false)
GCONV_SIM_LDMATRIX(ldmatrix_x4, 4, false)
GCONV_SIM_LDMATRIX(ldmatrix_x1_trans, 1, true)
GCONV_SIM_LDMATRIX(ldmatrix_x2_trans, 2, true)
GCONV_SIM_LDMATRIX(ldmatrix_x4_trans, 4, true)
#undef GCONV_SIM_LDMATRIX
#endif

}  // namespace hw
}  // namespace gconv
