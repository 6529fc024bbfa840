"""Writes the cffi modules ``_cpu_api.py``, ``_hip_api.py`` and ``_cuda_api.py``: ``python -m gconvdsl.backends.bindings``.

They are checked in, because loading one takes 4 ms and parsing the declarations at run time 90 ms. Only functions whose meaning
and layout are the same in every version of the runtime are bound; structures that change between versions are not.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CPU", "CUDA", "HIP", "generate"]

CPU = """
void gconv_parallel(void (*kernel)(const void *args, long long task), const void *args, long long tasks, int threads);
void gconv_pack_weights(const void *args, long long task);
void gconv_convolve(const void *args, long long task);
void gconv_accumulate(const void *args, long long task);
void gconv_reduce(const void *args, long long task);
"""

HIP = """
int hipGetDeviceCount(int *count);
int hipDeviceGetName(char *name, int length, int device);
int hipDeviceGetPCIBusId(char *id, int length, int device);
int hipDeviceTotalMem(size_t *bytes, int device);
int hipRuntimeGetVersion(int *version);
const char *hipGetErrorString(int error);
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
"""


def generate(directory: Path) -> None:
    """Write the modules into ``directory``."""
    from cffi import FFI
    for name, declarations in (("_cpu_api", CPU), ("_hip_api", HIP), ("_cuda_api", CUDA)):
        ffi = FFI()
        ffi.set_source(name, None)
        ffi.cdef(declarations)
        ffi.emit_python_code(str(directory / f"{name}.py"))


if __name__ == "__main__":
    generate(Path(__file__).resolve().parent)
