// Makes a stand-in for libamdhip64.so of that for libcuda.so.1: the same functions under HIP's names, and what only HIP has.
#define FAKE_HIP
#define cuDriverGetVersion hipRuntimeGetVersion
#define cuDeviceGetCount fake_count
#define cuDeviceGetName hipDeviceGetName
#define cuDeviceGetAttribute hipDeviceGetAttribute
#define cuDeviceTotalMem_v2 hipDeviceTotalMem
#define cuPointerGetAttribute hipPointerGetAttribute
#define cuMemGetInfo_v2 hipMemGetInfo
#define cuMemAlloc_v2 hipMalloc
#define cuMemFree_v2 hipFree
#define cuMemPoolCreate hipMemPoolCreate
#define cuMemPoolSetAttribute hipMemPoolSetAttribute
#define cuMemAllocFromPoolAsync hipMallocFromPoolAsync
#define cuMemFreeAsync hipFreeAsync
#define cuMemcpyHtoDAsync_v2 hipMemcpyHtoDAsync
#define cuMemcpyDtoHAsync_v2 hipMemcpyDtoHAsync
#define cuStreamSynchronize hipStreamSynchronize
#define cuStreamIsCapturing hipStreamIsCapturing
#define cuStreamWaitEvent hipStreamWaitEvent
#define cuEventCreate hipEventCreateWithFlags
#define cuEventRecord hipEventRecord
#define cuEventSynchronize hipEventSynchronize
#define cuEventElapsedTime hipEventElapsedTime
#define cuEventDestroy_v2 hipEventDestroy
#define cuModuleLoadData hipModuleLoadData
#define cuModuleGetFunction hipModuleGetFunction
#define cuLaunchKernel hipModuleLaunchKernel
enum { kVersion = 60443484, kPoolsAttribute = 88 };
const char* const kNames[] = {"MI300X", "RX 7900 XTX"};
