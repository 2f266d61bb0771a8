// OnRanks: a function on every rank of an in-process world, for tests.
#ifndef TESSERA_ZERO3_CHECKPOINT_RANK_THREADS_H_
#define TESSERA_ZERO3_CHECKPOINT_RANK_THREADS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "zero3/checkpoint/checkpoint_groups.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3::testing {

struct RankGroups {
  int64_t rank = 0;  // Of the world.
  collectives::Communicator* world = nullptr;
  collectives::Communicator* shard = nullptr;
  collectives::Communicator* replicas = nullptr;  // Null where there is one.

  ShardedStateGroups of_state() const {
    return {.shard = shard, .replicas = replicas};
  }
  CheckpointGroups of_checkpoint() const {
    return {.shard = shard, .replicas = replicas, .world = world};
  }
};

// On `ranks` threads for each of `groups` groups; by world rank, what each
// returned. Rank r has place r % ranks in group r / ranks.
std::vector<absl::Status> OnRanks(
    int64_t ranks, int64_t groups,
    const std::function<absl::Status(const RankGroups&)>& body);

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_CHECKPOINT_RANK_THREADS_H_
