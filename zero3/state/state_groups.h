// StateGroups: the groups over which a sharded state communicates.
#ifndef TESSERA_ZERO3_STATE_STATE_GROUPS_H_
#define TESSERA_ZERO3_STATE_STATE_GROUPS_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace tessera::zero3 {

// The communicators of a rank. Not owned; only used while the state is created.
struct ShardedStateGroups {
  // The ranks over which the state is sharded: data-parallel ranks.
  collectives::Communicator* shard = nullptr;
  // Hybrid sharding: the ranks with the same shards in other shard groups.
  collectives::Communicator* replicas = nullptr;
  // The ranks that hold other parts of the model (tensor and pipeline
  // parallel), for the norm of all gradients.
  collectives::Communicator* model = nullptr;
};

// One group per kind of traffic, so that they do not wait for each other.
struct StateGroups {
  // A collective of all `groups`. InvalidArgument unless `hpz_partition_size`
  // (ShardedStateOptions) divides the shard group.
  static absl::StatusOr<StateGroups> Create(const ShardedStateGroups& groups,
                                            int64_t hpz_partition_size);

  void Abort(std::string_view reason);

  std::unique_ptr<collectives::Communicator> gather;
  std::unique_ptr<collectives::Communicator> secondary;  // hpZ; may be null.
  std::unique_ptr<collectives::Communicator> reduce;
  std::unique_ptr<collectives::Communicator> agree;     // On the host.
  std::unique_ptr<collectives::Communicator> replicas;  // May be null.
  std::unique_ptr<collectives::Communicator>
      model;  // On the host; may be null.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_STATE_GROUPS_H_
