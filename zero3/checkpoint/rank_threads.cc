#include "zero3/checkpoint/rank_threads.h"

#include <memory>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/in_process/in_process.h"

namespace tessera::zero3::testing {
namespace {

absl::Status RunRank(
    std::unique_ptr<collectives::Engine> engine, int64_t ranks, int64_t groups,
    const std::function<absl::Status(const RankGroups&)>& body) {
  collectives::CommunicatorOptions options;
  options.timeout = absl::Minutes(2);
  TESSERA_ASSIGN_OR_RETURN(auto world, collectives::Communicator::Create(
                                           std::move(engine), options));
  const int64_t rank = world->rank().value();
  TESSERA_ASSIGN_OR_RETURN(auto shard,
                           world->Split(rank / ranks, rank, "data"));
  TESSERA_ASSIGN_OR_RETURN(auto replicas,
                           world->Split(rank % ranks, rank, "replicas"));
  return body({.rank = rank,
               .world = world.get(),
               .shard = shard.get(),
               .replicas = groups > 1 ? replicas.get() : nullptr});
}

}  // namespace

std::vector<absl::Status> OnRanks(
    int64_t ranks, int64_t groups,
    const std::function<absl::Status(const RankGroups&)>& body) {
  auto engines = collectives::CreateInProcessEngines(ranks * groups);
  std::vector<absl::Status> results(static_cast<size_t>(ranks * groups));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      results[r] = RunRank(std::move((*engines)[r]), ranks, groups, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace tessera::zero3::testing
