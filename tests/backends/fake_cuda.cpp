// A stand-in for libcuda.so.1, and with fake_hip.hpp before it for libamdhip64.so: two devices whose memory is ordinary memory, a log of
// what was asked of them, and failures on request.
// The kernel gconv_main computes an fp32 convolution from its argument block; every address in it must be memory of its device.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gconv/args.hpp"

#ifndef FAKE_HIP
enum { kVersion = 12040, kPoolsAttribute = 115 };
const char* const kNames[] = {"H200", "A100"};
#endif

namespace {
typedef unsigned long long Address;
struct Function { std::string name; int device; unsigned shared; };
struct Block { size_t bytes; int device; };
struct Facts { int direction, filter[3], stride[3], dilation[3], Cg, Kg; } facts;

std::string log_text, failing;
int fail_status, broken, capture_status, has_pools = 1;
int contexts[2];
std::map<Address, Block> memory;
thread_local std::vector<void*> stack;
thread_local void* current;

int device_of(void* context) { return (int)((int*)context - contexts); }
Address as_number(void* p) { return (Address)p; }

template <class... T>
int did(const char* name, const char* format = "", T... values) {
  char text[512];
  snprintf(text, sizeof text, format, values...);
  log_text += std::string(name) + text + "\n";
  if (broken) return broken;
  if (failing != name) return 0;
  if (fail_status == 700) broken = fail_status;
  return fail_status;
}

bool owned(const void* p, int device) {
  auto it = memory.upper_bound((Address)p);
  if (it == memory.begin()) return false;
  --it;
  return (Address)p <= it->first + it->second.bytes && it->second.device == device;
}

float* at(void* base, const gconv::TensorView& v, const long long* i) {
  return (float*)base + i[0] * v.n + i[1] * v.g + i[2] * v.s[0] + i[3] * v.s[1] + i[4] * v.s[2] + i[5] * v.c;
}

// Visits every product of the convolution; f(x, w, y, output channel).
template <class F>
void products(const gconv::ConvArgs& a, F f) {
  const int* t = facts.filter;
  const long long sizes[10] = {a.N, a.G, facts.Kg, facts.Cg, a.out[0], a.out[1], a.out[2], t[0], t[1], t[2]};
  long long total = 1;
  for (long long size : sizes) total *= size;
  for (long long number = 0; number < total; ++number) {
    long long i[10], rest = number;
    for (int axis = 9; axis >= 0; rest /= sizes[axis--]) i[axis] = rest % sizes[axis];
    long long in[3];
    bool inside = true;
    for (int axis = 0; axis < 3; ++axis) {
      in[axis] = i[4 + axis] * facts.stride[axis] - a.pad[axis] + i[7 + axis] * facts.dilation[axis];
      inside = inside && in[axis] >= 0 && in[axis] < a.in[axis];
    }
    long long x[6] = {i[0], i[1], in[0], in[1], in[2], i[3]}, w[6] = {i[2], i[1], i[7], i[8], i[9], i[3]};
    long long y[6] = {i[0], i[1], i[4], i[5], i[6], i[2]};
    if (inside) f(at(a.x, a.xv, x), at(a.w, a.wv, w), at(a.y, a.yv, y), i[1] * facts.Kg + i[2]);
  }
}

void compute(const gconv::ConvArgs& a) {
  const float* bias = (const float*)a.operand[0];
  if (facts.direction == 0) {
    products(a, [&](float*, float*, float* y, long long k) { *y = bias ? bias[k] : 0; });
    products(a, [](float* x, float* w, float* y, long long) { *y += *x * *w; });
  } else if (facts.direction == 1) {
    products(a, [](float* x, float*, float*, long long) { *x = 0; });
    products(a, [](float* x, float* w, float* y, long long) { *x += *y * *w; });
  } else {
    products(a, [](float*, float* w, float*, long long) { *w = 0; });
    products(a, [](float* x, float* w, float* y, long long) { *w += *x * *y; });
  }
}
}  // namespace

extern "C" {
// --- what tests ask for
const char* fake_log() { return log_text.c_str(); }
void fake_reset() {
  log_text.clear();
  failing.clear();
  stack.clear();
  fail_status = broken = capture_status = 0;
  has_pools = 1;
  current = nullptr;
}
void fake_clear() { log_text.clear(); }
void fake_fail(const char* name, int status) { failing = name; fail_status = status; }
void fake_capture(int status) { capture_status = status; }
void fake_pools(int there) { has_pools = there; }
void fake_facts(const int* values) { memcpy(&facts, values, sizeof facts); }
int fake_blocks() { return (int)memory.size(); }
Address fake_memory(size_t bytes, int device) {
  void* p = malloc(bytes + 1);
  memset(p, 0xff, bytes + 1);
  memory[(Address)p] = {bytes, device};
  return (Address)p;
}

// --- the driver
int cuInit(unsigned) { return did(__func__); }
int cuDriverGetVersion(int* version) { *version = kVersion; return 0; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int, int device) { strcpy(name, kNames[device]); return 0; }
int cuDeviceGetAttribute(int* value, int which, int device) {
  *value = which == 75 ? (device ? 8 : 9) : which == 76 ? 0 : which == kPoolsAttribute ? has_pools : -1;
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = 1 << 20; return 0; }
int cuGetErrorString(int status, const char** text) {
  *text = status == 700 ? "an illegal memory access was encountered" : "a reason";
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = &contexts[device]; return did("retain", " %d", device); }
int cuCtxGetCurrent(void** context) { *context = current; return broken; }
int cuCtxGetDevice(int* device) { *device = device_of(current); return 0; }
int cuCtxSetCurrent(void* context) { current = context; return did(__func__, " %d", device_of(context)); }
int cuCtxPushCurrent_v2(void* context) { stack.push_back(current); current = context; return 0; }
int cuCtxPopCurrent_v2(void** context) { *context = current; current = stack.back(); stack.pop_back(); return 0; }
int cuPointerGetAttribute(void* data, int, Address address) {
  for (int device = 0; device < 2; ++device)
    if (owned((void*)address, device)) { *(int*)data = device; return 0; }
  return 1;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) { *free = 1000; *total = 1 << 20; return 0; }
int cuMemAlloc_v2(Address* address, size_t bytes) {
  int status = did(__func__, " %zu", bytes);
  if (!status) *address = fake_memory(bytes, device_of(current));
  return status;
}
int cuMemFree_v2(Address address) { memory.erase(address); free((void*)address); return did(__func__); }
int cuMemPoolCreate(void** pool, const int* properties) {
  *pool = &contexts[properties[3]];
  return did(__func__, " type %d handles %d location %d %d", properties[0], properties[1], properties[2], properties[3]);
}
int cuMemPoolSetAttribute(void*, int attribute, void* value) {
  return did(__func__, " %d %llu", attribute, *(Address*)value);
}
int cuMemAllocFromPoolAsync(Address* address, size_t bytes, void* pool, void* stream) {
  int status = did(__func__, " %zu stream %llu", bytes, as_number(stream));
  if (!status) *address = fake_memory(bytes, device_of(pool));
  return status;
}
int cuMemFreeAsync(Address address, void* stream) {
  memory.erase(address);
  free((void*)address);
  return did(__func__, " stream %llu", as_number(stream));
}
int cuMemcpyHtoDAsync_v2(Address target, const void* source, size_t bytes, void* stream) {
  if (!owned((void*)target, device_of(current)) || owned(source, 0) || owned(source, 1)) return 1;
  memcpy((void*)target, source, bytes);
  return did(__func__, " %zu stream %llu", bytes, as_number(stream));
}
int cuMemcpyDtoHAsync_v2(void* target, Address source, size_t bytes, void* stream) {
  if (!owned((void*)source, device_of(current))) return 1;
  memcpy(target, (void*)source, bytes);
  return did(__func__, " %zu stream %llu", bytes, as_number(stream));
}
int cuStreamSynchronize(void* stream) { return did(__func__, " %llu", as_number(stream)); }
int cuStreamIsCapturing(void*, int* status) { *status = capture_status; return 0; }
int cuStreamWaitEvent(void* stream, void*, unsigned) { return did(__func__, " stream %llu", as_number(stream)); }
int cuEventCreate(void** event, unsigned) { *event = new Address(0); return 0; }
int cuEventRecord(void* event, void* stream) {
  static Address ticks;
  *(Address*)event = ++ticks;
  return did(__func__, " stream %llu", as_number(stream));
}
int cuEventSynchronize(void*) { return broken; }
int cuEventElapsedTime(float* ms, void* start, void* end) { *ms = (float)(*(Address*)end - *(Address*)start); return 0; }
int cuEventDestroy_v2(void* event) { delete (Address*)event; return 0; }
int cuModuleLoadData(void** module, const void* image) {
  *module = current;
  return memcmp(image, "\177ELF", 4) ? 200 : did(__func__, " %d", device_of(current));
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = new Function{name, device_of(module), 48 << 10};
  return strncmp(name, "gconv_", 6) ? 500 : 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != 8 || value > 227 << 10) return 1;
  ((Function*)function)->shared = value;
  return did(__func__, " %d", value);
}
// An encoded map is its address here. Kernels called gconv_copy get maps behind their argument block.
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const Address* dims, const Address* strides, const unsigned* box,
                           const unsigned* steps, int interleave, int swizzle, int promotion, int fill) {
  if (as_number(map) % 64 || as_number(address) % 16 || rank != 4) return 1;
  *(void**)map = address;
  return did(__func__,
             " type %d at %llu dims %llu %llu %llu %llu strides %llu %llu %llu box %u %u %u %u steps %u %u %u %u modes %d %d %d %d", type,
             as_number(address), dims[0], dims[1], dims[2], dims[3], strides[0], strides[1], strides[2], box[0], box[1], box[2], box[3],
             steps[0], steps[1], steps[2], steps[3], interleave, swizzle, promotion, fill);
}
int cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** parameters, void** extra) {
  Function* function = (Function*)handle;
  if (extra || by != 1 || bz != 1 || shared > function->shared || function->device != device_of(current)) return 1;
  gconv::ConvArgs args;
  memcpy(&args, parameters[0], sizeof args);
  int status = did(__func__, " %s grid %u %u %u block %u shared %u stream %llu", function->name.c_str(), gx, gy, gz, bx,
                   shared, as_number(stream));
  if (function->name == "gconv_copy")
    for (int i = 1; i <= 2; ++i) did("map", " at %llu", *(Address*)parameters[i]);
  if (status || function->name != "gconv_main") return status;
  for (void* p : {args.x, args.w, args.y}) if (!owned(p, function->device)) return broken = 700;
  if (args.operand[0] && !owned(args.operand[0], function->device)) return broken = 700;
  compute(args);
  return 0;
}
// A launch with attributes (CUlaunchConfig): the log says which.
struct LaunchAttribute {
  int id, padding, value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};
int cuLaunchKernelEx(const LaunchConfig* config, void* handle, void** parameters, void** extra) {
  for (unsigned i = 0; i < config->count; ++i) did("attribute", " %d %d", config->attributes[i].id, config->attributes[i].value[0]);
  return cuLaunchKernel(handle, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2],
                        config->shared, config->stream, parameters, extra);
}
}
