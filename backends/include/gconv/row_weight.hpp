// bwd_weight of narrow groups and of depthwise convolution, row by row, on the copy engine: rows of x and dy are brought into a ring in
// LDS, as they lie in memory; the waves multiply them on the matrix unit with pixels along k, reading both across pixels (transposed).
// The dy rows that a row of x can meet stay in registers, so that each row is read from LDS once for each tap along w, and the sums of
// all taps stay in registers while the block walks over its share of rows. Each block writes its sums to its piece of the workspace;
// ReduceTaps adds the pieces in order.
//
// Groups of 16 and 32 channels: a tile of the instruction is 16 output and 8 input channels of one group, one tap. Narrower groups: it
// is 8 output channels at two taps of a column of the filter (or two planes) and the same 8 input channels, of which the blocks on the
// diagonal are results.
//
// S states kAxes, Filter, Stride (h, w: 1 or 2; d: 1), kCg (= Kg), kChannels of a block, kChunks of 8 channels that a wave takes of each
// tensor, kImages and kHalves (runs of 8 output pixels along w) of a row, kPitch (pixels of a row of x in LDS, a multiple of 8), kRing
// stages, kCluster blocks that add up their sums, kFinish (nothing is left to be added up then), In, Out, Epilogue, Instruction.
#pragma once

#include "conv_operands.hpp"
#include "copy_engine.hpp"
#include "fragment.hpp"

namespace gconv {

#if defined(GCONV_COPY_ENGINE)

// Where the stages of a block are: a walk along the output rows of a range, split where an image (or plane, or column of tiles) ends.
template <class S>
struct RowWalk {
  using F = typename S::Filter;
  using St = typename S::Stride;
  static constexpr int kWidth = S::kHalves * 8, kReach = (F::h - 1) / St::h;  // dy rows above its own that a row of x can meet
  int rows_left;                                   // of the range, behind this segment
  int image, depth, column, first, end;            // the segment: output rows [first, end)
  int stage, last;                                 // its next stage and its last one

  // The rows of `count` shares from `share` on.
  GCONV_DEVICE void begin(const ConvArgs& a, int share, int count) {
    int of = (a.out[2] + kWidth - 1) / kWidth, total = (a.N + S::kImages - 1) / S::kImages * of * a.in[0] * a.out[1];
    int each = (total + a.splits - 1) / a.splits, row = share * each, unit = row / a.out[1];
    rows_left = min_of(count * each, total - row);
    first = row - unit * a.out[1];
    column = unit % of * kWidth;
    unit /= of;
    depth = S::kAxes < 3 ? 0 : unit % a.in[0];
    image = (S::kAxes < 3 ? unit : unit / a.in[0]) * S::kImages;
    open(a);
  }
  // Stage j brings dy row j and the rows of x that start at j * stride - pad; later ones lie below the image.
  GCONV_DEVICE void open(const ConvArgs& a) {
    end = min_of(a.out[1], first + rows_left);
    rows_left -= end - first;
    stage = first;
    last = min_of(end - 1 + kReach, (a.in[1] - 1 + a.pad[1]) / St::h);
  }
  GCONV_DEVICE bool more() const { return end > first; }
  GCONV_DEVICE void next(const ConvArgs& a) {
    ++stage;
    while (stage > last && more()) {
      first = 0;
      column += kWidth;
      if (column >= a.out[2]) {
        column = 0;
        if (S::kAxes < 3 || ++depth == a.in[0]) {
          depth = 0;
          image += S::kImages;
        }
      }
      open(a);
    }
  }
};

template <class S>
struct RowWeight {
  using In = typename S::In;
  using I = typename S::Instruction;
  using F = typename S::Filter;
  using St = typename S::Stride;
  using Walk = RowWalk<S>;
  static constexpr bool kWide = S::kCg > 8;
  static constexpr int kBytes = S::kChannels * (int)sizeof(In);  // of a pixel in LDS, which is also the length of the swizzle
  static constexpr int kSlices = S::kChannels / (kWide ? 16 : 8 * S::kChunks), kTilesC = kWide ? S::kCg / 16 : 1;
  static constexpr int kWaves = kSlices * kTilesC, kThreads = kWaves * hw::kWave;
  static constexpr int kRowX = S::kPitch * kBytes, kBytesX = S::kImages * St::h * kRowX;
  static constexpr int kImageY = S::kHalves * 8 * kBytes, kBytesY = S::kImages * kImageY;
  static constexpr int kStage = kBytesX + F::d * kBytesY;
  static constexpr int kBars = S::kRing * kStage;  // the ring, then its barriers
  static constexpr int kRuns = S::kImages * S::kHalves, kLoadRuns = 4 / S::kChunks, kLoads = ceil_div(kRuns, kLoadRuns);
  static constexpr int kPhases = min_of(F::w, 8);
  static constexpr int kReach = Walk::kReach, kWindow = kReach + 1;  // dy rows of one plane in registers
#if defined(GCONV_CLUSTERS)
  static constexpr int kTogether = 1;  // shares of the rows that a block does
#else
  static constexpr int kTogether = S::kCluster;
#endif
  static_assert(!kWide || S::kChunks == 2, "a wave takes 16 channels of wide groups");
  static_assert(kStage % (8 * kBytes) == 0 && S::kPitch % 8 == 0, "rows keep the phase of the swizzle");

  // A row of x of residue r meets dy rows t above its own, t < reach(r), of the planes z of the filter, and means the filter row
  // r + t * stride. Operand tiles hold these dy rows: a wide one holds one of them, a narrow one two, its taps `half` 0 and 1, which
  // are neighbours in t, with one residue also across planes.
  static constexpr bool kAcross = St::h == 1;
  static constexpr GCONV_DEVICE int reach(int r) { return (F::h - r + St::h - 1) / St::h; }
  static constexpr GCONV_DEVICE int plane_tiles(int r) { return kWide ? reach(r) : (reach(r) + 1) / 2; }
  static constexpr GCONV_DEVICE int tiles(int r) { return kWide || !kAcross ? F::d * plane_tiles(r) : (F::d * reach(r) + 1) / 2; }
  static constexpr GCONV_DEVICE int operand(int r, int p) {
    return kWide || kAcross ? p : p / plane_tiles(r) * plane_tiles(0) + p % plane_tiles(r);
  }
  struct Tap {
    int z, t;
    bool there;
  };
  static constexpr GCONV_DEVICE Tap tap_of(int r, int p, int half) {
    if (kWide) return {p / reach(r), p % reach(r), true};
    int q = 2 * p + half;
    if (kAcross) return {q / reach(r), q % reach(r), q < F::d * reach(r)};
    int t = p % plane_tiles(r) * 2 + half;
    return {p / plane_tiles(r), t, t < reach(r)};
  }
  static constexpr GCONV_DEVICE unsigned bit_of(int r, Tap tap) { return tap.there ? 1u << (tap.z * reach(r) + tap.t) : 0; }
  static constexpr int kOperands = tiles(0), kSteps = kWide ? 1 : kLoadRuns / 2, kParts = kWide ? 1 : S::kChunks;
  static constexpr int kTiles = tiles(0) + (St::h == 2 ? tiles(1) : 0);
  static constexpr int kSums = kTiles * F::w;
  static_assert(F::d * reach(0) <= 32, "taps of a column are bits");
  typedef float Sums[kSums][S::kChunks][4];
  typedef unsigned Window[kOperands][kLoads][kParts][kSteps][4];

  // Grid: tiles of channels * shares of the rows. The tiles of a share are side by side, since their pixels are neighbours in memory,
  // but for the shares of a cluster. Its blocks add up their sums before they leave; without clusters the first does the work of all.
  static GCONV_DEVICE void run(const ConvArgs& a, const hw::TensorMap& map_x, const hw::TensorMap& map_y) {
    GCONV_LDS(unsigned char, raw, kBars + 32 * S::kRing + (int)sizeof(Walk) + 1024, 0);
    unsigned char* ring = raw + hw::kept((int)((1024 - (unsigned)(unsigned long long)(const void*)raw % 1024) % 1024));
    hw::Mbarrier* full = (hw::Mbarrier*)(ring + kBars);
    hw::Mbarrier* empty = full + S::kRing;
    Stage* stages = (Stage*)(empty + S::kRing);
    int of = (a.G * S::kCg + S::kChannels - 1) / S::kChannels, cluster = hw::block_id_x() / S::kCluster;
    int rank = hw::block_id_x() % S::kCluster, tile = cluster % of, share = cluster / of * S::kCluster + rank;
    if (kTogether > 1 && rank != 0) return;
    const Block block = {a, map_x, map_y, ring, full, empty, stages, (Walk*)(stages + S::kRing), tile * S::kChannels};
    if (hw::thread_id() == 0) block.begin(share, kTogether);
    hw::barrier();
    hw::let_launches_start();
    Sums sums;
    clear(sums);
    consume(block, sums);
    finish(ring, rank, sums, {a, block.channel, share / S::kCluster});
  }

 private:
  // What a stage in the ring is: of each residue of rows of x the taps, as bits, at which it meets dy; the planes of dy that are there;
  // whether it is the first of a segment; where its columns start, -1 behind the last stage.
  struct Stage {
    unsigned taps[2];
    short planes, opens;
    int column;
  };
  struct Block {
    const ConvArgs& a;
    const hw::TensorMap &map_x, &map_y;
    unsigned char* ring;
    hw::Mbarrier *full, *empty;
    Stage* stages;
    Walk* progress;  // of the copies; in LDS, because one lane alone needs it
    int channel;

    // Sets up the ring and fills it. By one thread.
    GCONV_DEVICE void begin(int share, int shares) const {
      hw::prefetch(map_x);
      hw::prefetch(map_y);
      Walk walk;
      walk.begin(a, share, shares);
      if (walk.stage > walk.last) walk.next(a);
      for (int i = 0; i < S::kRing; ++i) {
        hw::mbarrier_init(full[i], 1);
        hw::mbarrier_init(empty[i], kWaves);
      }
      hw::mbarrier_init_done();
      for (int i = 0; i < S::kRing; ++i) feed(walk, i);
      *progress = walk;
    }
    // Starts the copies of one more stage, or says that there is none. By one lane.
    GCONV_DEVICE void feed(Walk& walk, int slot) const {
      if (!walk.more()) {
        stages[slot].column = -1;
        hw::mbarrier_arrive(full[slot]);
        return;
      }
      start(walk, ring + slot * kStage, full[slot], stages[slot]);
      walk.next(a);
    }
    // The barrier waits for the arrival that comes last, whatever bytes have come before.
    GCONV_DEVICE void start(const Walk& walk, unsigned char* to, hw::Mbarrier& bar, Stage& note) const {
      int j = walk.stage, h = j * St::h - a.pad[1], w = walk.column * St::w - a.pad[2], bytes = kBytesX;
      if constexpr (S::kAxes < 3) hw::load_box(to, map_x, bar, channel, w, h, walk.image);
      else hw::load_box(to, map_x, bar, channel, w, h, walk.depth, walk.image);
      int planes = planes_of(a, walk.depth), present = j < walk.end ? planes : 0;
      for (int z = 0; z < F::d; ++z) {
        if (!(present >> z & 1)) continue;
        unsigned char* y = to + kBytesX + z * kBytesY;
        if constexpr (S::kAxes < 3) hw::load_box(y, map_y, bar, channel, walk.column, j, walk.image);
        else hw::load_box(y, map_y, bar, channel, walk.column, j, walk.depth + a.pad[0] - z, walk.image);
        bytes += kBytesY;
      }
      note.taps[0] = taps<0>(walk, h, planes);
      if constexpr (St::h == 2) note.taps[1] = taps<1>(walk, h + 1, planes);
      note.planes = (short)present;
      note.opens = j == walk.first;
      note.column = walk.column;
      hw::mbarrier_expect(bar, bytes);
    }
    template <int R>
    GCONV_DEVICE unsigned taps(const Walk& walk, int h, int planes) const {
      if ((unsigned)h >= (unsigned)a.in[1]) return 0;
      int most = min_of(walk.stage - walk.first + 1, reach(R)), least = max_of(walk.stage - walk.end + 1, 0);  // t: least to below most
      unsigned column = most > least ? (1u << most) - (1u << least) : 0, all = 0;
      GCONV_UNROLL
      for (int z = 0; z < F::d; ++z)
        if (planes >> z & 1) all |= column << z * reach(R);
      return all;
    }
  };
  // The planes of the filter, as bits, at which a plane of x meets dy.
  static GCONV_DEVICE int planes_of(const ConvArgs& a, int depth) {
    int planes = 0;
    for (int z = 0; z < F::d; ++z) planes |= ((unsigned)(depth + a.pad[0] - z) < (unsigned)a.out[0]) << z;
    return planes;
  }
  // What a lane reads: of each load one pixel's 8 channels of one 8 x 8 matrix; matrices are chunks of channels, then runs of pixels.
  struct Lane {
    int x[kLoads], y[kLoads];  // bytes from the start of a row to the lane's run, for y to its pixel and channels
    int tap[kPhases];          // and from there to its pixel and channels, for taps of one phase of the swizzle

    static GCONV_DEVICE void place(int run, int& image, int& half) {
      if (run >= kRuns) run = 0;
      image = run / S::kHalves;
      half = run % S::kHalves;
    }
    GCONV_DEVICE void init(const ConvArgs& a, int column, int wave) {
      int matrix = hw::lane_id() / 8, in_run = hw::lane_id() % 8, chunk = matrix / kLoadRuns, run_x = matrix % kLoadRuns;
      int chunk_of_y = kWide ? matrix % 2 : chunk, run_y = kWide ? matrix / 2 : run_x;
      int slice = wave % kSlices, part = wave / kSlices, chunk_y = slice * S::kChunks + chunk_of_y;
      int chunk_x = kWide ? slice * 16 / S::kCg * (S::kCg / 8) + part * 2 + chunk : chunk_y;
      // Pixels behind the end of the row meet zeros of dy; what they read of x must meet dy at this tap elsewhere, for its Inf and NaN.
      int width = a.out[2] - column, inside = min_of(in_run, width - 1), whole = (width - 1 - inside) / 8 + 1;
      int pixel = hw::swizzled<kBytes>(in_run * kBytes + chunk_y * 16);
      GCONV_UNROLL
      for (int k = 0; k < kPhases; ++k) tap[k] = hw::kept(hw::swizzled<kBytes>((inside * St::w + k) * kBytes + chunk_x * 16));
      GCONV_UNROLL
      for (int l = 0; l < kLoads; ++l) {
        int image, half;
        place(l * kLoadRuns + run_x, image, half);
        x[l] = hw::kept(image * St::h * kRowX + min_of(half, whole - 1) * 8 * St::w * kBytes);
        place(l * kLoadRuns + run_y, image, half);
        y[l] = hw::kept(image * kImageY + half * 8 * kBytes + pixel);
      }
    }
  };

  static GCONV_DEVICE void consume(const Block& block, Sums& sums) {
    int wave = hw::wave_id(), slot = 0, parity = 0;
    Window window;
    clear(window);
    Lane lane;
    for (int number = 0;; ++number) {
      hw::mbarrier_wait(block.full[slot], parity);
      const Stage now = block.stages[slot];
      if (now.column < 0) return;
      if (now.opens) {
        lane.init(block.a, now.column, wave);
        clear(window);
      }
      const unsigned char* stage = block.ring + slot * kStage;
      load_window(stage + kBytesX, now.planes, lane, window);
      row<0>(now.taps[0], stage, lane, window, sums);
      if constexpr (St::h == 2) row<1>(now.taps[1], stage, lane, window, sums);
      hw::wave_sync();
      if (number > 0 && number % kWaves == wave) refill(block, slot, parity);
      if (hw::lane_id() == 0) hw::mbarrier_arrive(block.empty[slot]);
      if (++slot == S::kRing) slot = 0, parity ^= 1;
    }
  }
  // The stage before this one is filled again: the other waves have left it by now, or nearly so. The waves take turns; each does so
  // before it leaves its stage, and the next one waits for that, so that they see the progress of one another.
  static GCONV_DEVICE void refill(const Block& block, int slot, int parity) {
    if (--slot < 0) slot = S::kRing - 1, parity ^= 1;
    hw::mbarrier_wait(block.empty[slot], parity);
    if (hw::lane_id() == 0) block.feed(*block.progress, slot);
  }
  static GCONV_DEVICE void clear(Sums& sums) {
    GCONV_UNROLL
    for (int s = 0; s < kSums; ++s)
      GCONV_UNROLL
      for (int n = 0; n < S::kChunks; ++n)
        GCONV_UNROLL
        for (int e = 0; e < 4; ++e) sums[s][n][e] = 0.0f;
  }
  static GCONV_DEVICE void clear(Window& window) {
    unsigned zero = (unsigned)hw::kept(0);  // a register, since parts that stay zero are operands as well
    GCONV_UNROLL
    for (int p = 0; p < kOperands; ++p)
      GCONV_UNROLL
      for (int l = 0; l < kLoads; ++l)
        GCONV_UNROLL
        for (int i = 0; i < kParts * kSteps * 4; ++i) (&window[p][l][0][0][0])[i] = zero;
  }
  // Register i of a load of dy as part of the operand tile that the dy row (z, t) belongs to.
  static GCONV_DEVICE unsigned& part_of(Window& window, int z, int t, int l, int i) {
    if constexpr (kWide) return window[z * kWindow + t][l][0][0][i];
    int q = kAcross ? z * kWindow + t : z * plane_tiles(0) * 2 + t, run = i % kLoadRuns;
    return window[q / 2][l][i / kLoadRuns][run / 2][run % 2 * 2 + q % 2];
  }
  // Planes of dy that are not there count as zeros.
  static GCONV_DEVICE void load_window(const unsigned char* y, int planes, const Lane& lane, Window& window) {
    GCONV_UNROLL
    for (int z = 0; z < F::d; ++z)
      GCONV_UNROLL
      for (int l = 0; l < kLoads; ++l) {
        unsigned fresh[4] = {};
        if (planes >> z & 1) hw::ldmatrix_x4_trans(fresh, y + z * kBytesY + lane.y[l]);
        GCONV_UNROLL
        for (int i = 0; i < 4; ++i) {
          GCONV_UNROLL
          for (int t = kWindow - 1; t > 0; --t) part_of(window, z, t, l, i) = part_of(window, z, t - 1, l, i);
          bool there = l * kLoadRuns + (kWide ? i / 2 : i % kLoadRuns) < kRuns;
          part_of(window, z, 0, l, i) = there ? fresh[i] : 0;
        }
      }
  }

  // A row of x of a stage, of residue R, against the window of dy. Rows of dy that do not exist must not meet an Inf or NaN in x. Wide
  // groups leave out their tiles; narrow ones, of whose tiles one tap may be there, multiply zeros, and in the rare case put the sums back.
  template <int R>
  static GCONV_DEVICE void row(unsigned taps, const unsigned char* stage, const Lane& lane, const Window& window, Sums& sums) {
    constexpr unsigned all = (unsigned)((1ull << F::d * reach(R)) - 1);
    if (taps == 0) return;
    if constexpr (kWide) {
      multiply<R>(taps, stage, lane, window, sums);
    } else {
      float before[kCount];
      bool harmful = taps != all && !finite<R>(stage);
      if (harmful) save(sums, before);
      multiply<R>(taps, stage, lane, window, sums);
      if (harmful) put_back<R>(taps, before, sums);
    }
  }
  template <int R>
  static GCONV_DEVICE void load_x(unsigned (&x)[4], const unsigned char* stage, const Lane& lane, int l, int k) {
    hw::ldmatrix_x4_trans(x, stage + R * kRowX + lane.x[l] + lane.tap[k % 8] + k / 8 * 8 * kBytes);
  }
  // Reads are a group ahead of the products, and products on the same sums as far apart as a group allows.
  static constexpr int kGroup = kSteps > 1 ? min_of(2, F::w) : 1, kReads = kLoads * F::w, kGroups = ceil_div(kReads, kGroup);
  typedef unsigned Group[kGroup][4];
  template <int R>
  static GCONV_DEVICE void load_group(Group& x, int group, const unsigned char* stage, const Lane& lane) {
    GCONV_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      int read = group * kGroup + i;
      if (read < kReads) load_x<R>(x[i], stage, lane, read / F::w, read % F::w);
    }
  }
  template <int R>
  static GCONV_DEVICE void multiply(unsigned taps, const unsigned char* stage, const Lane& lane, const Window& window, Sums& sums) {
    Group x[2];
    load_group<R>(x[0], 0, stage, lane);
    GCONV_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      if (group + 1 < kGroups) load_group<R>(x[(group + 1) % 2], group + 1, stage, lane);
      GCONV_UNROLL
      for (int s = 0; s < kSteps; ++s)
        GCONV_UNROLL
        for (int i = 0; i < kGroup; ++i)
          if (group * kGroup + i < kReads) multiply_read<R>(taps, group * kGroup + i, s, x[group % 2][i], window, sums);
    }
  }
  template <int R>
  static GCONV_DEVICE void multiply_read(unsigned taps, int read, int s, const unsigned (&x)[4], const Window& window, Sums& sums) {
    GCONV_UNROLL
    for (int p = 0; p < tiles(R); ++p) {
      if (kWide && (taps & bit_of(R, tap_of(R, p, 0))) == 0) continue;
      GCONV_UNROLL
      for (int n = 0; n < S::kChunks; ++n) {
        const unsigned runs[2] = {x[n * kLoadRuns + 2 * s], x[n * kLoadRuns + 2 * s + 1]};
        I::multiply(sums[sum_of(R, p, read % F::w)][n], window[operand(R, p)][read / F::w][kWide ? 0 : n][s], runs);
      }
    }
  }
  static constexpr GCONV_DEVICE int sum_of(int r, int p, int k) { return ((r == 0 ? 0 : tiles(0)) + p) * F::w + k; }
  // Whether a row is finite in the channels that this wave reads.
  template <int R>
  static GCONV_DEVICE bool finite(const unsigned char* stage) {
    constexpr unsigned exponent = is_same<In, f16>::value ? 0x7c007c00u : 0x7f807f80u, one = exponent & ~(exponent << 1) & 0x7fff7fffu;
    constexpr int units = S::kImages * S::kPitch * S::kChunks;
    int chunk = hw::wave_id() % kSlices * S::kChunks;
    unsigned carry = 0;
    GCONV_KEEP_LOOP
    for (int i = hw::lane_id(); i < units; i += hw::kWave) {
      int pixel = i / S::kChunks % S::kPitch, image = i / (S::kChunks * S::kPitch);
      const unsigned char* row = stage + (image * St::h + R) * kRowX;
      Raw<16> unit = *(const Raw<16>*)(row + hw::swizzled<kBytes>(pixel * kBytes + (chunk + i % S::kChunks) * 16));
      GCONV_UNROLL
      for (int e = 0; e < 4; ++e) carry |= (unit.word[e] & exponent) + one;
    }
    return !hw::any_lane((carry & 0x80008000u) != 0);
  }
  // Through memory of the lane: in registers the copy would cost the usual case as much.
  static constexpr int kCount = kSums * S::kChunks * 4;
  static GCONV_DEVICE void save(const Sums& sums, float (&before)[kCount]) {
    int start = hw::kept(0);
    GCONV_UNROLL
    for (int i = 0; i < kCount; ++i) before[start + i] = (&sums[0][0][0])[i];
  }
  template <int R>
  static GCONV_DEVICE void put_back(unsigned taps, const float (&before)[kCount], Sums& sums) {
    int start = hw::kept(0);
    GCONV_UNROLL
    for (int p = 0; p < tiles(R); ++p)
      GCONV_UNROLL
      for (int half = 0; half < 2; ++half) {
        const Tap tap = tap_of(R, p, half);
        if (taps & bit_of(R, tap)) continue;
        GCONV_UNROLL
        for (int k = 0; k < F::w; ++k)
          GCONV_UNROLL
          for (int i = 0; i < S::kChunks * 2; ++i) {
            int n = i / 2, e = 2 * half + i % 2;
            sums[sum_of(R, p, k)][n][e] = before[start + (sum_of(R, p, k) * S::kChunks + n) * 4 + e];
          }
      }
  }

  // Where sums go: to the piece of the workspace that the block or cluster has, (tap, output channel, input channel of its group), or
  // finished to dw.
  struct Result {
    const ConvArgs& a;
    int channel, piece;

    // Sums[number][chunk] of a lane of a wave.
    GCONV_DEVICE void put(int wave, int lane, int number, int chunk, const float (&sum)[4]) const {
      int k = number % F::w, p = number / F::w;
      bool second = St::h == 2 && p >= tiles(0);
      GCONV_UNROLL
      for (int half = 0; half < 2; ++half) {
        const Tap tap = second ? tap_of(St::h - 1, p - tiles(0), half) : tap_of(0, p, half);
        if (!tap.there) continue;
        int taps = (tap.z * F::h + (int)second + tap.t * St::h) * F::w + k;
        put_half(wave, lane, taps, kWide ? half : chunk, chunk, sum[2 * half], sum[2 * half + 1]);
      }
    }

   private:
    GCONV_DEVICE void put_half(int wave, int lane, int tap, int chunk_k, int chunk_c, float low, float high) const {
      constexpr int kNear = max_of(S::kCg, 2);  // a lane has two neighbours
      int slice = wave % kSlices, part = wave / kSlices, column = lane % 4 * 2, of_chunk = lane / 4;
      int out = channel + (slice * S::kChunks + chunk_k) * 8 + of_chunk, channels = a.G * S::kCg;
      if (out >= channels || (!kWide && of_chunk / kNear != column / kNear)) return;
      float pair[2] = {low, high};
      int c = kWide ? part * 16 + chunk_c * 8 + column : column % S::kCg;
      if constexpr (S::kCg == 1) pair[0] = of_chunk % 2 ? high : low;
      if constexpr (S::kFinish) {
        unsigned w = (unsigned)tap % F::w, h = (unsigned)tap / F::w % F::h, d = (unsigned)tap / (F::h * F::w);
        long long at = out % S::kCg * a.wv.n + out / S::kCg * a.wv.g + d * a.wv.s[0] + h * a.wv.s[1] + w * a.wv.s[2] + c;
        GCONV_UNROLL
        for (int i = 0; i < min_of(S::kCg, 2); ++i)
          ((typename S::Out*)a.w)[at + i] = from_float<typename S::Out>(S::Epilogue::apply(pair[i], a, out, at + i));
      } else {
        float* to = (float*)a.workspace + (((long long)piece * F::product + tap) * channels + out) * S::kCg + c;
        GCONV_UNROLL
        for (int i = 0; i < min_of(S::kCg, 2); ++i) to[i] = pair[i];
      }
    }
  };
  static GCONV_DEVICE void store(const Sums& sums, const Result& result) {
    GCONV_UNROLL
    for (int s = 0; s < kSums; ++s)
      GCONV_UNROLL
      for (int n = 0; n < S::kChunks; ++n) result.put(hw::wave_id(), hw::lane_id(), s, n, sums[s][n]);
  }
  static constexpr int kQuads = kSums * S::kChunks;
  static GCONV_DEVICE void finish(unsigned char* ring, int rank, const Sums& sums, const Result& result) {
#if defined(GCONV_CLUSTERS)
    if constexpr (S::kCluster > 1) {
      add_up(ring, rank, sums, result);
      return;
    }
#endif
    store(sums, result);
  }
#if defined(GCONV_CLUSTERS)
  struct alignas(16) Four {
    float at[4];
  };
  // The sums of the blocks of a cluster go by way of the ring, which nobody reads any more; each block adds up its share, in order.
  static GCONV_DEVICE void add_up(unsigned char* ring, int rank, const Sums& sums, const Result& result) {
    constexpr int count = kQuads * kThreads, each = count / S::kCluster;
    static_assert(each * S::kCluster == count && count * 16 <= kBars, "blocks share out whole sums, which fit into the ring");
    hw::barrier();
    GCONV_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      const float(&sum)[4] = sums[q / S::kChunks][q % S::kChunks];
      ((Four*)ring)[q * kThreads + hw::thread_id()] = {{sum[0], sum[1], sum[2], sum[3]}};
    }
    hw::cluster_barrier();
    GCONV_KEEP_LOOP
    for (int i = rank * each + hw::thread_id(); i < (rank + 1) * each; i += kThreads) {
      float sum[4], part[S::kCluster][4];
      GCONV_UNROLL
      for (int r = 0; r < S::kCluster; ++r) hw::load_of_block(part[r], ring + i * 16, r);
      GCONV_UNROLL
      for (int e = 0; e < 4; ++e) {
        sum[e] = part[0][e];
        GCONV_UNROLL
        for (int r = 1; r < S::kCluster; ++r) sum[e] += part[r][e];
      }
      int quad = i / kThreads, thread = i % kThreads;
      result.put(thread / hw::kWave, thread % hw::kWave, quad / S::kChunks, quad % S::kChunks, sum);
    }
    hw::cluster_barrier();  // until then the others may still read
  }
#endif
};

#endif

}  // namespace gconv
