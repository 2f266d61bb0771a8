#include "absl/status/status.h"
#include "collectives/cuda/cuda_communicator.h"

namespace tessera::collectives::native {
namespace {

absl::Status NoToolkit() {
  return absl::UnimplementedError(
      "engine cuda: built without the CUDA toolkit; install it, or set "
      "CUDA_HOME to its directory, and build with --config=cuda");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateCudaCommunicator(
    std::unique_ptr<Communicator>, Device&) {
  return NoToolkit();
}

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(Communicator&,
                                                         Device&) {
  return NoToolkit();
}

}  // namespace tessera::collectives::native
