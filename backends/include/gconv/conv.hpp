// The implicit GEMM kernel of all three directions: finds the block's place, runs the pipeline, stores.
//
// S, written by the lowering, holds the compile-time facts: kDirection, kAxes, Filter, Stride, Dilation, kCg, kKg, In, Out, Offset,
// Instruction, kM, kN, kK, kWavesM, kWavesN, kMerge, kVecA, kVecB, kVecC, kAlongKA, kAlongKB, kPartial, kShuffle, Prologue, Epilogue.
// Grid: x = (tile of m * tiles of groups + tile of groups) * tiles of n + tile of n; y = stride phase * splits + split.
#pragma once

#include "async_loader.hpp"
#include "pipeline.hpp"
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
  static constexpr int kThreads = S::kWaveGroups * S::kWavesM * S::kWavesN * hw::kWave;
  static constexpr int kColumns = S::kDirection == kForward ? S::kKg : S::kDirection == kBwdData ? S::kCg : S::Filter::product * S::kCg;
  static constexpr int kTilesN = ceil_div(kColumns, S::kN);

  using ShapeA = LoaderShape<S, S::kM, S::kVecA, S::kAlongKA, !kWeight && S::kAlongKA, kWeight ? 1 : S::kAxes>;
  using ShapeB = LoaderShape<S, S::kN, S::kVecB, S::kAlongKB, false, kWeight ? S::kAxes : 1>;
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
    unsigned tile_groups = (unsigned)(a.G / S::kMerge), tile = x / kTilesN;
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

  // Blocks past the rows of their stride phase have nothing to do.
  static GCONV_DEVICE bool idle(const ConvArgs& a, const BlockPlace& b) {
    if constexpr (S::kDirection == kBwdData && !S::kWindow) return b.m0 >= (long long)a.N * b.d.count * b.h.count * b.w.count;
    else return false;
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
    BlockPlace b = place_of(a);
    if (idle(a, b)) return;
    if constexpr (S::kDirection == kForward && S::kWindow) compute_window<ForwardW<S>>(a, b);
    else if constexpr (S::kDirection == kForward) compute_rows<ForwardX<S>, ForwardW<S>>(a, b);
    else if constexpr (S::kDirection == kBwdData && S::kWindow) compute_window<BwdDataW<S>>(a, b);
    else if constexpr (S::kDirection == kBwdData) compute_rows<BwdDataDy<S>, BwdDataW<S>>(a, b);
    else compute_rows<BwdWeightDy<S>, BwdWeightX<S>>(a, b);
  }
};

// Sums the splits of the reduction in order and finishes each element. One thread an element of the dense result.
template <class S>
struct ReduceSplits {
  static constexpr int kThreads = 256;
  static GCONV_DEVICE void run(const ConvArgs& a) {
    constexpr bool weight = S::kDirection == kBwdWeight;
    constexpr int channels = S::kDirection == kForward ? S::kKg : S::kCg;
    const int filter[3] = {S::Filter::d, S::Filter::h, S::Filter::w};
    const int* s = weight ? filter : S::kDirection == kForward ? a.out : a.in;
    const TensorView& view = weight ? a.wv : S::kDirection == kForward ? a.yv : a.xv;
    long long pixels = (long long)s[0] * s[1] * s[2], total = pixels * channels * a.G * (weight ? S::kKg : a.N);
    long long i = ((long long)hw::block_id_y() * 65536 + hw::block_id_x()) * kThreads + hw::thread_id();
    if (i >= total) return;
    float sum = 0.0f;
    for (int split = 0; split < a.splits; ++split) sum += ((const float*)a.workspace)[split * total + i];
    // Dense order is (G, Kg, spatial, Cg) for w and (N, spatial, G, channels) for x and y.
    long long c = i % channels, rest = i / channels, g = 0, n;
    if (!weight) {
      g = rest % a.G;
      rest /= a.G;
    }
    long long w = rest % s[2], h = rest / s[2] % s[1], d = rest / ((long long)s[2] * s[1]) % s[0];
    n = rest / pixels;
    if (weight) {
      g = n / S::kKg;
      n %= S::kKg;
    }
    long long element = n * view.n + g * view.g + d * view.s[0] + h * view.s[1] + w * view.s[2] + c * view.c;
    int channel = (int)(weight ? g * S::kKg + n : g * channels + c);
    void* tensor = weight ? a.w : S::kDirection == kForward ? a.y : a.x;
    ((typename S::Out*)tensor)[element] = from_float<typename S::Out>(S::Epilogue::apply(sum, a, channel, element));
  }
};

}  // namespace gconv
