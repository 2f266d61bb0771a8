// The functions of cuBLASLt that products use. LoadCublasLt loads them: in this
// namespace, a call by the library's name calls the loaded library.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUBLASLT_CALLS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUBLASLT_CALLS_H_

#include <cublasLt.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda_library.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

// clang-format off
#define TESSERA_CUBLASLT_CALLS(CALL) \
  CALL(cublasLtCreate) \
  CALL(cublasLtDestroy) \
  CALL(cublasLtGetStatusName) \
  CALL(cublasLtGetStatusString) \
  CALL(cublasLtMatmul) \
  CALL(cublasLtMatmulAlgoGetHeuristic) \
  CALL(cublasLtMatmulDescCreate) \
  CALL(cublasLtMatmulDescDestroy) \
  CALL(cublasLtMatmulDescSetAttribute) \
  CALL(cublasLtMatmulPreferenceCreate) \
  CALL(cublasLtMatmulPreferenceDestroy) \
  CALL(cublasLtMatmulPreferenceSetAttribute) \
  CALL(cublasLtMatrixLayoutCreate) \
  CALL(cublasLtMatrixLayoutDestroy) \
  CALL(cublasLtMatrixLayoutSetAttribute)
// clang-format on

#define TESSERA_CALL(name) inline decltype(&::name) name = nullptr;
TESSERA_CUBLASLT_CALLS(TESSERA_CALL)
#undef TESSERA_CALL

// Loads the library once; later calls return the first call's result. Must be
// called before any other function here. Thread-safe.
inline absl::Status LoadCublasLt() {
  static const absl::Status status = []() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(
        const SharedLibrary* const library,
        OpenCudaLibrary(absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR)));
#define TESSERA_CALL(name) \
  TESSERA_RETURN_IF_ERROR(library->Require(#name, name));
    TESSERA_CUBLASLT_CALLS(TESSERA_CALL)
#undef TESSERA_CALL
    return absl::OkStatus();
  }();
  return status;
}

#undef TESSERA_CUBLASLT_CALLS

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUBLASLT_CALLS_H_
