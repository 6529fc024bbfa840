// The implicit GEMM kernel of all three directions: finds the block's place, runs the pipeline, stores.
//
// S, written by the lowering, holds the compile-time facts: kDirection, kAxes, Filter, Stride, Dilation, kCg, kKg, In, Out, Offset,
// Instruction, kM, kN, kK, kWavesM, kWavesN, kMerge, kVecA, kVecB, kVecC, kAlongKA, kAlongKB, kPartial, kShuffle, Prologue, Epilogue,
// kPadM, kPadK (false: no block reaches over this edge), kExplicit (1x1 filter on pixels at equal distances: row and k are pixel
// numbers), kSplitImage and kPieceRows, and what pipelines ask for.
// Grid: x = (tile of m * tiles of groups + tile of groups) * tiles of n + tile of n; y = stride phase * splits + split; z = piece of
// an image (split_image).
#pragma once

#include "async_loader.hpp"
#include "pieces.hpp"
#include "pipeline.hpp"
#include "reduce_splits.hpp"
#include "store.hpp"

namespace gconv {

// LDS elements of operand A: a tile of rows and k, or a window of pixels.
template <class S, class Shape, bool Windowed>
struct ElementsA {
  static constexpr int value = Shape::kElements;
};
template <class S, class Shape>
struct ElementsA<S, Shape, true> {
  static constexpr int value = Window<S>::kElements;
};

template <class S, template <class> class Pipeline>
struct ConvKernel {
  using In = typename S::In;
  using Offset = typename S::Offset;
  static constexpr bool kWeight = S::kDirection == kBwdWeight;
  static constexpr int kAxes = S::kExplicit ? 1 : S::kAxes;  // along which a pixel may lie outside
  static constexpr int kThreads = S::kWaveGroups * S::kWavesM * S::kWavesN * hw::kWave;
  static constexpr int kColumns = S::kDirection == kForward ? S::kKg : S::kDirection == kBwdData ? S::kCg : S::Filter::product * S::kCg;
  static constexpr int kTilesN = ceil_div(kColumns, S::kN);

  using ShapeA = LoaderShape<S, S::kM, S::kVecA, S::kAlongKA, !kWeight && S::kAlongKA, kWeight ? 1 : kAxes>;
  using ShapeB = LoaderShape<S, S::kN, S::kVecB, S::kAlongKB, false, kWeight ? kAxes : (S::kPack > 1 ? 2 : 1)>;
  static constexpr int kElementsA = ElementsA<S, ShapeA, S::kWindow>::value;
  using Lds = Tiles<In, kElementsA, kElementsA + ShapeB::kElements>;
  static constexpr int kTileBytes = max_of(Pipeline<S>::kLdsBuffers * Lds::kElements * (int)sizeof(In), Pipeline<S>::kScratchBytes);
  static constexpr int kSharedBytes = max_of(kTileBytes, Store<S, kTileBytes>::kShuffleBytes);
  // The number of steps where it is known at compile time, else 0.
  static constexpr int kChannels = S::kDirection == kForward ? S::kCg : S::kKg;
  static constexpr bool kStaticDepth = S::kDirection == kForward || (S::kDirection == kBwdData && S::Stride::product == 1);
  static constexpr int kStaticSteps = kStaticDepth && !S::kPartial ? ceil_div(S::Filter::product * kChannels, S::kK) : 0;

  static GCONV_DEVICE BlockPlace place_of(const ConvArgs& a) {
    BlockPlace b;
    unsigned x = (unsigned)hw::block_id_x(), y = (unsigned)hw::block_id_y();
    unsigned tile_groups = (unsigned)(a.G / (S::kMerge * S::kPack)), tile = x / kTilesN;
    b.n0 = (int)(x % kTilesN) * S::kN;
    b.group = (int)(tile % tile_groups) * S::kMerge;
    b.tile_m = tile / tile_groups;
    b.m0 = (long long)b.tile_m * S::kM;
    b.split = S::kPartial ? (int)(y % (unsigned)a.splits) : 0;
    int phase = S::kPartial ? (int)(y / (unsigned)a.splits) : (int)y;
    if constexpr (S::kDirection == kBwdData) {
      b.w = StepsW<S>::at(phase % S::Stride::w, a.pad[2], a.in[2]);
      b.h = StepsH<S>::at(phase / S::Stride::w % S::Stride::h, a.pad[1], a.in[1]);
      b.d = StepsD<S>::at(phase / (S::Stride::w * S::Stride::h), a.pad[0], a.in[0]);
    }
    if constexpr (kStaticSteps > 0) {
      b.step0 = 0;
      b.steps = kStaticSteps;
    } else {
      find_steps(a, b);
    }
    return b;
  }

  // The steps of this block's split. A window step is kK deep too: all taps of a chunk of channels.
  static GCONV_DEVICE void find_steps(const ConvArgs& a, BlockPlace& b) {
    long long depth = S::kDirection == kForward   ? (long long)S::Filter::product * S::kCg
                      : S::kDirection == kBwdData ? (long long)b.d.taps * b.h.taps * b.w.taps * S::kKg
                                                  : (long long)a.N * a.out[0] * a.out[1] * a.out[2];
    long long steps = (depth + S::kK - 1) / S::kK, first = 0, mine = steps;
    if constexpr (S::kPartial) {
      long long per_split = (steps + a.splits - 1) / a.splits;
      first = b.split * per_split;
      mine = min_of(steps - first, per_split);
    }
    b.steps = mine > 0 ? (int)mine : 0;
    b.step0 = kWeight ? 0 : (int)first;  // a chunk of pixels counts its steps from its own start
    b.k0 = first * S::kK;
  }

  // Blocks past the rows of their stride phase or piece have nothing to do.
  static GCONV_DEVICE bool idle(const ConvArgs& a, const BlockPlace& b) {
    if constexpr (S::kWindow) return S::kSplitImage && box_of_tile<S>(b.tile_m, S::kDirection == kForward ? a.out : a.in).n >= a.N;
    else if constexpr (S::kDirection == kBwdData) return b.m0 >= (long long)a.N * b.d.count * b.h.count * b.w.count;
    else return S::kSplitImage && b.m0 >= (long long)a.N * a.out[0] * a.out[1] * a.out[2];
  }

  template <class LoaderA, class LoaderB>
  static GCONV_DEVICE void compute(const ConvArgs& a, const BlockPlace& b, const BoxOrigin& box, const typename LoaderA::Operand& operand_a,
                                   const typename LoaderB::Operand& operand_b) {
    GCONV_LDS(unsigned char, lds, kSharedBytes, 0);
    GCONV_LDS(Offset, table, S::kM, ceil_div(kSharedBytes, 16) * 16);
    ResultPlace<S> place(a, b, box);
    Store<S, kTileBytes>::place_rows(place, table);
    WaveGemm<S> gemm;
    TileMover<LoaderA, LoaderB, Lds> mover(operand_a, operand_b);
    if (b.steps > 0) Pipeline<S>::run(mover, Lds{(In*)lds}, b.step0, b.step0 + b.steps, gemm);  // an empty reduction leaves zeros
    hw::barrier();  // the table is written, the tiles are read
    Store<S, kTileBytes>::run(gemm, place, table, lds);
  }
  template <class Shape, class Operand>
  using RowsOf = typename AsyncLoaderOf<S, Shape, Operand, S::kAsync && CanCopyDirectly<S, Shape, Operand>::value>::type;
  template <class OperandA, class OperandB>
  static GCONV_DEVICE void compute_rows(const ConvArgs& a, const BlockPlace& b) {
    compute<RowsOf<ShapeA, OperandA>, RowsOf<ShapeB, OperandB>>(a, b, BoxOrigin(), OperandA(a, b), OperandB(a, b));
  }
  template <class OperandB>
  static GCONV_DEVICE void compute_window(const ConvArgs& a, const BlockPlace& b) {
    BoxOrigin box = box_of_tile<S>(b.tile_m, S::kDirection == kForward ? a.out : a.in);
    compute<WindowLoader<S>, RowLoader<ShapeB, OperandB>>(a, b, box, WindowOperand<S>(a, b, box), OperandB(a, b));
  }

  static GCONV_DEVICE void run(const ConvArgs& a) {
    if constexpr (S::kSplitImage) {
      long long result0;
      ConvArgs piece = piece_of_image<S>(a, hw::block_id_z(), result0);
      run_piece(piece, result0);
    } else {
      run_piece(a, 0);
    }
  }
  static GCONV_DEVICE void run_piece(const ConvArgs& a, long long result0) {
    BlockPlace b = place_of(a);
    b.result0 = result0;
    if (idle(a, b)) return;
    if constexpr (S::kDirection == kForward && S::kWindow) compute_window<ForwardW<S>>(a, b);
    else if constexpr (S::kDirection == kForward) compute_rows<ForwardX<S>, ForwardW<S>>(a, b);
    else if constexpr (S::kDirection == kBwdData && S::kWindow) compute_window<BwdDataW<S>>(a, b);
    else if constexpr (S::kDirection == kBwdData) compute_rows<BwdDataDy<S>, BwdDataW<S>>(a, b);
    else compute_rows<BwdWeightDy<S>, BwdWeightX<S>>(a, b);
  }
};

}  // namespace gconv
