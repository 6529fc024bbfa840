// What all pipelines are made of: the tiles in LDS, and the mover that brings both operands there.
//
// A pipeline is a struct of static members: kLdsBuffers (copies of the tiles in LDS), kScratchBytes (LDS it needs besides, in the
// same place), and run(mover, lds, first, end, gemm), which multiplies the K steps first .. end - 1 (at least one).
#pragma once

#include "wave_gemm.hpp"

namespace gconv {

// The LDS tiles of one block: buffer i holds operand A at a(i) and operand B behind it at b(i).
template <class In, int ElementsA, int Elements>
struct Tiles {
  static constexpr int kElements = Elements;
  In* memory;
  GCONV_DEVICE In* a(int buffer = 0) const { return memory + buffer * Elements; }
  GCONV_DEVICE In* b(int buffer = 0) const { return memory + buffer * Elements + ElementsA; }
};

template <class LoaderA, class LoaderB, class Lds>
struct TileMover {
  const typename LoaderA::Operand& operand_a;
  const typename LoaderB::Operand& operand_b;
  LoaderA a;
  LoaderB b;
  struct Staged {
    typename LoaderA::Staged a;
    typename LoaderB::Staged b;
  };

  GCONV_DEVICE TileMover(const typename LoaderA::Operand& oa, const typename LoaderB::Operand& ob) : operand_a(oa), operand_b(ob) {
    a.init(oa);
    b.init(ob);
  }
  // Global memory -> registers: issues the loads of one step.
  GCONV_DEVICE void load(int step, Staged& staged) const {
    a.load(operand_a, step, staged.a);
    b.load(operand_b, step, staged.b);
  }
  // Registers -> LDS: waits for the loads of that step.
  GCONV_DEVICE void store(const Lds& lds, int buffer, int step, Staged& staged) const {
    a.store(operand_a, lds.a(buffer), step, staged.a);
    b.store(operand_b, lds.b(buffer), step, staged.b);
  }
  // The same in two halves that may also be one direct copy: start issues it, finish waits until this wave's part is in LDS.
  GCONV_DEVICE void start(const Lds& lds, int buffer, int step, Staged& staged) const {
    a.start(operand_a, lds.a(buffer), step, staged.a);
    b.start(operand_b, lds.b(buffer), step, staged.b);
    hw::async_commit();
  }
  GCONV_DEVICE void finish(const Lds& lds, int buffer, int step, Staged& staged) const {
    a.finish(operand_a, lds.a(buffer), step, staged.a);
    b.finish(operand_b, lds.b(buffer), step, staged.b);
    hw::async_wait();
  }
};

// Classes of instructions for the AMD scheduler's group barriers.
constexpr int kSchedMfma = 0x008, kSchedVmemRead = 0x020, kSchedDsRead = 0x100, kSchedDsWrite = 0x200;

}  // namespace gconv
