// The second kernel of bwd_weight by rows: adds up the pieces that the blocks of the first have left, in a fixed order.
#pragma once

#include "conv_operands.hpp"

namespace gconv {

// Pieces are (tap, output channel, input channel of its group) in float. kVectors threads side by side take four elements each; kLanes
// such rows share out the pieces, and their sums are added as a tree. S states Filter, kCg, kKg, kLanes, kCluster, Out, Epilogue.
template <class S>
struct ReduceTaps {
  static constexpr int kThreads = 256, kVectors = kThreads / S::kLanes, kTaps = S::Filter::product;
  struct alignas(16) Four {
    float at[4];
  };

  static GCONV_DEVICE void run(const ConvArgs& a) {
    GCONV_LDS(Four, shared, kThreads, 0);
    int channels = a.G * S::kKg, vectors = channels * S::kCg / 4 * kTaps;
    int lane = hw::thread_id() / kVectors, vector = hw::block_id_x() * kVectors + hw::thread_id() % kVectors;
    int pieces = a.splits / S::kCluster;
    Four sum = {};
    hw::wait_for_launches();
    if (vector < vectors) {
      const Four* from = (const Four*)a.workspace + vector;
      for (int piece = lane; piece < pieces; piece += S::kLanes) add(sum, from[(long long)piece * vectors]);
    }
    if constexpr (S::kLanes > 1) {
      shared[hw::thread_id()] = sum;
      GCONV_UNROLL
      for (int half = S::kLanes / 2; half > 0; half /= 2) {
        hw::barrier();
        if (lane >= half) continue;
        add(sum, shared[hw::thread_id() + half * kVectors]);
        shared[hw::thread_id()] = sum;
      }
    }
    if (lane == 0 && vector < vectors) finish(a, vector * 4, channels, sum);
  }

 private:
  static GCONV_DEVICE void add(Four& sum, const Four& more) {
    GCONV_UNROLL
    for (int i = 0; i < 4; ++i) sum.at[i] += more.at[i];
  }
  static GCONV_DEVICE void finish(const ConvArgs& a, int first, int channels, const Four& sum) {
    GCONV_UNROLL
    for (int i = 0; i < 4; ++i) {
      unsigned element = (unsigned)(first + i), c = element % S::kCg, of_tap = element / S::kCg;
      unsigned tap = of_tap / (unsigned)channels, out = of_tap - tap * (unsigned)channels;
      unsigned w = tap % S::Filter::w, h = tap / S::Filter::w % S::Filter::h, d = tap / (S::Filter::h * S::Filter::w);
      long long at = out % S::kKg * a.wv.n + out / S::kKg * a.wv.g + d * a.wv.s[0] + h * a.wv.s[1] + w * a.wv.s[2] + c * a.wv.c;
      ((typename S::Out*)a.w)[at] = from_float<typename S::Out>(S::Epilogue::apply(sum.at[i], a, (int)out, at));
    }
  }
};

}  // namespace gconv
