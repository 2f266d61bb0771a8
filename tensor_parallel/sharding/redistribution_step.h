// RedistributionStep: one collective, or one local copy, that takes a tensor
// from one spec to another; and the bytes that it moves.
//
//   kind            from -> to                    a rank of a group of n sends
//   slice           same -> sharded               nothing
//   zero_pad        same or sharded -> partial    nothing
//   all_gather      sharded -> same               its shard, n - 1 times
//   reduce_scatter  partial -> sharded            the shards of all others
//   all_to_all      sharded -> sharded elsewhere  what others need of its shard
//   all_reduce      partial -> same               reduce_scatter + all_gather
//
// What a rank receives mirrors it. These are the bytes of the algorithms that
// move the fewest (each byte goes straight from who has it to who needs it);
// BytesOf has them exactly, uneven shards included.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_STEP_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_STEP_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tensor_parallel/sharding/shard_spec.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {

enum class StepKind {
  kSlice,
  kZeroPad,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kAllReduce,
};

// "slice", "zero_pad", "all_gather", ...
std::string_view StepKindName(StepKind kind);

constexpr bool IsLocal(StepKind kind) { return kind <= StepKind::kZeroPad; }

struct RedistributionStep {
  StepKind kind = StepKind::kSlice;
  // Of the group that communicates; of zero_pad, the one that becomes partial.
  std::vector<std::string> axes = {};
  ShardSpec from = {};
  ShardSpec to = {};

  // "all_gather over tp: [-, tp] -> [-, -]".
  std::string ToString() const;
};
std::ostream& operator<<(std::ostream& os, const RedistributionStep& step);

// The group of a rank in a step. Blocks of collectives are in this order.
struct StepGroup {
  std::vector<topology::Rank> members;
  size_t self = 0;          // The rank's place among the members.
  std::vector<Shard> from;  // By member.
  std::vector<Shard> to;
};

// InvalidArgument as ShardOf.
absl::StatusOr<StepGroup> GroupOf(const topology::Mesh& mesh,
                                  std::span<const int64_t> shape,
                                  const RedistributionStep& step,
                                  topology::Rank rank);

// Elements in the blocks that this rank sends to, and receives from, each
// member, itself included. all_reduce: the blocks of its two halves.
std::vector<int64_t> SendCounts(const StepGroup& group, StepKind kind);
std::vector<int64_t> ReceiveCounts(const StepGroup& group, StepKind kind);

struct StepBytes {
  int64_t sent = 0;      // To other ranks.
  int64_t received = 0;  // From other ranks.
  // What Communicator::Statistics counts: the message, with the rank's own
  // block (all_gather, reduce_scatter: all blocks; all_to_all: what goes out;
  // all_reduce: the tensor once).
  int64_t counted = 0;

  friend bool operator==(const StepBytes&, const StepBytes&) = default;
};

StepBytes BytesOf(const StepGroup& group, StepKind kind, DType dtype);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_STEP_H_
