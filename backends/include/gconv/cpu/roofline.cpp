// The loops behind the roofline of target cpu: multiply-adds in registers, and a copy. Compiled with GCONV_LANES and the flags
// of kernels.
#include "vector.hpp"

namespace {

using gconv::cpu::Vec;

struct Copy {
  const float* from;
  float* to;
  long long floats;  // of one task, a multiple of kLanes
};

constexpr int kSums = 12;  // enough to hide the latency of a multiply-add, few enough for 16 registers

}  // namespace

// args: the number of steps (long long), each of kSums * kLanes multiply-adds.
extern "C" void gconv_fma_loop(const void* args, long long) {
  const long long steps = *static_cast<const long long*>(args);
  Vec sums[kSums], factor = gconv::cpu::broadcast(0.9999f), term = gconv::cpu::broadcast(0.0001f);
  for (int i = 0; i < kSums; i++) sums[i] = gconv::cpu::broadcast(0.001f * static_cast<float>(i));
  __asm__ volatile("" : "+m"(factor), "+m"(term));  // values the compiler does not know
  const Vec a = factor, b = term;
  for (long long s = 0; s < steps; s++)
#pragma GCC unroll 16
    for (int i = 0; i < kSums; i++) sums[i] = sums[i] * a + b;
  Vec total = sums[0];
  for (int i = 1; i < kSums; i++) total += sums[i];
  __asm__ volatile("" : : "m"(total));
}

extern "C" long long gconv_fma_flops_of_step() { return 2LL * kSums * gconv::cpu::kLanes; }

extern "C" void gconv_copy_loop(const void* args, long long task) {
  const Copy& copy = *static_cast<const Copy*>(args);
  const long long first = task * copy.floats;
  for (long long i = first; i < first + copy.floats; i += gconv::cpu::kLanes)
    gconv::cpu::store(copy.to + i, gconv::cpu::load(copy.from + i));
}
