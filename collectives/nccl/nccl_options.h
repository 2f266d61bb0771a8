// What the nccl engine can be told.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_OPTIONS_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_OPTIONS_H_

#include <cuda_runtime_api.h>

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace tessera::collectives {

struct NcclOptions {
  // The GPU of this rank; none: the calling thread's current device.
  std::optional<int> device = std::nullopt;

  // The stream that collectives run on, behind what is there already; it
  // outlives the engine. None: one of the engine's own. Then the caller's work
  // on the buffers must be done before it calls.
  std::optional<cudaStream_t> stream = std::nullopt;

  // Tells this world from others that meet at the same store; the same on all
  // ranks.
  std::string name = "world";

  // Every collective begins with an exchange of 32 bytes a rank: calls that do
  // not match are errors at once, which show both sides. Otherwise the ranks
  // wait for each other until the deadline. The same on all ranks.
  bool check_signatures = false;

  // How long the ranks wait for each other when the engine is created.
  absl::Duration timeout = absl::Seconds(120);
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_OPTIONS_H_
