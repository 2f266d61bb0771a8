#include "collectives/testing/run_emulated.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "collectives/emulated/emulated_communicator.h"
#include "collectives/testing/staged_engine.h"

namespace tessera::collectives {
namespace {

absl::StatusOr<std::shared_ptr<EmulatedDevice>> DeviceOf(
    const Communicator& host, uint64_t seed) {
  return EmulatedDevice::Create(
      {.memory_bytes = size_t{1} << 30,
       .seed = seed * 1000 + static_cast<uint64_t>(host.rank().value())});
}

// A communicator like `host` that a communicator on a device can own.
absl::StatusOr<std::unique_ptr<Communicator>> Clone(Communicator& host) {
  std::vector<Rank> everyone;
  for (int64_t r = 0; r < host.size(); ++r) everyone.push_back(Rank(r));
  return host.Subgroup(everyone, host.name());
}

}  // namespace

std::vector<absl::Status> RunEmulated(int64_t ranks, uint64_t seed,
                                      const EmulatedBody& body,
                                      const CommunicatorOptions& options) {
  return RunRanks(
      ranks,
      [&](Communicator& world) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<EmulatedDevice> device,
                                 DeviceOf(world, seed));
        TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> host,
                                 Clone(world));
        TESSERA_ASSIGN_OR_RETURN(
            const std::unique_ptr<Communicator> communicator,
            CreateEmulatedCommunicator(std::move(host), *device));
        TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Queue> queue,
                                 device->CreateQueue("compute"));
        EmulatedRank rank{*communicator, *device, *queue};
        absl::Status status = body(rank);
        if (!status.ok()) communicator->Abort(status.message());
        return status;
      },
      options);
}

absl::Status RunStaged(Communicator& host, uint64_t seed,
                       const RankBody& body) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<EmulatedDevice> device,
                           DeviceOf(host, seed));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> clone, Clone(host));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                           CreateEmulatedEngine(*clone, *device));
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<Communicator> communicator,
      Communicator::CreateOnDevice(std::move(clone),
                                   StageBuffers(std::move(engine), *device)));
  absl::Status status = body(*communicator);
  if (!status.ok()) communicator->Abort(status.message());
  return status;
}

std::vector<absl::Status> RunStagedRanks(int64_t ranks, uint64_t seed,
                                         const RankBody& body,
                                         const CommunicatorOptions& options) {
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  // The world has the same name as the group of the body. It must not overwrite
  // the records of that group when the body fails.
  const std::vector<absl::Status> worlds = RunRanks(
      ranks,
      [&](Communicator& world) {
        statuses[static_cast<size_t>(world.rank().value())] =
            RunStaged(world, seed, body);
        return absl::OkStatus();
      },
      options);
  return worlds.size() == statuses.size() ? statuses : worlds;
}

}  // namespace tessera::collectives
