#include "absl/status/status.h"
#include "offload/file/uring_engine.h"

namespace tessera::offload {

absl::StatusOr<std::unique_ptr<IoEngine>> CreateUringEngine(
    int /*queue_depth*/, UringOptions /*options*/) {
  return absl::UnimplementedError(
      "io_uring is not built in: install liburing's headers and build again, "
      "or use IoEngineKind::kThreads");
}

}  // namespace tessera::offload
