// A driver of CUDA with no devices: enough for cuDNN to compile plans for a
// device whose properties it is given. First in LD_LIBRARY_PATH as
// libcuda.so.1.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

enum { kSuccess = 0, kNoDevice = 100, kNotFound = 500 };

int cuInit(unsigned flags) {
  (void)flags;
  return kNoDevice;
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = 0;
  return kSuccess;
}

int cuGetErrorName(int error, const char** name) {
  (void)error;
  *name = "CUDA_ERROR_NO_DEVICE";
  return kSuccess;
}

int cuGetErrorString(int error, const char** text) {
  (void)error;
  *text = "the stub of the driver has no devices";
  return kSuccess;
}

// The entry points that cuDNN looks up. None of them is called while a plan is
// compiled.
#define NO_DEVICE(name) \
  int name(void) { return kNoDevice; }
NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuCtxGetLimit)
NO_DEVICE(cuCtxPopCurrent)
NO_DEVICE(cuCtxPushCurrent)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuKernelGetAttribute)
NO_DEVICE(cuKernelSetAttribute)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuLibraryGetKernel)
NO_DEVICE(cuLibraryLoadData)
NO_DEVICE(cuLibraryLoadFromFile)
NO_DEVICE(cuLibraryUnload)
NO_DEVICE(cuLinkAddData)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate)
NO_DEVICE(cuLinkDestroy)
NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE(cuStreamGetCtx)
NO_DEVICE(Otherwise)

int cuGetProcAddress_v2(const char* symbol, void** function, int version,
                        uint64_t flags, int* status) {
  (void)version;
  (void)flags;
  void* found = dlsym(RTLD_DEFAULT, symbol);
  *function = found != NULL ? found : (void*)Otherwise;
  if (status != NULL) *status = 0;
  return kSuccess;
}

int cuGetProcAddress(const char* symbol, void** function, int version,
                     uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
