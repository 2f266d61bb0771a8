#include "collectives/testing/run_ranks.h"

#include <memory>
#include <thread>
#include <utility>

#include "collectives/in_process/in_process.h"

namespace tessera::collectives {
namespace {

absl::Status RunRank(std::unique_ptr<Engine> engine, const RankBody& body,
                     const CommunicatorOptions& options) {
  auto communicator = Communicator::Create(std::move(engine), options);
  if (!communicator.ok()) return communicator.status();
  absl::Status status = body(**communicator);
  if (!status.ok()) (*communicator)->Abort(status.message());
  return status;
}

}  // namespace

std::vector<absl::Status> RunRanks(int64_t ranks, const RankBody& body,
                                   const CommunicatorOptions& options) {
  return RunRanksOn(CreateInProcessEngines(ranks), body, options);
}

std::vector<absl::Status> RunRanksOn(
    absl::StatusOr<std::vector<std::unique_ptr<Engine>>> engines,
    const RankBody& body, const CommunicatorOptions& options) {
  if (!engines.ok()) return {engines.status()};
  std::vector<absl::Status> statuses(engines->size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < engines->size(); ++r) {
    threads.emplace_back([&, r] {
      statuses[r] = RunRank(std::move((*engines)[r]), body, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace tessera::collectives
