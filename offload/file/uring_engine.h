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
  // How long the kernel may refuse requests (EAGAIN: it is short of memory)
  // before those that it has not taken fail with ENOMEM, as all that wait
  // behind them do. It is asked again at every completion, or every millisecond
  // where none is to come. Any other refusal fails them at once, with its own
  // number.
  absl::Duration patience = absl::Seconds(5);
  // Stands for io_uring_submit, to inject refusals. Called under a lock, by any
  // thread.
  std::function<int(io_uring*)> submit = nullptr;
};

// One ring of `queue_depth` requests, and a thread that waits for completions.
// Unimplemented without liburing; Unavailable where the kernel refuses.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateUringEngine(
    int queue_depth, UringOptions options = {});

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_URING_ENGINE_H_
