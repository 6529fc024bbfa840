// The copy engine of the simulator; ../copy_engine.hpp has the contract. A copy is done when it is started: waits that are missing show
// when the reading wave runs first, as it does in some order of the lanes.
#pragma once

#include "sim.hpp"

#if GCONV_SIM_SM >= 90
#define GCONV_COPY_ENGINE 1
#endif
#define GCONV_TENSOR_MAP(i)  // maps come through the machine, because kernels have one type there
#define GCONV_TENSOR_MAP_ARGUMENT(i) , ((const gconv::hw::TensorMap*)gconv::sim::context->maps)[i]

namespace gconv {
namespace hw {

// As gconvdsl/tensor_map.py packs it.
struct alignas(64) TensorMap {
  unsigned long long address;
  unsigned long long dims[5];
  unsigned long long strides[4];  // bytes, of axis 1 and so on
  unsigned short box[5], steps[5], rank, element_bytes, swizzle;
};

GCONV_DEVICE_INLINE void wave_sync(int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  sim::collective(sim::kWaveSync, nullptr, {file, line});
}

#if defined(GCONV_COPY_ENGINE)
typedef sim::Mbarrier Mbarrier;

GCONV_DEVICE_INLINE void mbarrier_init(Mbarrier& b, int arrivals) { b = {(unsigned short)arrivals, (unsigned short)arrivals, 0, 0}; }
GCONV_DEVICE_INLINE void mbarrier_init_done() {}
GCONV_DEVICE_INLINE void mbarrier_advance(Mbarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.pending = b.arrivals;
  b.parity = (unsigned short)(b.parity ^ 1);
}
GCONV_DEVICE_INLINE void mbarrier_arrive(Mbarrier& b, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  if (b.pending == 0) sim::context->services->fail(sim::context, "more arrivals at an mbarrier than it was made for", {file, line});
  b.pending = (unsigned short)(b.pending - 1);
  mbarrier_advance(b);
}
GCONV_DEVICE_INLINE void mbarrier_expect(Mbarrier& b, int bytes, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  b.bytes += bytes;
  mbarrier_arrive(b, line, file);
}
GCONV_DEVICE_INLINE void mbarrier_wait(Mbarrier& b, int parity, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  sim::WaitOperands operands = {&b, parity, false};
  while (!operands.done) sim::collective(sim::kMbarrierWait, &operands, {file, line});
}

inline void copy_box(unsigned char* lds, const TensorMap& map, const long long (&first)[5]) {
  long long count[5], bytes = map.element_bytes;
  for (int i = 0; i < 5; ++i) count[i] = (map.box[i] + map.steps[i] - 1) / map.steps[i];
  long long total = count[0] * count[1] * count[2] * count[3] * count[4];
  for (long long number = 0; number < total; ++number) {
    long long rest = number, from = 0, to = number * bytes;
    bool inside = true;
    for (int i = 0; i < 5; ++i) {
      long long at = first[i] + rest % count[i] * map.steps[i];
      rest /= count[i];
      inside = inside && at >= 0 && at < (long long)map.dims[i];
      from += at * (i == 0 ? bytes : (long long)map.strides[i - 1]);
    }
    // The units of 16 bytes are permuted by the bits of the address above those of the swizzle's length, in groups of 128 bytes.
    long long line = to;
    if (map.swizzle != 0) line ^= ((long long)(lds + to) >> 3) & (map.swizzle - 16);
    for (long long i = 0; i < bytes; ++i) lds[line + i] = inside ? ((const unsigned char*)map.address)[from + i] : 0;
  }
}
GCONV_DEVICE_INLINE void load_box(void* lds, const TensorMap& map, Mbarrier& b, int c0, int c1, int c2 = 0, int c3 = 0, int c4 = 0,
                                  int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  long long first[5] = {c0, c1, c2, c3, c4}, bytes = map.element_bytes;
  unsigned alignment = map.swizzle == 0 ? 128 : 8 * map.swizzle;
  sim::check_alignment(lds, alignment, {file, line});
  copy_box((unsigned char*)lds, map, first);
  for (int i = 0; i < 5; ++i) bytes *= (map.box[i] + map.steps[i] - 1) / map.steps[i];
  b.bytes -= (int)bytes;
  mbarrier_advance(b);
}
GCONV_DEVICE_INLINE void prefetch(const TensorMap&) {}
GCONV_DEVICE_INLINE void async_fence() {}
#endif

}  // namespace hw
}  // namespace gconv
