// PlanRedistribution: the cheapest way from one layout of a tensor to another,
// as a list of collectives and local copies with their bytes.
//
//   TESSERA_ASSIGN_OR_RETURN(RedistributionPlan plan,
//                            PlanRedistribution(rows, columns, DType::kBF16));
//   plan.ToString();          // "all_to_all over tp: tp:0 -> tp:1"
//   plan.BytesOf(Rank(0));    // The bytes that rank 0 will send and receive.
//
//   step            from -> to                       a rank of n sends
//   slice           replicated -> sharded            nothing
//   pad             replicated, sharded -> partial   nothing
//   all_gather      sharded -> replicated            its shard, n - 1 times
//   reduce_scatter  partial -> sharded               the shards of the others
//   all_to_all      sharded -> sharded elsewhere     the parts that others need
//   all_reduce      partial -> replicated            both of the two above
//
// A plan is pure arithmetic: every rank finds the same one by itself. Its bytes
// are those of algorithms that move the fewest, in which each element goes
// directly from a rank that holds it to a rank that needs it.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tensor_parallel/sharding/box.h"
#include "tensor_parallel/sharding/sharded_layout.h"
#include "topology/mesh.h"
#include "topology/rank.h"

namespace tessera::tensor_parallel {

enum class StepKind {
  kSlice,
  kPad,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kAllReduce,
};

// "slice", "pad", "all_gather", ...
std::string_view StepKindName(StepKind kind);

constexpr bool IsLocal(StepKind kind) { return kind <= StepKind::kPad; }

struct RedistributionStep {
  StepKind kind = StepKind::kSlice;
  // The axes of the ranks that communicate; for pad the axis that becomes
  // partial.
  std::vector<std::string> axes;
  ShardedLayout from;
  ShardedLayout to;

  // "all_gather over tp: tp:1 -> replicated".
  std::string ToString() const;
};

struct StepBytes {
  int64_t sent = 0;      // To other ranks.
  int64_t received = 0;  // From other ranks.
  // As Communicator::Statistics counts, including the rank's own block.
  int64_t counted = 0;

  friend bool operator==(const StepBytes&, const StepBytes&) = default;
};

// The ranks that take part in a step together, and their shards before and
// after it.
struct StepGroup {
  StepKind kind = StepKind::kSlice;
  std::vector<topology::Rank> members = {};  // In the order of the messages.
  std::vector<Box> from = {};                // By member.
  std::vector<Box> to = {};

  // The elements that a member sends to another one, or to itself; members are
  // numbers. All_reduce and local steps have no blocks.
  Box BlockOf(size_t sender, size_t receiver) const;
  StepBytes BytesOf(size_t self, DType dtype) const;
  // The member's number.
  size_t IndexOf(topology::Rank rank) const;
};

// InvalidArgument if the mesh has no such rank.
absl::StatusOr<StepGroup> GroupOf(const RedistributionStep& step,
                                  topology::Rank rank);

// The steps that PlanRedistribution considers from one layout towards a target
// of the same tensor:
//   - an axis that is the last of its dimension, partial or replicated takes
//     another of these roles (partial only as in the target);
//   - a dimension, or all of them, become as in the target, or a dimension
//     keeps only its first axes that the target has too;
//   - all partial axes that the target reduces, or those that it replicates,
//     are reduced together.
std::vector<RedistributionStep> NextSteps(const ShardedLayout& from,
                                          const ShardedLayout& target);

struct PlanOptions {
  // The latency of a collective as the number of bytes that a link transfers in
  // that time: 20 us at 1 GB/s, or 1 us at 20 GB/s.
  int64_t latency_bytes = 20'000;
};

// The bytes that the busiest rank sends or receives, whichever are more, plus
// the latency of a collective. A local step costs 1.
absl::StatusOr<int64_t> CostOf(const RedistributionStep& step, DType dtype,
                               const PlanOptions& options = {});

struct RedistributionPlan {
  DType dtype = DType::kF32;
  ShardedLayout from;
  ShardedLayout to;
  std::vector<RedistributionStep> steps = {};
  int64_t cost = 0;  // The sum of CostOf.

  // The bytes of all steps. InvalidArgument if the mesh has no such rank.
  absl::StatusOr<StepBytes> BytesOf(topology::Rank rank) const;
  // One line for each step.
  std::string ToString() const;
};

// The time grows with the square of the number of ranks along the axes of both.
// Dijkstra's search (Numerische Mathematik 1, 1959) over layouts, whose edges
// are NextSteps. With many axes it ends after 2000 layouts, with the cheapest
// plan of those. InvalidArgument if the layouts have different shapes or
// meshes, no division of the mesh has the axes of both, or partial sums have to
// be reduced and their type does not support it.
absl::StatusOr<RedistributionPlan> PlanRedistribution(
    const ShardedLayout& from, const ShardedLayout& to, DType dtype,
    const PlanOptions& options = {});

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_H_
