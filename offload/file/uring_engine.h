// An IoEngine over the kernel's io_uring.
#ifndef TESSERA_OFFLOAD_FILE_URING_ENGINE_H_
#define TESSERA_OFFLOAD_FILE_URING_ENGINE_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "offload/file/io_engine.h"

struct io_uring;

namespace tessera::offload {

struct UringOptions {
  // The timeout for requests that the kernel rejects with EAGAIN because it is
  // short of memory. They are retried at every completion, or every millisecond
  // if none is pending; after the timeout they and all later requests fail with
  // ENOMEM. Any other error makes them fail at once with its errno.
  absl::Duration patience = absl::Seconds(5);
  // Replaces io_uring_submit, to inject errors in tests. Called under a lock,
  // by any thread.
  std::function<int(io_uring*)> submit = nullptr;
};

// Uses one ring of `queue_depth` requests and a thread that waits for
// completions. Unimplemented without liburing; Unavailable if the kernel does
// not allow it.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateUringEngine(
    int queue_depth, UringOptions options = {});

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_URING_ENGINE_H_
