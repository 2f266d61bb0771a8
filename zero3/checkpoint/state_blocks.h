// The blocks of elements that a rank writes from a ShardedState and reads into
// one.
//
//   TESSERA_ASSIGN_OR_RETURN(const StateShare share,
//                            ShareOf(state, shard_group, replicas));
//   for (const BlockRange& range : PlanBlocks(share, moments, 1 << 20)) ...
//   TESSERA_RETURN_IF_ERROR(ReadBlocks(state, blocks, write));
//   TESSERA_RETURN_IF_ERROR(WriteBlocks(state, blocks, bytes));
#ifndef TESSERA_ZERO3_CHECKPOINT_STATE_BLOCKS_H_
#define TESSERA_ZERO3_CHECKPOINT_STATE_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "topology/rank.h"
#include "zero3/checkpoint/shard_format.h"
#include "zero3/layout/state_format.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3 {

// The elements that each rank writes. At stages 1 to 3 these are the elements
// that the rank owns by the layout of the state. At stage 0 every rank owns all
// elements and writes an even chunk.
struct StateShare {
  StateLayout layout;
  topology::Rank rank;
};
absl::StatusOr<StateShare> ShareOf(const ShardedState& state,
                                   topology::Rank shard_rank,
                                   int64_t shard_ranks);
// The share for a state of that stage and `layout` that does not exist yet.
absl::StatusOr<StateShare> ShareOf(int stage, const StateLayout& layout,
                                   topology::Rank shard_rank,
                                   int64_t shard_ranks);

// The moments that the optimizer of a state keeps.
MomentKinds MomentsOf(const ShardedState& state);

// The blocks of a share, in the order of a shard file, of at most `elements`
// elements each (rounded up to a block of the moments), without padding.
// Precondition: elements > 0.
std::vector<BlockRange> PlanBlocks(const StateShare& share,
                                   const MomentKinds& moments,
                                   int64_t elements);

// One part of a parameter's state on this rank, which is open while this object
// exists.
class OpenPart {
 public:
  enum class Access {
    kHost,       // array() is memory of the host, if needed a copy.
    kOverwrite,  // The same, but the old contents are undefined.
    kDevice,     // array() is the state's own memory, for the part's queue.
  };
  static absl::StatusOr<OpenPart> Open(ShardedState& state,
                                       ParameterId parameter, StatePart part,
                                       Access access = Access::kHost);

  // All elements that this rank owns, possibly followed by padding.
  const StateArray& array() const { return array_; }
  // Must be called once, before the destructor.
  absl::Status Close(bool changed);

 private:
  OpenPart(ShardedState& state, ParameterId parameter, StatePart part)
      : state_(&state), parameter_(parameter), part_(part) {}

  Queue& queue() const;
  absl::StatusOr<std::byte*> OpenMemory();
  absl::Status CopyToHost(Access access);

  ShardedState* state_;
  ParameterId parameter_;
  StatePart part_;
  StateArray array_;
  std::span<std::byte> device_;  // Copied to `host_`; empty without a copy.
  std::vector<std::byte> host_;
};

// ReadBlocks passes the bytes of each block to `use`, in order; they are valid
// during the call. Stops at the first error. Precondition: this rank owns the
// blocks.
using BlockUse = absl::FunctionRef<absl::Status(
    const BlockRange& range, std::span<const std::byte> bytes)>;
absl::Status ReadBlocks(ShardedState& state, std::span<const BlockRange> blocks,
                        BlockUse use);

// Overwrites the blocks with `source`, their bytes one block after the other.
// InvalidArgument, without a change, if it has another size. Precondition: the
// blocks are all those of the parts that they belong to, as PlanBlocks of this
// rank's own share lists them.
absl::Status WriteBlocks(ShardedState& state,
                         std::span<const BlockRange> blocks,
                         std::span<const std::byte> source);

// Starts to copy the bytes of the blocks, one block after the other, to
// `target`, staging memory of the state's device. The copy is complete when the
// event happens; the state's queue may change the state at once.
absl::StatusOr<Event> StartCopyOfBlocks(ShardedState& state,
                                        std::span<const BlockRange> blocks,
                                        std::span<std::byte> target);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_STATE_BLOCKS_H_
