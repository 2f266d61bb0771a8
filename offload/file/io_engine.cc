#include "offload/file/io_engine.h"

#include "absl/strings/str_cat.h"
#include "offload/file/thread_engine.h"
#include "offload/file/uring_engine.h"

namespace tessera::offload {

absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoEngine(IoEngineKind kind,
                                                         int queue_depth) {
  if (queue_depth < 1 || queue_depth > 4096) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a queue depth of ", queue_depth, "; it is 1 to 4096, such as 16"));
  }
  if (kind != IoEngineKind::kThreads) {
    absl::StatusOr<std::unique_ptr<IoEngine>> uring =
        CreateUringEngine(queue_depth);
    if (uring.ok() || kind == IoEngineKind::kIoUring) return uring;
  }
  return CreateThreadEngine(queue_depth);
}

}  // namespace tessera::offload
