// The second kernel of a split bwd_weight whose result is dense: adds the pieces up, four elements a thread, kLanes threads for each
// element, each with every kLanes-th piece; their sums are added in order. The order depends on the number of pieces only.
//
// S states Out, kKg, kCg, Filter, Epilogue, kLanes.
#pragma once

#include "conv_operands.hpp"

namespace gconv {

template <class S>
struct ReducePieces {
  static constexpr int kThreads = 256, kColumns = kThreads / S::kLanes;  // of four elements
  static constexpr int kBatch = 8;  // loads in flight

  static GCONV_DEVICE void run(const ConvArgs& a) {
    GCONV_LDS(float, sums, 4 * kThreads, 0);
    long long total = (long long)a.G * S::kKg * S::Filter::product * S::kCg;
    int column = hw::thread_id() % kColumns, lane = hw::thread_id() / kColumns;
    long long i = ((long long)hw::block_id_x() * kColumns + column) * 4;
    float sum[4] = {};
    if (i < total) {
      const float* from = (const float*)a.workspace + i;
      int piece = lane, pieces = a.splits;
      for (; piece + (kBatch - 1) * S::kLanes < pieces; piece += kBatch * S::kLanes) add<kBatch>(from, piece, total, sum);
      for (; piece < pieces; piece += S::kLanes) add<1>(from, piece, total, sum);
    }
    if constexpr (S::kLanes > 1) {
      *(Raw<16>*)(sums + hw::thread_id() * 4) = *(const Raw<16>*)sum;
      hw::barrier();
      if (lane > 0) return;
      GCONV_UNROLL
      for (int l = 1; l < S::kLanes; ++l) {
        GCONV_UNROLL
        for (int e = 0; e < 4; ++e) sum[e] += sums[(l * kColumns + column) * 4 + e];
      }
    }
    if (i < total) store(a, i, sum);
  }

 private:
  template <int Count>
  static GCONV_DEVICE void add(const float* from, int piece, long long total, float (&sum)[4]) {
    Raw<16> raw[Count];
    GCONV_UNROLL
    for (int i = 0; i < Count; ++i) raw[i] = *(const Raw<16>*)(from + (piece + i * S::kLanes) * total);
    GCONV_UNROLL
    for (int i = 0; i < Count; ++i)
      GCONV_UNROLL
      for (int e = 0; e < 4; ++e) sum[e] += ((const float*)&raw[i])[e];
  }
  // Four neighbouring elements: S::kCg is a multiple of four.
  static GCONV_DEVICE void store(const ConvArgs& a, long long i, const float (&sum)[4]) {
    using Out = typename S::Out;
    int channel = (int)(i / (S::Filter::product * S::kCg)), rest = (int)(i % (S::Filter::product * S::kCg));
    int tap = rest / S::kCg, c = rest % S::kCg, h = tap / S::Filter::w, w = tap % S::Filter::w;
    long long element = channel / S::kKg * a.wv.g + channel % S::kKg * a.wv.n + h * a.wv.s[1] + w * a.wv.s[2] + c;
    Raw<4 * (int)sizeof(Out)> raw;
    GCONV_UNROLL
    for (int e = 0; e < 4; ++e) ((Out*)&raw)[e] = from_float<Out>(S::Epilogue::apply(sum[e], a, channel, element + e));
    *(Raw<4 * (int)sizeof(Out)>*)((Out*)a.w + element) = raw;
  }
};

}  // namespace gconv
