// bwd_weight of wide groups on the warpgroup matrix instructions of sm_90a: rows are output channels, columns 64 input channels of one
// or several taps, and the reduction runs over output pixels.
//
// Pixels come as positions: one pixel of 8 images, 8 lines of 64 channels. A block walks over boxes of positions; for each box the bulk copy
// engine brings dy and the window of x around it into LDS once for all taps. Both operands lie across the reduction, which the instruction
// reads transposed; a tap is an offset into the window, and the taps of one instruction are blocks of columns at the distance of a
// tap. Boxes divide the images wherever a filter reaches over their edges, so that what lies outside is never multiplied but by zeros.
//
// The reduction is split over blocks along y, whose sums a second kernel adds up (kPartial).
//
// S states Filter, Dilation, kCg, kKg, Out, Epilogue, Mma, kTaps (of an instruction), kWarpgroups, kUnits (accumulators of each), what a block
// covers: kBlockK and kBlockC chunks of 64 channels, kBlockRows of the filter, kBlockRuns of kTaps taps in each; kBoxH, kBoxW positions,
// kStages, kPartial, kLds. Grid: x = block of (group, output channels, input channels, taps); y = split.
#pragma once

#include "wgmma_parts.hpp"

#if defined(GCONV_WGMMA)
namespace gconv {

template <class S>
struct WgmmaWeight {
  using Out = typename S::Out;
  using Mma = typename S::Mma;
  using F = typename S::Filter;
  using D = typename S::Dilation;
  static constexpr int kConsumers = S::kWarpgroups * 128, kThreads = kConsumers + 128, kN = Mma::N;
  static constexpr int kRuns = ceil_div(F::w, S::kTaps);  // of the filter's rows
  static constexpr int kTilesK = ceil_div(S::kKg, 64 * S::kBlockK), kTilesC = ceil_div(S::kCg, 64 * S::kBlockC);
  static constexpr int kTilesH = ceil_div(F::h, S::kBlockRows), kTilesW = ceil_div(kRuns, S::kBlockRuns);
  static_assert(S::kBlockK * S::kBlockC * S::kBlockRows * S::kBlockRuns == S::kWarpgroups * S::kUnits, "warpgroups share out the units");

  static constexpr int kPosition = 8 * kLine, kPositions = S::kBoxH * S::kBoxW, kPairs = (kPositions + 1) / 2;
  static constexpr int kWindowH = S::kBoxH + (S::kBlockRows - 1) * D::h, kWindowW = S::kBoxW + (S::kBlockRuns * S::kTaps - 1) * D::w;
  // A chunk of dy has an even number of positions: where the box has not, the last one stays zero.
  static constexpr int kChunkY = 2 * kPairs * kPosition, kChunkX = kWindowH * kWindowW * kPosition;
  static constexpr int kStageBytes = S::kBlockK * kChunkY + S::kBlockC * kChunkX;
  static constexpr int kArriving = S::kBlockK * kPositions * kPosition + S::kBlockC * kChunkX;
  static constexpr int kBarriersAt = S::kStages * kStageBytes, kSharedBytes = kBarriersAt + 2 * S::kStages * 8 + 1024;
  static_assert(kSharedBytes == S::kLds, "the lowering counts the same");

  struct Place {
    int group, k, c, ky, kx;
  };
  static GCONV_DEVICE Place place() {
    int b = hw::block_id_x(), w = b % kTilesW, h = b / kTilesW % kTilesH, rest = b / (kTilesW * kTilesH);
    return {rest / (kTilesC * kTilesK), rest / kTilesC % kTilesK * 64 * S::kBlockK, rest % kTilesC * 64 * S::kBlockC, h * S::kBlockRows, w * S::kBlockRuns * S::kTaps};
  }
  // The boxes of this split.
  struct Boxes {
    unsigned w, h, first, end;
    GCONV_DEVICE explicit Boxes(const ConvArgs& a) {
      w = (a.out[2] + S::kBoxW - 1) / S::kBoxW;
      h = (a.out[1] + S::kBoxH - 1) / S::kBoxH;
      unsigned long long all = (unsigned long long)w * h * ((a.N + 7) / 8), split = hw::block_id_y();
      first = (unsigned)(all * split / a.splits);
      end = (unsigned)(all * (split + 1) / a.splits);
    }
  };

  static GCONV_DEVICE void run(const ConvArgs& a, const hw::TensorMap& x, const hw::TensorMap& y) {
    GCONV_LDS(unsigned char, lds, kSharedBytes, 0);
    unsigned char* base = aligned_operands(lds);
    Barriers<S::kStages> barriers{(hw::Mbarrier*)(base + kBarriersAt)};
    if (hw::thread_id() == 0) {
      barriers.init(S::kWarpgroups * 4);
      hw::mbarrier_init_done();
    }
    if constexpr (kPositions % 2 != 0) clear_odd(base);
    hw::barrier();
    int wave = hw::uniform(hw::wave_id());
    if (wave >= S::kWarpgroups * 4) {
      hw::fewer_registers<S::kWarpgroups == 2 ? 40 : 32>();
      if (wave == S::kWarpgroups * 4) produce(a, x, y, base, barriers);
    } else {
      hw::more_registers<S::kWarpgroups == 2 ? 232 : 160>();
      consume(a, base, barriers, wave / 4);
    }
  }

 private:
  static GCONV_DEVICE void clear_odd(unsigned char* base) {
    for (int i = hw::thread_id(); i < S::kStages * S::kBlockK * kPosition / 8; i += kThreads) {
      int chunk = i / (kPosition / 8), at = i % (kPosition / 8) * 8;
      *(Raw<8>*)(base + chunk / S::kBlockK * kStageBytes + chunk % S::kBlockK * kChunkY + kPositions * kPosition + at) = {};
    }
    hw::async_fence();
  }

  static GCONV_DEVICE void produce(const ConvArgs& a, const hw::TensorMap& x, const hw::TensorMap& y, unsigned char* base, const Barriers<S::kStages>& barriers) {
    Boxes boxes(a);
    Place p = place();
    Ring<S::kStages> ring(barriers, 1);
    int n = (int)(boxes.first / (boxes.w * boxes.h)) * 8, h = (int)(boxes.first / boxes.w % boxes.h) * S::kBoxH;
    int w = (int)(boxes.first % boxes.w) * S::kBoxW;
    for (unsigned box = boxes.first; box < boxes.end; ++box, ring.next()) {
      hw::Mbarrier& full = ring.take(kArriving);
      unsigned char* at = base + ring.index * kStageBytes;
      if (hw::lane_id() == 0) {
        for (int k = 0; k < S::kBlockK; ++k) hw::load_box(at + k * kChunkY, y, full, p.k + k * 64, n, w, h, p.group);
        at += S::kBlockK * kChunkY;
        for (int c = 0; c < S::kBlockC; ++c)
          hw::load_box(at + c * kChunkX, x, full, p.c + c * 64, n, w + p.kx * D::w - a.pad[2], h + p.ky * D::h - a.pad[1], p.group);
      }
      if ((w += S::kBoxW) >= a.out[2]) {
        w = 0;
        if ((h += S::kBoxH) >= a.out[1]) {
          h = 0;
          n += 8;
        }
      }
    }
  }

  // Unit `u` of the block: its chunks and taps, counted from the block's first.
  struct Unit {
    int k, c, row, run;
  };
  static GCONV_DEVICE Unit unit(int u) {
    int run = u % S::kBlockRuns, row = u / S::kBlockRuns % S::kBlockRows, rest = u / (S::kBlockRuns * S::kBlockRows);
    return {rest / S::kBlockC, rest % S::kBlockC, row, run};
  }

  static GCONV_DEVICE void consume(const ConvArgs& a, unsigned char* base, const Barriers<S::kStages>& barriers, int group) {
    Boxes boxes(a);
    Ring<S::kStages> ring(barriers, 0);
    int first_unit = group * S::kUnits;
    unsigned at_y[S::kUnits], at_x[S::kUnits];
    GCONV_UNROLL
    for (int i = 0; i < S::kUnits; ++i) {
      Unit u = unit(first_unit + i);
      at_y[i] = u.k * kChunkY / 16;
      at_x[i] = (S::kBlockK * kChunkY + u.c * kChunkX + (u.row * D::h * kWindowW + u.run * S::kTaps * D::w) * kPosition) / 16;
    }
    float acc[S::kUnits][kN / 2];
    int accumulate = 0;
    for (unsigned box = boxes.first; box < boxes.end; ++box) {
      ring.wait();
      unsigned at = operand_low(base + ring.index * kStageBytes, D::w * kPosition);
      hw::wgmma_fence();
      int w = 0;
      unsigned row = 0;
      for (int pair = 0; pair < kPairs; ++pair) {
        // The second position is the next one of the row, the first of the next row, or (zeros in dy) the same again.
        int next = S::kBoxW % 2 == 0 || w + 1 < S::kBoxW ? 1 : pair + 1 < kPairs || kPositions % 2 == 0 ? kWindowW - S::kBoxW + 1 : 0;
        unsigned from_y = at + pair * (2 * kPosition / 16), from_x = at + (row + w) * (kPosition / 16);
        GCONV_UNROLL
        for (int i = 0; i < S::kUnits; ++i) Mma::run(acc[i], from_y + at_y[i], operand_high(kPosition), from_x + at_x[i], operand_high(next * kPosition), accumulate);
        accumulate = 1;
        w += 2;
        if (w >= S::kBoxW) {
          w -= S::kBoxW;
          row += kWindowW;
        }
      }
      hw::wgmma_commit();
      hw::wgmma_wait<1>();  // the products before these: what they read is free
      if (box > boxes.first) ring.give_before();
      ring.next();
    }
    hw::wgmma_wait<0>();
    GCONV_UNROLL
    for (int i = 0; i < S::kUnits; ++i) hw::wgmma_take(acc[i]);
    Place p = place();
    GCONV_UNROLL
    for (int i = 0; i < S::kUnits; ++i)
      GCONV_UNROLL
      for (int j = 0; j < kN / 8; ++j) {
        float sums[4];
        GCONV_UNROLL
        for (int e = 0; e < 4; ++e) sums[e] = accumulate != 0 ? acc[i][j * 4 + e] : 0.0f;
        store(a, p, unit(first_unit + i), j, sums);
      }
  }

  // Columns 8 j and on of a unit: two rows, two columns.
  static GCONV_DEVICE void store(const ConvArgs& a, const Place& p, const Unit& u, int j, const float (&sums)[4]) {
    int ky = p.ky + u.row, kx = p.kx + u.run * S::kTaps + j / 8, c = p.c + u.c * 64 + hw::lane_id() % 4 * 2 + j % 8 * 8;
    int k = p.k + u.k * 64 + hw::wave_id() % 4 * 16 + hw::lane_id() / 4;
    if (ky >= F::h || kx >= F::w || c >= S::kCg) return;
    if (k < S::kKg) put(a, p.group, k, ky, kx, c, sums[0], sums[1]);
    if (k + 8 < S::kKg) put(a, p.group, k + 8, ky, kx, c, sums[2], sums[3]);
  }
  // Two neighbouring elements.
  static GCONV_DEVICE void put(const ConvArgs& a, int g, int k, int ky, int kx, int c, float v0, float v1) {
    if constexpr (S::kPartial) {
      long long all = (long long)a.G * S::kKg * F::product * S::kCg;
      float* to = (float*)a.workspace + hw::block_id_y() * all + (((long long)g * S::kKg + k) * F::product + ky * F::w + kx) * S::kCg + c;
      to[0] = v0;
      to[1] = v1;
    } else {
      long long element = g * a.wv.g + k * a.wv.n + ky * a.wv.s[1] + kx * a.wv.s[2] + c;
      int channel = g * S::kKg + k;
      Out* to = (Out*)a.w + element;
      to[0] = from_float<Out>(S::Epilogue::apply(v0, a, channel, element));
      to[1] = from_float<Out>(S::Epilogue::apply(v1, a, channel, element + 1));
    }
  }
};

}  // namespace gconv
#endif
