// An IoEngine over the kernel's io_uring.
#ifndef TESSERA_OFFLOAD_FILE_URING_ENGINE_H_
#define TESSERA_OFFLOAD_FILE_URING_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "offload/file/io_engine.h"

namespace tessera::offload {

// One ring of `queue_depth` requests, and a thread that waits for completions.
// Unimplemented without liburing; Unavailable where the kernel refuses.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateUringEngine(int queue_depth);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_URING_ENGINE_H_
