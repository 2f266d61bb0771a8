// CheckpointGroups: who writes or reads a checkpoint together.
//
//   // Data parallel:
//   {.shard = &data_group}
//   // Hybrid sharding:
//   {.shard = &shard_group, .replicas = &replica_group, .world = &world}
//   // With tensor and pipeline parallel ranks:
//   {.shard = &data_group, .world = &world, .part = "tp1-pp0"}
#ifndef TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_GROUPS_H_
#define TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_GROUPS_H_

#include <string>

#include "collectives/communicator.h"

namespace tessera::zero3 {

// Not owned.
struct CheckpointGroups {
  // Those of the state (ShardedStateGroups).
  collectives::Communicator* shard = nullptr;
  // The ranks with the same place in other groups that have the same state:
  // the first of them writes.
  collectives::Communicator* replicas = nullptr;
  // All ranks of the checkpoint; null: those of `shard`.
  collectives::Communicator* world = nullptr;
  // What the part of the model is called that this shard group has.
  std::string part = "";
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_GROUPS_H_
