// What a simulated kernel and the runtime that executes it (sim_runtime.cpp) agree on. No standard headers: kernels are
// compiled freestanding, in less than a tenth of a second.
#pragma once

namespace gconv {
namespace sim {

// Where a lane is: the source position of the hw call that it has reached.
struct Site {
  const char* file;
  int line;
};

// Operations at which the lanes of a wave meet; the last lane to arrive executes it for all of them.
enum Op : int {
  kShuffle,
  kLdmatrix,
  kWaveSync,
  kMbarrierWait,
  kMfma16x16x16F16, kMfma32x32x8F16, kMfma16x16x16Bf16, kMfma32x32x8Bf16, kMfma16x16x8Bf16, kMfma32x32x4Bf16,
  kMfma16x16x4F32, kMfma32x32x2F32, kMfma16x16x32F16, kMfma32x32x16F16, kMfma16x16x32Bf16, kMfma32x32x16Bf16,
  kWmmaGfx11F16, kWmmaGfx11Bf16, kWmmaGfx12F16, kWmmaGfx12Bf16, kWmma16x16x32F16, kWmma16x16x32Bf16, kWmma16x16x4F32,
  kMma16x8x16F16, kMma16x8x16Bf16, kMma16x8x8F16, kMma16x8x8Bf16, kMma16x8x8Tf32,
  kOpCount,
};

// What each lane brings to an operation.
struct ShuffleOperands {
  unsigned value;   // what this lane offers
  int source;       // the lane it reads
  unsigned result;
};
struct MatrixOperands {
  float* d;
  const unsigned* a;
  const unsigned* b;
};
struct LdmatrixOperands {
  unsigned short row[8];  // the eight 16-bit elements at this lane's address
  int matrices;           // 1, 2 or 4
  bool transpose;
  unsigned* result;       // one register a matrix
};

// An mbarrier in LDS: a phase ends when no arrival and no byte is missing.
struct alignas(8) Mbarrier {
  unsigned short arrivals;      // of each phase
  unsigned short pending : 15;  // in this one
  unsigned short parity : 1;    // of this phase
  int bytes;                    // still to come
};
struct WaitOperands {
  const Mbarrier* barrier;
  int parity;
  bool done;
};

// Asynchronous copies: AMD counts single loads, NVIDIA counts committed groups.
enum CopyKind : int { kCountedCopy, kGroupedCopy };
constexpr int kMaxCopyBytes = 16;

struct Context;

struct Services {
  void (*barrier)(Context*, Site);
  void (*collective)(Context*, Op, void* operands, Site);
  void (*copy)(Context*, void* destination, const void* data, int bytes, CopyKind);
  void (*commit_copies)(Context*);
  void (*wait_copies)(Context*, int outstanding, CopyKind);
  void (*fail)(Context*, const char* reason, Site);  // does not return
};

// The part of the runtime's state that kernels read. The first three fields describe the lane that is running now.
struct Context {
  int thread;
  int lane;
  int wave;
  int block[3];
  unsigned block_number;  // counts the blocks run so far, never 0 inside a kernel
  const void* maps;       // tensor maps of the launch (sim_copy_engine.hpp)
  const Services* services;
};

// NaN as float and, in each half, as f16 and as bf16.
constexpr unsigned short kPoison = 0x7fc0;

}  // namespace sim
}  // namespace gconv
