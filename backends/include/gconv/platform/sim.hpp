// The platform layer of the simulator: the kernel source is compiled as ordinary C++ and executed by sim_runtime.cpp, one
// fiber a lane. The arch is chosen by the macro that its own compiler would define (__gfx942__, ...) or by GCONV_SIM_SM=80.
//
// hw functions take the position of their caller as hidden default arguments, so that a report names the source line.
#pragma once

#include "../types.hpp"
#include "sim_abi.hpp"
#include "sim_convert.hpp"

#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define GCONV_SIM_CDNA 1
#define GCONV_CDNA 1
#elif defined(__gfx1100__)
#define GCONV_GFX11 1
#elif defined(__gfx1200__) || defined(__gfx1201__)
#define GCONV_GFX12 1
#elif defined(__gfx1250__)
#define GCONV_GFX1250 1
#elif !defined(GCONV_SIM_SM)
#error "define the arch to simulate: __gfx942__, __gfx1100__, ... or GCONV_SIM_SM"
#endif

#define GCONV_KERNEL extern "C" __attribute__((visibility("default")))
#define GCONV_LAUNCH_BOUNDS(threads, blocks_per_cu)
#define GCONV_DEVICE_INLINE inline __attribute__((always_inline))
#define GCONV_DEVICE GCONV_DEVICE_INLINE
#define GCONV_UNROLL
#define GCONV_CLUSTER(blocks)
#define GCONV_KEEP_LOOP
#define GCONV_SCHED_GROUP_BARRIER(mask, size, group)
#define GCONV_SCHED_BARRIER()

// A block-shared array, filled with NaN by the first lane of each block that reaches its declaration. Under the address
// sanitizer it gets red zones of its own, because g++ gives none to statics of templates.
#if defined(__SANITIZE_ADDRESS__)
#define GCONV_LDS(T, name, count, byte_offset)                                                        \
  alignas(128) static unsigned char name##_storage[sizeof(T[count]) + 2 * ::gconv::sim::kRedZone];    \
  static unsigned name##_block;                                                                       \
  T(&name)[count] = *(T(*)[count])::gconv::sim::poison_guarded(name##_storage, sizeof(T[count]), name##_block)
#else
#define GCONV_LDS(T, name, count, byte_offset) \
  alignas(128) static T name[count];           \
  static unsigned name##_block;                \
  ::gconv::sim::poison(name, sizeof(name), name##_block)
#endif

extern "C" int printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_poison_memory_region(void const volatile* address, unsigned long size);
#endif

namespace gconv {
namespace sim {

static Context* context;
constexpr int kRedZone = 128;

GCONV_DEVICE_INLINE void collective(Op op, void* operands, Site site) {
  context->services->collective(context, op, operands, site);
}

GCONV_DEVICE_INLINE void check_alignment(const void* address, unsigned bytes, Site site) {
  if (((unsigned long long)address & (bytes - 1)) != 0)
    context->services->fail(context, "a vector access at an address that is not a multiple of its size", site);
}

inline void poison(void* array, unsigned long bytes, unsigned& poisoned_in) {
  if (poisoned_in == context->block_number) return;
  poisoned_in = context->block_number;
  unsigned short pattern = kPoison;
  unsigned char halves[2];
  __builtin_memcpy(halves, &pattern, 2);
  for (unsigned long i = 0; i < bytes; ++i) ((unsigned char*)array)[i] = halves[i & 1];
}

#if defined(__SANITIZE_ADDRESS__)
inline void* poison_guarded(unsigned char* storage, unsigned long bytes, unsigned& poisoned_in) {
  if (poisoned_in == 0) {
    __asan_poison_memory_region(storage, kRedZone);
    __asan_poison_memory_region(storage + kRedZone + bytes, kRedZone);
  }
  poison(storage + kRedZone, bytes, poisoned_in);
  return storage + kRedZone;
}
#endif

// The bytes arrive at the wait; until then the destination holds NaN, so that a missing wait shows.
inline void stage_copy(unsigned char* destination, const unsigned char* source, int bytes, bool valid, CopyKind kind, Site site) {
  check_alignment(destination, bytes & -bytes, site);
  if (valid) check_alignment(source, bytes & -bytes, site);
  unsigned char data[kMaxCopyBytes] = {};
  for (int i = 0; valid && i < bytes; ++i) data[i] = source[i];
  for (int i = 0; i < bytes; ++i) destination[i] = i & 1 ? kPoison >> 8 : kPoison & 0xff;
  context->services->copy(context, destination, data, bytes, kind);
}

}  // namespace sim

namespace hw {

#if defined(GCONV_SIM_CDNA)
constexpr int kWave = 64;
#else
constexpr int kWave = 32;
#endif

GCONV_DEVICE_INLINE int thread_id() { return sim::context->thread; }
GCONV_DEVICE_INLINE int block_id_x() { return sim::context->block[0]; }
GCONV_DEVICE_INLINE int block_id_y() { return sim::context->block[1]; }
GCONV_DEVICE_INLINE int block_id_z() { return sim::context->block[2]; }
GCONV_DEVICE_INLINE int lane_id() { return sim::context->lane; }
GCONV_DEVICE_INLINE int wave_id() { return sim::context->wave; }

GCONV_DEVICE_INLINE void barrier(int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  sim::context->services->barrier(sim::context, {file, line});
}

GCONV_DEVICE_INLINE unsigned shfl(unsigned v, int lane, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  sim::ShuffleOperands operands = {v, lane & (kWave - 1), 0};
  sim::collective(sim::kShuffle, &operands, {file, line});
  return operands.result;
}
GCONV_DEVICE_INLINE unsigned shfl_xor(unsigned v, int mask, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  return shfl(v, lane_id() ^ mask, line, file);
}

GCONV_DEVICE_INLINE bool any_lane(bool value, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  unsigned any = value;
  for (int mask = 1; mask < kWave; mask *= 2) any |= shfl_xor(any, mask, line, file);
  return any != 0;
}
// Hints and waits that have no meaning here: lanes run one at a time and every plain load is complete.
GCONV_DEVICE_INLINE void sched_group_barrier(int, int, int) {}
GCONV_DEVICE_INLINE void raise_priority() {}
GCONV_DEVICE_INLINE void lower_priority() {}
GCONV_DEVICE_INLINE void wait_lds(int) {}

GCONV_DEVICE_INLINE void let_launches_start() {}
GCONV_DEVICE_INLINE void wait_for_launches() {}
template <class T>
GCONV_DEVICE_INLINE T kept(T value) {
  return value;
}
GCONV_DEVICE_INLINE unsigned permute(unsigned value, unsigned selector) {  // platform/cuda.hpp
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned digit = selector >> 4 * i & 15;
    result |= (digit < 4 ? value >> 8 * digit & 0xff : 0) << 8 * i;
  }
  return result;
}
GCONV_DEVICE_INLINE unsigned multiply_high(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }

GCONV_DEVICE_INLINE float f16_to_float(unsigned short bits) { return sim::f16_to_float(bits); }
GCONV_DEVICE_INLINE unsigned short float_to_f16(float value) { return sim::float_to_f16(value); }
GCONV_DEVICE_INLINE float bf16_to_float(unsigned short bits) { return sim::bf16_to_float(bits); }
GCONV_DEVICE_INLINE unsigned short float_to_bf16(float value) { return sim::float_to_bf16(value); }
GCONV_DEVICE_INLINE unsigned float_to_f16x2(float low, float high) { return sim::float_to_f16(low) | (unsigned)sim::float_to_f16(high) << 16; }
GCONV_DEVICE_INLINE unsigned float_to_bf16x2(float low, float high) { return sim::float_to_bf16(low) | (unsigned)sim::float_to_bf16(high) << 16; }

// The vector at byte `offset` behind the block-uniform `base`, or zeros where it is not valid.
template <int Bytes, class Offset>
GCONV_DEVICE_INLINE Raw<Bytes> load_or_zero(const void* base, Offset offset, bool valid, int line = __builtin_LINE(),
                                            const char* file = __builtin_FILE()) {
  Raw<Bytes> value = {};
  if (!valid) return value;
  const char* address = (const char*)base + offset;
  sim::check_alignment(address, Bytes, {file, line});
  return *(const Raw<Bytes>*)address;
}

#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
// global_load_lds: the bytes of each lane land at the wave-uniform base + lane * bytes. wait_loads counts these copies only.
GCONV_DEVICE_INLINE void async_copy_to_lds(void* lds_wave_base, const void* global, int bytes, int line = __builtin_LINE(),
                                           const char* file = __builtin_FILE()) {
  sim::stage_copy((unsigned char*)lds_wave_base + lane_id() * bytes, (const unsigned char*)global, bytes, true, sim::kCountedCopy,
                  {file, line});
}
GCONV_DEVICE_INLINE void wait_loads(int outstanding) {
  sim::context->services->wait_copies(sim::context, outstanding, sim::kCountedCopy);
}
#else
GCONV_DEVICE_INLINE void wait_loads(int) {}
#endif
#if defined(GCONV_SIM_SM)
// cp.async: zeros are written where it is not valid.
GCONV_DEVICE_INLINE void cp_async(void* lds, const void* global, int bytes, bool valid, int line = __builtin_LINE(),
                                  const char* file = __builtin_FILE()) {
  sim::stage_copy((unsigned char*)lds, (const unsigned char*)global, bytes, valid, sim::kGroupedCopy, {file, line});
}
GCONV_DEVICE_INLINE void cp_async_commit() { sim::context->services->commit_copies(sim::context); }
GCONV_DEVICE_INLINE void cp_async_wait(int groups) {
  sim::context->services->wait_copies(sim::context, groups, sim::kGroupedCopy);
}
#endif

// Direct copies under one contract (platform/hip.hpp): lane l of the wave to lds_wave_base + l * kAsyncBytes, zeros where not valid.
#if defined(GCONV_SIM_SM) || defined(__gfx950__)
constexpr int kAsyncBytes = 16;
#else
constexpr int kAsyncBytes = 4;
#endif
#if defined(GCONV_SIM_SM)
constexpr bool kAsyncWideOffsets = true;
constexpr sim::CopyKind kDirectCopy = sim::kGroupedCopy;
template <int Bytes>
GCONV_DEVICE_INLINE void async_copy_to(void* lds, const void* from, bool valid, int line = __builtin_LINE(),
                                       const char* file = __builtin_FILE()) {
  cp_async(lds, from, Bytes, valid, line, file);
}
GCONV_DEVICE_INLINE void async_commit() { cp_async_commit(); }
template <int Groups>
GCONV_DEVICE_INLINE void async_wait_but() {  // all groups of this lane but the last few
  cp_async_wait(Groups);
}
GCONV_DEVICE_INLINE void async_wait() { cp_async_wait(0); }
#else
constexpr bool kAsyncWideOffsets = false;
constexpr sim::CopyKind kDirectCopy = sim::kCountedCopy;
GCONV_DEVICE_INLINE void async_commit() {}
GCONV_DEVICE_INLINE void async_wait() { wait_loads(0); }
#endif
template <class Offset>
GCONV_DEVICE_INLINE void async_copy_or_zero(void* lds_wave_base, const void* base, Offset offset, bool valid, int line = __builtin_LINE(),
                                            const char* file = __builtin_FILE()) {
  sim::stage_copy((unsigned char*)lds_wave_base + lane_id() * kAsyncBytes, (const unsigned char*)base + (valid ? offset : 0), kAsyncBytes,
                  valid, kDirectCopy, {file, line});
}

}  // namespace hw
}  // namespace gconv

#include "sim_mma.hpp"

// Called once by the runtime after loading; the answer is the wave size.
extern "C" __attribute__((visibility("default"))) int gconv_sim_bind(gconv::sim::Context* context) {
  gconv::sim::context = context;
  return gconv::hw::kWave;
}
