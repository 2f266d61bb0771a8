// The functions of cuDNN that attention uses. LoadCudnn loads them: in this
// namespace, a call by the library's name calls the loaded library.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_CALLS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_CALLS_H_

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda_library.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

// clang-format off
#define TESSERA_CUDNN_CALLS(CALL) \
  CALL(cudnnBackendCreateDescriptor) \
  CALL(cudnnBackendDestroyDescriptor) \
  CALL(cudnnBackendExecute) \
  CALL(cudnnBackendFinalize) \
  CALL(cudnnBackendGetAttribute) \
  CALL(cudnnBackendSetAttribute) \
  CALL(cudnnCreate) \
  CALL(cudnnDestroy) \
  CALL(cudnnGetErrorString) \
  CALL(cudnnGetLastErrorString) \
  CALL(cudnnGetVersion) \
  CALL(cudnnSetStream)
// clang-format on

#define TESSERA_CALL(name) inline decltype(&::name) name = nullptr;
TESSERA_CUDNN_CALLS(TESSERA_CALL)
#undef TESSERA_CALL

// The oldest version whose attention is correct: older versions add the
// gradient of queries to the previous contents of their workspace.
inline constexpr size_t kLeastCudnnVersion = 90600;

// In the format of cudnnGetVersion and CUDNN_VERSION: 91900 is 9.19.0.
inline std::string CudnnVersionName(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".",
                      version % 100);
}

// Loads the library once; later calls return the first call's result. Must be
// called before any other function here. Thread-safe. NotFound if the library
// is missing; FailedPrecondition if it is older than kLeastCudnnVersion.
inline absl::Status LoadCudnn() {
  static const absl::Status status = []() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(
        const SharedLibrary* const library,
        OpenCudaLibrary(absl::StrCat("libcudnn.so.", CUDNN_MAJOR)));
#define TESSERA_CALL(name) \
  TESSERA_RETURN_IF_ERROR(library->Require(#name, name));
    TESSERA_CUDNN_CALLS(TESSERA_CALL)
#undef TESSERA_CALL
    if (cudnnGetVersion() < kLeastCudnnVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cuDNN ", CudnnVersionName(cudnnGetVersion()),
          " was loaded, attention needs ", CudnnVersionName(kLeastCudnnVersion),
          " or newer: install a newer libcudnn.so.", CUDNN_MAJOR,
          " (such as the Python package nvidia-cudnn-cu", CUDART_VERSION / 1000,
          ") and put its directory first into LD_LIBRARY_PATH"));
    }
    return absl::OkStatus();
  }();
  return status;
}

#undef TESSERA_CUDNN_CALLS

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_CALLS_H_
