#include "collectives/testing/run_cuda.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/device/emulated_device.h"
#include "base/status_macros.h"
#include "collectives/cuda/cuda_communicator.h"
#include "collectives/testing/staged_engine.h"

namespace tessera::collectives {
namespace {

// A communicator like `world` that a communicator on a device can own.
absl::StatusOr<std::unique_ptr<Communicator>> HostOf(Communicator& world) {
  return world.Split(/*colour=*/0, world.rank().value(), world.name());
}

absl::Status RunStaged(Communicator& world, Device& device,
                       const RankBody& body) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> host, HostOf(world));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                           emulated::CreateCudaEngine(*host, device));
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<Communicator> communicator,
      Communicator::CreateOnDevice(std::move(host),
                                   StageBuffers(std::move(engine), device)));
  absl::Status status = body(*communicator);
  if (!status.ok()) communicator->Abort(status.message());
  return status;
}

}  // namespace

std::vector<absl::Status> RunCuda(int64_t ranks, Device& device,
                                  const CudaBody& body,
                                  const CommunicatorOptions& options) {
  return RunRanks(
      ranks,
      [&](Communicator& world) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> host,
                                 HostOf(world));
        TESSERA_ASSIGN_OR_RETURN(
            const std::unique_ptr<Communicator> communicator,
            emulated::CreateCudaCommunicator(std::move(host), device));
        TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Queue> queue,
                                 device.CreateQueue("compute"));
        CudaRank rank{*communicator, device, *queue};
        absl::Status status = body(rank);
        if (!status.ok()) communicator->Abort(status.message());
        return status;
      },
      options);
}

std::vector<absl::Status> RunStagedCuda(int64_t ranks, uint64_t seed,
                                        const RankBody& body,
                                        const CommunicatorOptions& options) {
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  const auto device =
      EmulatedDevice::Create({.memory_bytes = size_t{4} << 30, .seed = seed});
  if (!device.ok()) return {device.status()};
  // The world has the same name as the group of the body. It must not overwrite
  // the records of that group when the body fails.
  const std::vector<absl::Status> worlds = RunRanks(
      ranks,
      [&](Communicator& world) {
        statuses[static_cast<size_t>(world.rank().value())] =
            RunStaged(world, **device, body);
        return absl::OkStatus();
      },
      options);
  return worlds.size() == statuses.size() ? statuses : worlds;
}

}  // namespace tessera::collectives
