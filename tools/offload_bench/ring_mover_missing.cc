#include "tools/offload_bench/raw_file.h"

namespace tessera::offload_bench {

absl::StatusOr<std::unique_ptr<RawMover>> MakeRingMover(int /*depth*/) {
  return absl::UnimplementedError(
      "io_uring is not built in: install liburing's headers and build again");
}

}  // namespace tessera::offload_bench
