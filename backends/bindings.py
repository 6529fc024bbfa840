"""Writes the cffi modules ``_cpu_api.py``, ``_sim_api.py``, ``_hip_api.py`` and ``_cuda_api.py``.

Run as ``python -m gconvdsl.backends.bindings``.

They are checked in, because loading one takes 4 ms and parsing the declarations at run time 90 ms. Only functions whose meaning
and layout are the same in every version of the runtime are bound; structures that change between versions are not. `MemPoolProps`
is ``CUmemPoolProps`` and ``hipMemPoolProps``, which grow inside their reserved bytes, given as zeros; the properties of a HIP device
are bytes, of which `hip_driver` reads one field. Device addresses are 64-bit numbers.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CPU", "CUDA", "HIP", "SIM", "generate"]

CPU = """
void gconv_parallel(void (*kernel)(const void *args, long long task), const void *args, long long tasks, int threads);
void gconv_pack_weights(const void *args, long long task);
void gconv_convolve(const void *args, long long task);
void gconv_accumulate(const void *args, long long task);
void gconv_reduce(const void *args, long long task);
"""

SIM = """
typedef struct { int failure; int block[3]; int wave; int lane; int line; char file[256]; char reason[1024]; } Report;
typedef struct { long long grid[3]; int threads; int order; unsigned long long seed; double seconds;
                 int os_threads; int map_count; unsigned char maps[4][128]; } LaunchOptions;
void *gconv_sim_open(const char *path, Report *report);
void gconv_sim_close(void *module);
int gconv_sim_has(void *module, const char *kernel);
int gconv_sim_launch(void *module, const char *kernel, const LaunchOptions *options, const void *args, Report *report);
"""

HIP = """
int hipGetDeviceCount(int *count);
int hipGetDevice(int *device);
int hipSetDevice(int device);
int hipDeviceGetName(char *name, int length, int device);
int hipDeviceGetPCIBusId(char *id, int length, int device);
int hipDeviceGetAttribute(int *value, int attribute, int device);
int hipDeviceTotalMem(size_t *bytes, int device);
int hipGetDevicePropertiesR0600(char *properties, int device);
int hipGetDeviceProperties(char *properties, int device);
int hipRuntimeGetVersion(int *version);
const char *hipGetErrorString(int error);
int hipPointerGetAttribute(void *data, int attribute, unsigned long long address);
int hipMemGetInfo(size_t *free, size_t *total);
int hipMalloc(unsigned long long *address, size_t bytes);
int hipFree(unsigned long long address);
typedef struct { int type; int handle_types; int location_type; int location_id; void *security; size_t max_size;
                 unsigned char reserved[56]; } MemPoolProps;
int hipMemPoolCreate(void **pool, const MemPoolProps *properties);
int hipMemPoolSetAttribute(void *pool, int attribute, void *value);
int hipMallocFromPoolAsync(unsigned long long *address, size_t bytes, void *pool, void *stream);
int hipFreeAsync(unsigned long long address, void *stream);
int hipMemcpyHtoDAsync(unsigned long long target, const void *source, size_t bytes, void *stream);
int hipMemcpyDtoHAsync(void *target, unsigned long long source, size_t bytes, void *stream);
int hipStreamSynchronize(void *stream);
int hipStreamIsCapturing(void *stream, int *status);
int hipStreamWaitEvent(void *stream, void *event, unsigned int flags);
int hipEventCreateWithFlags(void **event, unsigned int flags);
int hipEventRecord(void *event, void *stream);
int hipEventSynchronize(void *event);
int hipEventElapsedTime(float *milliseconds, void *start, void *end);
int hipEventDestroy(void *event);
int hipModuleLoadData(void **module, const void *image);
int hipModuleGetFunction(void **function, void *module, const char *name);
int hipModuleLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                          unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream,
                          void **parameters, void **extra);
"""

CUDA = """
int cuInit(unsigned int flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetName(char *name, int length, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuGetErrorString(int error, const char **text);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxGetCurrent(void **context);
int cuCtxGetDevice(int *device);
int cuCtxSetCurrent(void *context);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuPointerGetAttribute(void *data, int attribute, unsigned long long address);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
typedef struct { int type; int handle_types; int location_type; int location_id; void *security; size_t max_size;
                 unsigned short usage; unsigned char reserved[54]; } MemPoolProps;
int cuMemPoolCreate(void **pool, const MemPoolProps *properties);
int cuMemPoolSetAttribute(void *pool, int attribute, void *value);
int cuMemAllocFromPoolAsync(unsigned long long *address, size_t bytes, void *pool, void *stream);
int cuMemFreeAsync(unsigned long long address, void *stream);
int cuMemcpyHtoDAsync_v2(unsigned long long target, const void *source, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *target, unsigned long long source, size_t bytes, void *stream);
int cuStreamSynchronize(void *stream);
int cuStreamIsCapturing(void *stream, int *status);
int cuStreamWaitEvent(void *stream, void *event, unsigned int flags);
int cuEventCreate(void **event, unsigned int flags);
int cuEventRecord(void *event, void *stream);
int cuEventSynchronize(void *event);
int cuEventElapsedTime(float *milliseconds, void *start, void *end);
int cuEventDestroy_v2(void *event);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuFuncSetAttribute(void *function, int attribute, int value);
int cuTensorMapEncodeTiled(void *map, int data_type, unsigned int rank, void *address, const unsigned long long *dims,
                           const unsigned long long *strides, const unsigned int *box, const unsigned int *element_strides,
                           int interleave, int swizzle, int promotion, int fill);
int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                   unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream,
                   void **parameters, void **extra);
typedef struct { int id; int padding; int value[16]; } LaunchAttribute;
typedef struct { unsigned int grid[3]; unsigned int block[3]; unsigned int shared; void *stream; LaunchAttribute *attributes;
                 unsigned int count; } LaunchConfig;
int cuLaunchKernelEx(const LaunchConfig *config, void *function, void **parameters, void **extra);
"""


def generate(directory: Path) -> None:
    """Write the modules into ``directory``."""
    from cffi import FFI
    for name, declarations in (("_cpu_api", CPU), ("_sim_api", SIM), ("_hip_api", HIP), ("_cuda_api", CUDA)):
        ffi = FFI()
        ffi.set_source(name, None)
        ffi.cdef(declarations)
        ffi.emit_python_code(str(directory / f"{name}.py"))


if __name__ == "__main__":
    generate(Path(__file__).resolve().parent)
