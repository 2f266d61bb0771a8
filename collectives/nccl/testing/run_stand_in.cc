#include "collectives/nccl/testing/run_stand_in.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/testing/staged_engine.h"

namespace tessera::collectives {
namespace {

// Runs `body` with a communicator on a new device of this rank.
absl::Status RunOne(Communicator& world, uint64_t seed, bool stages,
                    const NcclApi& api, const StandInBody& body) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::shared_ptr<EmulatedDevice> device,
      EmulatedDevice::Create(
          {.memory_bytes = size_t{1} << 30,
           .seed = seed * 1000 + static_cast<uint64_t>(world.rank().value())}));
  std::vector<Rank> everyone;
  for (int64_t r = 0; r < world.size(); ++r) everyone.push_back(Rank(r));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> host,
                           world.Subgroup(everyone, world.name()));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                           CreateNcclEngine(*host, *device, api));
  if (stages) engine = StageBuffers(std::move(engine), *device);
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<Communicator> communicator,
      Communicator::CreateOnDevice(std::move(host), std::move(engine)));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Queue> queue,
                           device->CreateQueue("compute"));
  StandInRank rank{*communicator, *device, *queue};
  absl::Status status = body(rank);
  if (!status.ok()) communicator->Abort(status.message());
  return status;
}

// The world has the same name as the group of the body. It must not overwrite
// the records of that group when the body fails.
std::vector<absl::Status> RunAll(int64_t ranks, uint64_t seed, bool stages,
                                 const NcclApi& api, const StandInBody& body,
                                 const CommunicatorOptions& options) {
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  const std::vector<absl::Status> worlds = RunRanks(
      ranks,
      [&](Communicator& world) {
        statuses[static_cast<size_t>(world.rank().value())] =
            RunOne(world, seed, stages, api, body);
        return absl::OkStatus();
      },
      options);
  return worlds.size() == statuses.size() ? statuses : worlds;
}

}  // namespace

std::vector<absl::Status> RunStandIn(int64_t ranks, uint64_t seed,
                                     const StandInBody& body,
                                     const CommunicatorOptions& options,
                                     const NcclApi& api) {
  return RunAll(ranks, seed, /*stages=*/false, api, body, options);
}

std::vector<absl::Status> RunStagedStandIn(int64_t ranks, uint64_t seed,
                                           const RankBody& body,
                                           const CommunicatorOptions& options) {
  return RunAll(
      ranks, seed, /*stages=*/true, StandInNccl(),
      [&](StandInRank& rank) { return body(rank.communicator); }, options);
}

}  // namespace tessera::collectives
