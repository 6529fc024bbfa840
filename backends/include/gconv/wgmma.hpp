// Convolution of wide groups on the warpgroup matrix instructions of sm_90a: forward, and bwd_data with stride 1.
//
// An implicit GEMM without index arithmetic: rows are result pixels, columns result channels, and the reduction runs over chunks of 64
// source channels and all taps. The bulk copy engine brings the window of source pixels that a block's results need into LDS once
// for each chunk (zeros outside the image are the padding); a tap is an offset into the window. Its 16-byte pieces are swizzled
// within lines of 128 bytes, one pixel each, by address, so that any line may be the first of an operand.
//
// 64 rows of an instruction are 8 runs of 8 lines. Runs lie kRunStep pixels apart: 8 x 8 pixels of an image, 64 pixels of a row, or, with
// images as the innermost axis of the window, 8 pixels of a row in 8 images.
//
// One producer warp fills two rings, of windows and of weights (64 channels of one tap each); warpgroups multiply and store. Blocks are
// persistent (a.splits of them): block b takes its share of the tiles, ordered (group, tile of columns, tile of pixels), and keeps the weights in LDS
// where all of them fit (kResident).
//
// S states kDirection, Filter, Dilation, kCg, kKg, In, Out, Epilogue, Mma, kWarpgroups, kTiles (of 64 rows, each warpgroup), Tile and Count
// (Int3 of images, rows, columns: pixels of such a tile, tiles of a block), kImagesFirst, kLikeY, kPiece (pixels along w that one copy
// brings), kWindows and kWeights (stages of the rings), kResident, kLds.
#pragma once

#include "wgmma_parts.hpp"

#if defined(GCONV_WGMMA)
namespace gconv {

template <class S>
struct WgmmaConv {
  using In = typename S::In;
  using Out = typename S::Out;
  using Mma = typename S::Mma;
  using F = typename S::Filter;
  using D = typename S::Dilation;
  using Tile = typename S::Tile;
  using Count = typename S::Count;
  static constexpr bool kFlip = S::kDirection == kBwdData;
  static constexpr int kDepth = kFlip ? S::kKg : S::kCg, kColumns = kFlip ? S::kCg : S::kKg;
  static constexpr int kN = Mma::N, kTilesN = ceil_div(kColumns, kN), kTaps = F::product;
  static constexpr int kChunks = ceil_div(kDepth, kChunk), kSteps = kChunk / 16;
  static constexpr int kLastSteps = ceil_div(kDepth - (kChunks - 1) * kChunk, 16);
  static constexpr int kConsumers = S::kWarpgroups * 128, kThreads = kConsumers + 128;

  // Pixels of a block and of its window, along n, h, w; distances in the window.
  using Block = Int3<Tile::d * Count::d, Tile::h * Count::h, Tile::w * Count::w>;
  static constexpr int kPieces = ceil_div(Block::w + (F::w - 1) * D::w, S::kPiece);
  static constexpr int kWindowW = kPieces * S::kPiece, kWindowH = Block::h + (F::h - 1) * D::h;
  static constexpr int kStepN = S::kImagesFirst ? 1 : kWindowW * kWindowH, kStepW = S::kImagesFirst ? Block::d : 1;
  static constexpr int kStepH = kStepW * kWindowW;
  static constexpr int kRunStep = S::kImagesFirst ? kStepW : Tile::h > 1 ? kStepH : 8;
  static constexpr int kWindowBytes = Block::d * kWindowH * kWindowW * kLine, kWindowStride = (kWindowBytes + 1023) / 1024 * 1024;
  static_assert(Tile::product == 64 && Count::product == S::kWarpgroups * S::kTiles, "warpgroups share out whole tiles of 64 rows");
  static_assert(kPieces == 1 || (kWindowH == 1 && Block::d == 1 && S::kPiece % 8 == 0), "pieces of a row follow one another");

  // A stage of weights: forward kN lines of 64 input channels; bwd_data 64 lines of 64 columns, for each 64 columns.
  static constexpr int kWeightBoxes = kFlip ? ceil_div(kN, kChunk) : 1, kWeightBytes = kFlip ? kWeightBoxes * 64 * kLine : kN * kLine;
  static constexpr int kStages = S::kResident ? kChunks * kTaps : S::kWeights;
  static constexpr int kWeightsAt = S::kWindows * kWindowStride, kStagingAt = kWeightsAt + kStages * kWeightBytes;
  using Stored = WgmmaStore<S, kN, kColumns>;
  static constexpr int kBarriersAt = kStagingAt + S::kWarpgroups * 4 * Stored::kBytes;
  static constexpr int kSharedBytes = kBarriersAt + 2 * (S::kWindows + kStages) * 8 + 1024;  // the start is rounded up
  static_assert(kSharedBytes == S::kLds, "the lowering counts the same");

  // Which block of results comes next: they are walked along w, h, n, columns, groups.
  struct Walk {
    int width, height, images;
    int group, column, n, h, w;
    int weights = 0;  // counts the changes of weights
    unsigned left;    // how many are still to come

    GCONV_DEVICE explicit Walk(const ConvArgs& a) : width((kFlip ? a.in : a.out)[2]), height((kFlip ? a.in : a.out)[1]), images(a.N) {
      unsigned across = (width + Block::w - 1) / Block::w, down = (height + Block::h - 1) / Block::h;
      unsigned pixels = across * down * ((images + Block::d - 1) / Block::d);
      unsigned long long all = (unsigned long long)pixels * a.G * kTilesN, block = hw::block_id_x(), blocks = a.splits;
      unsigned first = (unsigned)(all * block / blocks), q = first / pixels, p = first % pixels;
      left = (unsigned)(all * (block + 1) / blocks) - first;
      group = (int)(q / kTilesN);
      column = (int)(q % kTilesN) * kN;
      n = (int)(p / (across * down)) * Block::d;
      h = (int)(p / across % down) * Block::h;
      w = (int)(p % across) * Block::w;
    }
    GCONV_DEVICE void next() {
      --left;
      if ((w += Block::w) < width) return;
      w = 0;
      if ((h += Block::h) < height) return;
      h = 0;
      if ((n += Block::d) < images) return;
      n = 0;
      ++weights;
      if ((column += kN) < kColumns) return;
      column = 0;
      ++group;
    }
  };

  struct Lds {
    unsigned char* base;
    GCONV_DEVICE Lds() {
      GCONV_LDS(unsigned char, lds, kSharedBytes, 0);
      base = aligned_operands(lds);
    }
    GCONV_DEVICE unsigned char* window(int stage) const { return base + stage * kWindowStride; }
    GCONV_DEVICE unsigned char* weights(int stage) const { return base + kWeightsAt + stage * kWeightBytes; }
    GCONV_DEVICE unsigned char* staging(int wave) const { return base + kStagingAt + wave * Stored::kBytes; }
    GCONV_DEVICE Barriers<S::kWindows> windows() const { return {(hw::Mbarrier*)(base + kBarriersAt)}; }
    GCONV_DEVICE Barriers<kStages> weight_stages() const { return {windows().base + 2 * S::kWindows}; }
  };

  static GCONV_DEVICE void run(const ConvArgs& a, const hw::TensorMap& source, const hw::TensorMap& weights) {
    Lds lds;
    if (hw::thread_id() == 0) {
      lds.windows().init(S::kWarpgroups * 4);
      lds.weight_stages().init(S::kWarpgroups * 4);
      hw::mbarrier_init_done();
    }
    hw::barrier();
    int wave = hw::uniform(hw::wave_id());
    if (wave >= S::kWarpgroups * 4) {
      hw::fewer_registers<S::kWarpgroups == 2 ? 40 : 32>();
      if (wave == S::kWarpgroups * 4) produce(a, source, weights, lds);
    } else {
      hw::more_registers<S::kWarpgroups == 2 ? 232 : 160>();
      consume(a, lds, wave);
    }
  }

 private:
  static GCONV_DEVICE void produce(const ConvArgs& a, const hw::TensorMap& source, const hw::TensorMap& weights, const Lds& lds) {
    Ring<S::kWindows> window(lds.windows(), 1);
    Ring<kStages> stage(lds.weight_stages(), 1);
    int have = -1, pad_h = kFlip ? (F::h - 1) * D::h - a.pad[1] : a.pad[1], pad_w = kFlip ? (F::w - 1) * D::w - a.pad[2] : a.pad[2];
    for (Walk p(a); p.left > 0; p.next()) {
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        hw::Mbarrier& full = window.take(kWindowBytes);
        for (int piece = 0; piece < kPieces && hw::lane_id() == 0; ++piece) {
          unsigned char* to = lds.window(window.index) + piece * S::kPiece * kLine;
          int w = p.w - pad_w + piece * S::kPiece, h = p.h - pad_h;
          if constexpr (S::kImagesFirst) hw::load_box(to, source, full, chunk * kChunk, p.n, w, h, p.group);
          else hw::load_box(to, source, full, chunk * kChunk, w, h, p.n, p.group);
        }
        window.next();
        if (S::kResident && have == p.weights) continue;
        for (int tap = 0; tap < kTaps; ++tap, stage.next()) {
          hw::Mbarrier& loaded = stage.take(kWeightBytes);
          int tap_w = kFlip ? kTaps - 1 - tap : tap;
          for (int box = 0; box < kWeightBoxes && hw::lane_id() == 0; ++box) {
            unsigned char* to = lds.weights(stage.index) + box * 64 * kLine;
            if constexpr (kFlip) hw::load_box(to, weights, loaded, p.column + box * kChunk, tap_w, chunk * kChunk, p.group);
            else hw::load_box(to, weights, loaded, chunk * kChunk, tap_w, p.column, p.group);
          }
        }
      }
      have = p.weights;
    }
  }

  // Pixels from the window's start to the first row of a tile of 64.
  static GCONV_DEVICE int tile_offset(int tile) {
    int w = tile % Count::w, h = tile / Count::w % Count::h, n = tile / (Count::w * Count::h);
    return w * Tile::w * kStepW + h * Tile::h * kStepH + n * Tile::d * kStepN;
  }

  static GCONV_DEVICE void consume(const ConvArgs& a, const Lds& lds, int wave) {
    Ring<S::kWindows> window(lds.windows(), 0);
    Ring<kStages> stage(lds.weight_stages(), 0);
    Stored stored(a, kFlip ? a.x : a.y, kFlip ? a.xv : a.yv, lds.staging(wave), wave);
    int have = -1, group = wave / 4;
    unsigned offset[S::kTiles];
    GCONV_UNROLL
    for (int t = 0; t < S::kTiles; ++t) offset[t] = tile_offset(group * S::kTiles + t) * (kLine / 16);
    for (Walk p(a); p.left > 0; p.next()) {
      bool fresh = !S::kResident || have != p.weights;  // else the weights are there
      if (!fresh) stage.again();
      else if (S::kResident && have >= 0) stage.give_all();  // the tiles before have read the old weights
      have = p.weights;
      float acc[S::kTiles][kN / 2];
      multiply(lds, window, stage, offset, fresh, acc);
      store(a, p, group * S::kTiles, acc, stored);
    }
  }

  // The products of a tile. All their operands have been given back at the end.
  static GCONV_DEVICE void multiply(const Lds& lds, Ring<S::kWindows>& window, Ring<kStages>& stage, const unsigned (&offset)[S::kTiles], bool fresh,
                                    float (&acc)[S::kTiles][kN / 2]) {
    constexpr int kStepWeights = kFlip ? 16 * kLine : 32, kBlockWeights = kFlip ? 64 * kLine : 16;  // bytes of 16 channels, of 64 columns
    int accumulate = 0;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      window.wait();
      int steps = kLastSteps == kSteps || chunk + 1 < kChunks ? kSteps : kLastSteps;
      unsigned at_window = operand_low(lds.window(window.index));
      int tap = 0;
      for (int ky = 0; ky < F::h; ++ky)
        for (int kx = 0; kx < F::w; ++kx, ++tap) {
          if (fresh) stage.wait();
          unsigned from = at_window + (ky * D::h * kStepH + kx * D::w * kStepW) * (kLine / 16);
          unsigned at_weights = operand_low(lds.weights(stage.index), kBlockWeights);
          hw::wgmma_fence();
          GCONV_UNROLL
          for (int step = 0; step < kSteps; ++step) {
            if (kLastSteps < kSteps && step >= steps) break;
            GCONV_UNROLL
            for (int t = 0; t < S::kTiles; ++t)
              Mma::run(acc[t], from + offset[t] + step * 2, operand_high(kRunStep * kLine), at_weights + step * (kStepWeights / 16),
                       operand_high(8 * kLine), accumulate);
            accumulate = 1;
          }
          hw::wgmma_commit();
          hw::wgmma_wait<1>();  // the products before these: what they read is free
          if (tap > 0 || chunk > 0) {
            if (!S::kResident) stage.give_before();
            if (tap == 0) window.give_before();
          }
          stage.next();
        }
      window.next();
    }
    hw::wgmma_wait<0>();
    GCONV_UNROLL
    for (int t = 0; t < S::kTiles; ++t) hw::wgmma_take(acc[t]);
    if (!S::kResident) stage.give_before();
    window.give_before();
  }

  static GCONV_DEVICE void store(const ConvArgs& a, const Walk& p, int tile, const float (&acc)[S::kTiles][kN / 2], const Stored& stored) {
    const TensorView& view = kFlip ? a.xv : a.yv;
    GCONV_UNROLL
    for (int t = 0; t < S::kTiles; ++t, ++tile) {
      int n = p.n + tile / (Count::w * Count::h) * Tile::d, h = p.h + tile / Count::w % Count::h * Tile::h, w = p.w + tile % Count::w * Tile::w;
      const int left[3] = {p.images - n, p.height - h, p.width - w};
      if (left[0] <= 0 || left[1] <= 0 || left[2] <= 0) continue;
      long long first = n * view.n + h * view.s[1] + w * view.s[2] + p.group * view.g + p.column;
      stored.run(acc[t], first, left, p.group * kColumns + p.column, kColumns - p.column);
    }
  }
};

}  // namespace gconv
#endif
