// OpenCudaLibrary: loads a library of the CUDA toolkit when it is first used.
//
// cuBLASLt, cuDNN and NCCL take hundreds of MiB and a quarter of a second to
// load; programs that use no GPU do not pay for them and start without them.
#ifndef TESSERA_BASE_DEVICE_CUDA_LIBRARY_H_
#define TESSERA_BASE_DEVICE_CUDA_LIBRARY_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "base/os/shared_library.h"

namespace tessera {

// Opens `file`, such as "libcudnn.so.9", from the loader's search path, or from
// lib64 or lib of CUDA_HOME, CUDA_PATH or /usr/local/cuda. It stays open until
// the process ends; later calls return the same one. Thread-safe. Returns
// NotFound with the loader's reasons and what to install.
absl::StatusOr<const SharedLibrary*> OpenCudaLibrary(std::string_view file);

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_CUDA_LIBRARY_H_
