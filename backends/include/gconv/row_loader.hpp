// RowLoader: a block's threads bring one operand tile from global memory through registers into LDS, stored as [group][row][k].
//
// A unit is what one thread moves at once: Vec elements along k of one row (AlongK), or Vec rows for each of kRun consecutive k,
// transposed in registers. A thread keeps its units of k and of rows for the whole main loop, so that the place of a k is decoded
// once per step and thread, and the place of a row once per block.
#pragma once

#include "index_maps.hpp"

namespace gconv {

// What a loader needs to know of its operand at compile time.
template <class S, int Rows_, int Vec_, bool AlongK_, bool GroupInK_, int Axes_>
struct LoaderShape {
  using T = typename S::In;
  using Offset = typename S::Offset;
  static constexpr int Rows = Rows_, K = S::kK, Groups = S::kMerge, Vec = Vec_, Axes = Axes_;
  static constexpr int Threads = S::kWavesM * S::kWavesN * hw::kWave;  // of one wave group
  static constexpr bool AlongK = AlongK_;
  static constexpr bool GroupInK = GroupInK_;  // neighbouring groups are neighbours in memory along k: let threads walk over them
  static constexpr int kPitch = K + S::kPad;  // padded rows: consecutive rows start in different LDS banks
  static constexpr int kElements = Groups * Rows * kPitch;
  static constexpr int kRun = AlongK ? 1 : (K % 4 == 0 && sizeof(T) == 2 ? 4 : 1);
  static constexpr int kKUnits = (AlongK ? K / Vec : K / kRun) * (GroupInK ? Groups : 1);
  static constexpr int kRowUnits = (AlongK ? Rows : Rows / Vec) * (GroupInK ? 1 : Groups);
  static constexpr int kKThreads = AlongK ? min_of(kKUnits, Threads) : min_of(max_of(Threads / kRowUnits, 1), kKUnits);
  static constexpr int kRowThreads = AlongK ? min_of(Threads / kKThreads, kRowUnits) : min_of(Threads, kRowUnits);
  static constexpr int kKPasses = ceil_div(kKUnits, kKThreads), kRowPasses = ceil_div(kRowUnits, kRowThreads);
  static constexpr bool kWhole = kKPasses * kKThreads == kKUnits && kRowPasses * kRowThreads == kRowUnits && kKThreads * kRowThreads == Threads;
  static constexpr bool kOneWaveGroup = S::kWaveGroups == 1;
  static_assert(AlongK ? K % Vec == 0 : Rows % Vec == 0, "vectors divide the tile");
};

template <class S, class Operand_>
struct RowLoader {
  using Operand = Operand_;
  using T = typename S::T;
  using Offset = typename S::Offset;
  using Vector = Raw<S::Vec * (int)sizeof(T)>;

  Point<Offset> row[S::kRowPasses];
  int group[S::kKPasses];     // group of a k unit
  int column[S::kKPasses];    // first k of the unit inside a step
  int slot[S::kKPasses][S::kRowPasses];  // where in LDS the unit goes; -1: not this thread's
  static constexpr int kValidWords = ceil_div(S::kRowPasses, 32);
  struct Staged {
    Vector vector[S::kKPasses][S::kRowPasses][S::kRun];
    unsigned valid[S::kKPasses][S::kRun][kValidWords];  // bit per row pass; only read by a prologue
  };

  GCONV_DEVICE void init(const Operand& operand) {
    int tid = S::kOneWaveGroup ? hw::thread_id() : hw::thread_id() % S::Threads;
    int k_thread = S::AlongK ? tid % S::kKThreads : tid / S::kRowThreads;
    int row_thread = S::AlongK ? tid / S::kKThreads : tid % S::kRowThreads;
    GCONV_UNROLL
    for (int p = 0; p < S::kKPasses; ++p) place_k(p, k_thread + p * S::kKThreads);
    GCONV_UNROLL
    for (int p = 0; p < S::kRowPasses; ++p) {
      int unit = row_thread + p * S::kRowThreads;
      constexpr bool grouped = !S::GroupInK && S::Groups > 1;
      int in_group = grouped ? unit % (S::kRowUnits / S::Groups) : unit;
      int group_of_row = grouped ? unit / (S::kRowUnits / S::Groups) : 0;
      int first = S::AlongK ? in_group : in_group * S::Vec;
      bool mine = S::kWhole || (unit < S::kRowUnits && row_thread < S::kRowThreads && k_thread < S::kKThreads);
      row[p] = mine ? operand.row(first) : outside<Offset>();
      if constexpr (grouped) row[p].offset += operand.group(group_of_row);
      GCONV_UNROLL
      for (int q = 0; q < S::kKPasses; ++q) {
        bool here = mine && (S::kWhole || k_thread + q * S::kKThreads < S::kKUnits);
        slot[q][p] = here ? ((group_of_row + group[q]) * S::Rows + first) * S::kPitch + column[q] : -1;
      }
    }
  }

  // Issues the global loads of one step; out-of-image elements become zeros.
  GCONV_DEVICE void load(const Operand& operand, int step, Staged& staged) const {
    GCONV_UNROLL
    for (int p = 0; p < S::kKPasses; ++p) {
      GCONV_UNROLL
      for (int r = 0; r < S::kRun; ++r) {
        GCONV_UNROLL
        for (int word = 0; word < kValidWords; ++word) staged.valid[p][r][word] = 0;
        Point<Offset> k = operand.k(step, column[p] + r);
        if constexpr (S::GroupInK && S::Groups > 1) k.offset += operand.group(group[p]);
        GCONV_UNROLL
        for (int q = 0; q < S::kRowPasses; ++q) {
          bool ok = inside<S::Axes>(row[q], k, operand.extent);
          staged.valid[p][r][q / 32] |= (unsigned)ok << q % 32;
          staged.vector[p][q][r] = hw::load_or_zero<S::Vec * (int)sizeof(T)>(operand.base, (Offset)(row[q].offset + k.offset), ok);
        }
      }
    }
  }

  // Applies the prologue, which never turns padding into something else, and writes the tile to LDS.
  GCONV_DEVICE void store(const Operand& operand, T* lds, int step, Staged& staged) const {
    GCONV_UNROLL
    for (int p = 0; p < S::kKPasses; ++p) {
      GCONV_UNROLL
      for (int q = 0; q < S::kRowPasses; ++q) {
        if (!S::kWhole && slot[p][q] < 0) continue;
        if constexpr (Operand::kTransforms) transform(operand, p, q, step, staged);
        if constexpr (S::AlongK) *(Vector*)(lds + slot[p][q]) = staged.vector[p][q][0];
        else store_transposed(lds + slot[p][q], staged.vector[p][q]);
      }
    }
  }

  // The names that pipelines with direct copies use (async_loader.hpp); through registers a copy starts with the load and ends
  // with the store.
  GCONV_DEVICE void start(const Operand& operand, T*, int step, Staged& staged) const { load(operand, step, staged); }
  GCONV_DEVICE void finish(const Operand& operand, T* lds, int step, Staged& staged) const { store(operand, lds, step, staged); }

 private:
  GCONV_DEVICE void place_k(int p, int unit) {
    group[p] = 0;
    if constexpr (S::GroupInK && S::Groups > 1) {
      // Order of units: the run of channels that is contiguous in memory, then the group, then the next run.
      constexpr int run = operand_run();
      int inner = unit % run, rest = unit / run;
      group[p] = rest % S::Groups;
      unit = rest / S::Groups * run + inner;
    }
    column[p] = unit * (S::AlongK ? S::Vec : S::kRun);
  }
  static constexpr GCONV_DEVICE int operand_run() { return S::K % Operand::kChannels == 0 ? Operand::kChannels / S::Vec : S::K / S::Vec; }

  GCONV_DEVICE void transform(const Operand& operand, int p, int q, int step, Staged& staged) const {
    GCONV_UNROLL
    for (int r = 0; r < S::kRun; ++r) {
      if (!(staged.valid[p][r][q / 32] >> q % 32 & 1u)) continue;
      T* element = (T*)&staged.vector[p][q][r];
      int g = S::Groups > 1 ? slot[p][q] / (S::Rows * S::kPitch) : 0;  // groups lie along k or along the rows
      GCONV_UNROLL
      for (int i = 0; i < S::Vec; ++i)
        element[i] = from_float<T>(operand.transform(to_float(element[i]), step, column[p] + (S::AlongK ? i : r), g));
    }
  }

  static GCONV_DEVICE void store_transposed(T* to, const Vector (&from)[S::kRun]) {
    GCONV_UNROLL
    for (int i = 0; i < S::Vec; ++i) {
      if constexpr (S::kRun == 4) {
        Raw<8> run;
        GCONV_UNROLL
        for (int j = 0; j < 2; ++j) run.word[j] = half_of(from[2 * j], i) | half_of(from[2 * j + 1], i) << 16;
        *(Raw<8>*)(to + i * S::kPitch) = run;
      } else {
        T element;
        __builtin_memcpy(&element, (const char*)&from[0] + i * sizeof(T), sizeof(T));
        to[i * S::kPitch] = element;
      }
    }
  }
  static GCONV_DEVICE unsigned half_of(const Vector& v, int i) {
    if constexpr (sizeof(Vector) == 2) return v.word[0];
    else return v.word[i / 2] >> (i % 2 * 16) & 0xffffu;
  }
};

}  // namespace gconv
