// Snapshot: the bytes of blocks of a state, copied to memory of their own, so
// that the state can go on.
//
//   TESSERA_ASSIGN_OR_RETURN(Snapshot snapshot,
//                            Snapshot::Take(state, blocks, accounting));
//   TESSERA_RETURN_IF_ERROR(snapshot.ForEachBlock(write));  // on any thread
#ifndef TESSERA_ZERO3_CHECKPOINT_SNAPSHOT_H_
#define TESSERA_ZERO3_CHECKPOINT_SNAPSHOT_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/tier/accounting.h"
#include "zero3/checkpoint/state_blocks.h"
#include "zero3/state/accounted_memory.h"

namespace tessera::zero3 {

class Snapshot {
 public:
  // Counts as buffers against `accounting` (null: against nothing) while it
  // lives. ResourceExhausted where there is no room.
  static absl::StatusOr<Snapshot> Take(
      ShardedState& state, std::vector<BlockRange> blocks,
      std::shared_ptr<offload::Accounting> accounting);

  absl::Status ForEachBlock(BlockUse use) const;

 private:
  std::vector<BlockRange> blocks_;
  AccountedMemory memory_;  // One block after the other.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_SNAPSHOT_H_
