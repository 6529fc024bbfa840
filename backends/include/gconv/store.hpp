// Store: accumulators through the epilogue to the result, directly from the registers or shuffled through LDS into wide stores.
// A split of the reduction writes its sums as floats into its own dense piece of the workspace instead (S::kPartial).
#pragma once

#include "conv_operands.hpp"
#include "wave_gemm.hpp"

namespace gconv {

template <class S>
using StoredType = typename conditional<S::kPartial, float, typename S::Out>::type;

// Element strides of a contiguous (outer, s0, s1, s2, G, channels) or, for w, (G, outer, s0, s1, s2, channels) tensor.
GCONV_DEVICE TensorView dense_view(const int (&s)[3], long long G, long long channels) {
  long long w = G * channels, h = w * s[2], d = h * s[1];
  return {d * s[0], channels, {d, h, w}, 1};
}
template <class Filter>
GCONV_DEVICE TensorView dense_weight_view(long long Kg, long long Cg) {
  long long h = Cg * Filter::w, d = h * Filter::h, n = d * Filter::d;
  return {n, n * Kg, {d, h, Cg}, 1};
}

// Where element (row, column) of a block's result goes. Offsets count elements from `base`.
template <class S>
struct ResultPlace {
  using Offset = typename S::Offset;
  const ConvArgs* args;
  BlockPlace place;
  TensorView view;
  void* tensor;
  long long base;  // element of the block's first image, group and column
  int pixel0, rows;
  BoxOrigin box;  // window staging

  GCONV_DEVICE ResultPlace(const ConvArgs& a, const BlockPlace& b, const BoxOrigin& o) : args(&a), place(b), box(o) {
    if constexpr (S::kDirection == kForward) {
      view = S::kPartial ? dense_view(a.out, a.G, S::kKg / S::kPack) : a.yv;
      images((long long)a.out[0] * a.out[1] * a.out[2], a.out, S::kKg, a.y, b.n0 * view.c + b.result0);
    } else if constexpr (S::kDirection == kBwdData) {
      view = S::kPartial ? dense_view(a.in, a.G, S::kCg / S::kPack) : a.xv;
      images((long long)b.d.count * b.h.count * b.w.count, a.in, S::kCg, a.x, b.n0 * view.c + b.result0);
    } else {
      view = S::kPartial ? dense_weight_view<typename S::Filter>(S::kKg, S::kCg) : a.wv;
      tensor = S::kPartial ? a.workspace : a.w;
      base = b.group * view.g + b.m0 * view.n;
      if (S::kPartial) base += b.split * (long long)a.G * S::kKg * S::Filter::product * S::kCg;
      pixel0 = 0;
      rows = S::kKg - (int)b.m0;
    }
  }

  static constexpr Offset kNowhere = ~(Offset)0;
  GCONV_DEVICE Offset row(int r) const {
    if (S::kPadM && !S::kWindow && r >= rows) return kNowhere;
    if constexpr (S::kDirection == kBwdWeight) {
      return (Offset)r * (Offset)view.n;
    } else if constexpr (S::kExplicit) {
      return (Offset)r * (Offset)view.s[2];
    } else if constexpr (S::kWindow) {
      const int* size = S::kDirection == kForward ? args->out : args->in;
      Pixel p = Window<S>::split(r);
      bool ok = r < Window<S>::kRows && box.n + p.n < args->N && box.d + p.d < size[0] && box.h + p.h < size[1] && box.w + p.w < size[2];
      return ok ? at(p.n, box.d + p.d, box.h + p.h, box.w + p.w) : kNowhere;
    } else if constexpr (S::kDirection == kForward) {
      Pixel p = output_pixel(*args, pixel0 + r);
      return at(p.n, p.d, p.h, p.w);
    } else {
      Pixel p = phase_pixel(pixel0 + r, place.d.count, place.h.count, place.w.count);
      return at(p.n, place.d.first + p.d * S::Stride::d, place.h.first + p.h * S::Stride::h, place.w.first + p.w * S::Stride::w);
    }
  }
  GCONV_DEVICE bool column_valid(int n) const {
    constexpr int columns = S::kDirection == kForward ? S::kKg : S::kDirection == kBwdData ? S::kCg : S::Filter::product * S::kCg;
    return columns % S::kN == 0 || place.n0 + n < columns;
  }
  GCONV_DEVICE Offset column(int g, int n) const {
    Offset group = (Offset)(g * S::kPack) * (Offset)view.g;
    if constexpr (S::kDirection != kBwdWeight) {
      return group + (Offset)n * (Offset)view.c;
    } else {
      TapChannel t = split_tap<typename S::Filter>((place.n0 + n) / S::kCg, (place.n0 + n) % S::kCg);
      return group + (Offset)t.d * (Offset)view.s[0] + (Offset)t.h * (Offset)view.s[1] + (Offset)t.w * (Offset)view.s[2] +
             (Offset)t.c * (Offset)view.c;
    }
  }
  // The channel an epilogue's per-channel operand is read at: of K for forward and bwd_weight, of C for bwd_data.
  GCONV_DEVICE int channel(int g, int row, int n) const {
    if constexpr (S::kDirection == kForward) return (place.group + g) * S::kKg + place.n0 + n;
    else if constexpr (S::kDirection == kBwdData) return (place.group + g) * S::kCg + place.n0 + n;
    else return (place.group + g) * S::kKg + (int)place.m0 + row;
  }

 private:
  GCONV_DEVICE Offset at(int n, int d, int h, int w) const {
    return (Offset)n * (Offset)view.n + (Offset)d * (Offset)view.s[0] + (Offset)h * (Offset)view.s[1] + (Offset)w * (Offset)view.s[2];
  }
  GCONV_DEVICE void images(long long image, const int (&sizes)[3], int channels, void* result, long long first_column) {
    long long n0 = box.n;
    if constexpr (!S::kWindow) {
      n0 = S::kExplicit ? 0 : place.m0 / image;
      pixel0 = (int)(place.m0 - n0 * image);
      rows = (int)min_of(args->N * image - place.m0, (long long)S::kM);
    }
    tensor = S::kPartial ? args->workspace : result;
    base = (S::kExplicit ? place.m0 * view.s[2] : n0 * view.n) + (long long)place.group * S::kPack * view.g + first_column;
    if (S::kPartial) base += place.split * ((long long)args->N * sizes[0] * sizes[1] * sizes[2]) * args->G * (channels / S::kPack);
  }
};

template <class S, int TileBytes>
struct Store {
  using I = typename S::Instruction;
  using Gemm = WaveGemm<S>;
  using Out = StoredType<S>;
  using Offset = typename S::Offset;
  using Place = ResultPlace<S>;
  // Shuffling works through the tile in slices of some instructions' rows per wave, as many as fit where the operand tiles were.
  // Where the epilogue reads an array shaped like the result, elements wait in LDS as sums and are finished by whole vectors;
  // else they are finished before they go to LDS, which halves the traffic of 16-bit results.
  using Staged = typename conditional<S::kLikeY, float, Out>::type;
  static constexpr int kColumns = S::kMerge * S::kN, kPitch = kColumns + 8, kLineBytes = S::kWavesM * I::M * kPitch * (int)sizeof(Staged);
  static constexpr int kSliceTiles = max_of(1, min_of(Gemm::MI, TileBytes / kLineBytes)), kSlices = ceil_div(Gemm::MI, kSliceTiles);
  static constexpr int kWaveRows = kSliceTiles * I::M, kSliceRows = S::kWavesM * kWaveRows;
  static constexpr int kShuffleBytes = S::kShuffle ? kSliceRows * kPitch * (int)sizeof(Staged) : 0;
  static constexpr int kThreads = S::kWaveGroups * S::kWavesM * S::kWavesN * hw::kWave;

  // Every row's place, decoded once and shared through LDS.
  static GCONV_DEVICE void place_rows(const Place& place, Offset* table) {
    for (int r = hw::thread_id(); r < S::kM; r += kThreads) table[r] = place.row(r);
  }

  static GCONV_DEVICE void run(const Gemm& gemm, const Place& place, const Offset* table, void* lds) {
    if constexpr (S::kShuffle) shuffled(gemm, place, table, (Staged*)lds);
    else direct(gemm, place, table);
  }

 private:
  // With several wave groups the first one has gathered the sums.
  static GCONV_DEVICE bool holds_sums() { return S::kWaveGroups == 1 || hw::wave_id() < S::kWavesM * S::kWavesN; }
  static GCONV_DEVICE float finish(float acc, const Place& place, int channel, long long element) {
    if constexpr (S::kPartial) return acc;
    else return S::Epilogue::apply(acc, *place.args, channel, element);
  }

  static GCONV_DEVICE void direct(const Gemm& gemm, const Place& place, const Offset* table) {
    Out* out = (Out*)place.tensor;
    if (!holds_sums()) return;
    GCONV_UNROLL
    for (int g = 0; g < Gemm::GI; ++g)
      GCONV_UNROLL
      for (int m = 0; m < Gemm::MI; ++m)
        GCONV_UNROLL
        for (int n = 0; n < Gemm::NI; ++n)
          GCONV_UNROLL
          for (int e = 0; e < I::kAcc; ++e) {
            int group = gemm.wave_g + g, row = (gemm.wave_m * Gemm::MI + m) * I::M + I::lane_row() + I::acc_row(e);
            int column = (gemm.wave_n * Gemm::NI + n) * I::N + I::lane_col() + I::acc_col(e);
            Offset offset = table[row];
            if (offset == Place::kNowhere || !place.column_valid(column)) continue;
            long long element = place.base + (Offset)(offset + place.column(group, column));
            out[element] = from_float<Out>(finish(gemm.acc[g][m][n][e], place, place.channel(group, row, column), element));
          }
  }

  static GCONV_DEVICE void shuffled(const Gemm& gemm, const Place& place, const Offset* table, Staged* lds) {
    GCONV_UNROLL
    for (int slice = 0; slice < kSlices; ++slice) {
      hw::barrier();  // the operand tiles, or the previous slice, are no longer read
      GCONV_UNROLL
      for (int m = 0; m < kSliceTiles; ++m)
        if (slice * kSliceTiles + m < Gemm::MI && holds_sums()) put_tile(gemm, place, slice * kSliceTiles + m, m, lds);
      hw::barrier();
      take_slice(place, slice, table, lds);
    }
  }
  static GCONV_DEVICE void put_tile(const Gemm& gemm, const Place& place, int m, int slot, Staged* lds) {
    int column0 = gemm.wave_n * (Gemm::NI * I::N) + I::lane_col(), row0 = (gemm.wave_m * Gemm::MI + m) * I::M + I::lane_row();
    Staged* to = lds + (gemm.wave_m * kWaveRows + slot * I::M + I::lane_row()) * kPitch + gemm.wave_g * S::kN + column0;
    constexpr int run = I::acc_col(1) == 1 ? 2 : 1;  // neighbouring columns that a lane holds
    GCONV_UNROLL
    for (int g = 0; g < Gemm::GI; ++g)
      GCONV_UNROLL
      for (int n = 0; n < Gemm::NI; ++n)
        GCONV_UNROLL
        for (int e = 0; e < I::kAcc; e += run) {
          Raw<run * (int)sizeof(Staged)> raw;
          GCONV_UNROLL
          for (int i = 0; i < run; ++i) {
            int column = column0 + n * I::N + I::acc_col(e + i);
            ((Staged*)&raw)[i] = staged(gemm.acc[g][m][n][e + i], place, gemm.wave_g + g, row0 + I::acc_row(e), column);
          }
          *(Raw<run * (int)sizeof(Staged)>*)(to + I::acc_row(e) * kPitch + g * S::kN + n * I::N + I::acc_col(e)) = raw;
        }
  }
  static GCONV_DEVICE Staged staged(float acc, const Place& place, int g, int row, int column) {
    if constexpr (S::kLikeY) return acc;
    else return from_float<Staged>(finish(acc, place, place.column_valid(column) ? place.channel(g, row, column) : 0, 0));
  }
  static GCONV_DEVICE void take_slice(const Place& place, int slice, const Offset* table, const Staged* lds) {
    constexpr int vec = S::kVecC, units_per_row = kColumns / vec, units = kSliceRows * units_per_row;
    GCONV_UNROLL
    for (int i = 0; i < ceil_div(units, kThreads); ++i) {
      int unit = hw::thread_id() + i * kThreads;
      if (units % kThreads != 0 && unit >= units) continue;
      int slice_row = unit / units_per_row, column = unit % units_per_row * vec;
      int tile = slice * kSliceTiles + slice_row % kWaveRows / I::M;
      if (kSlices * kSliceTiles != Gemm::MI && tile >= Gemm::MI) continue;
      int row = kSlices == 1 ? slice_row : (slice_row / kWaveRows * Gemm::MI + tile) * I::M + slice_row % I::M;
      put_vector(place, table[row], row, column / S::kN, column % S::kN, lds + slice_row * kPitch + column);
    }
  }
  static GCONV_DEVICE void put_vector(const Place& place, Offset offset, int row, int g, int n, const Staged* from) {
    if (offset == Place::kNowhere || !place.column_valid(n)) return;
    long long element = place.base + (Offset)(offset + place.column(g, n));
    Raw<S::kVecC * (int)sizeof(Out)> raw = {};
    GCONV_UNROLL
    for (int i = 0; i < S::kVecC; ++i) {
      if constexpr (S::kLikeY) ((Out*)&raw)[i] = from_float<Out>(finish(from[i], place, place.channel(g, row, n + i), element + i));
      else ((Out*)&raw)[i] = from[i];
    }
    *(Raw<S::kVecC * (int)sizeof(Out)>*)((Out*)place.tensor + element) = raw;
  }
};

}  // namespace gconv
