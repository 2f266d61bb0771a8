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
// A rank receives as many. These are the bytes of algorithms that move the
// fewest (each byte goes directly from a rank that holds it to a rank that
// needs it); BytesOf computes them exactly, including uneven shards.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_PLAN_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_PLAN_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/layout.h"
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
  // The axes of the group that communicates; for zero_pad, the axis that
  // becomes partial.
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
  // The bytes that Communicator::Statistics counts: the message with the rank's
  // own block (all_gather, reduce_scatter: all blocks; all_to_all: the blocks
  // sent; all_reduce: the tensor once).
  int64_t counted = 0;

  friend bool operator==(const StepBytes&, const StepBytes&) = default;
};

StepBytes BytesOf(const StepGroup& group, StepKind kind, DType dtype);

// NextSteps: every step that a search for a redistribution may take next.
//
//   for (const RedistributionStep& step : NextSteps(mesh, a, b, axes)) ...

// From `spec` towards `target`, both valid on the mesh, using `axes`:
//   - slice: an axis more on a dimension;
//   - all_gather: the last axes of a dimension fewer;
//   - all_to_all: the last axes of a dimension moved to the end of another one;
//     one dimension, or all, at once as in the target;
//   - reduce_scatter: a partial axis, or all that the target has there, on a
//     dimension;
//   - all_reduce: any of the partial axes that the target does not have so;
//   - zero_pad: an axis partial that is partial in the target.
// A fused dimension takes and loses all of its axes at once. Steps of which the
// group has one rank are slices.
std::vector<RedistributionStep> NextSteps(const topology::Mesh& mesh,
                                          const ShardSpec& spec,
                                          const ShardSpec& target,
                                          std::span<const std::string> axes);

// PlanRedistribution: the cheapest way from one spec to another.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto plan, PlanRedistribution(mesh, {{4096, 4096}}, DType::kBF16, from,
//                                     to));
//   plan.steps;          // "all_to_all over tp: [tp, -] -> [-, tp]"
//   plan.BytesOf(mesh, rank);   // what the rank will send and receive
//
// Dijkstra's search over specs (Numerische Mathematik 1, 1959), whose edges are
// the steps of next_steps.h. A step costs the bytes that its busiest rank sends
// or receives, whichever are more, and a collective also what latency is worth.
// Axes that neither spec names take no part. Pure arithmetic: every rank finds
// the same plan by itself.

struct PlanOptions {
  // The latency of one collective in bytes: those that a link transfers in that
  // time. 20 us at 1 GB/s; 1 us at 20 GB/s.
  int64_t latency_bytes = 20'000;
  // The search ends after that many specs and takes the best plan of those.
  int64_t most_specs = 2'000;
};

struct RedistributionPlan {
  Dims shape = {};
  DType dtype = DType::kF32;
  ShardSpec from = {};
  ShardSpec to = {};
  std::vector<RedistributionStep> steps = {};
  int64_t cost = 0;      // As above, in bytes.
  bool cheapest = true;  // False where the search ended early.

  // The bytes of all steps together. InvalidArgument if the mesh has no such
  // rank.
  absl::StatusOr<StepBytes> BytesOf(const topology::Mesh& mesh,
                                    topology::Rank rank) const;

  // A line for each step.
  std::string ToString() const;
};

// The cost of one step.
absl::StatusOr<int64_t> CostOf(const topology::Mesh& mesh,
                               std::span<const int64_t> shape, DType dtype,
                               const RedistributionStep& step,
                               const PlanOptions& options = {});

// InvalidArgument if a spec does not fit the mesh or the shape, no division of
// the mesh has the axes of both, or a partial sum must be reduced of a type
// that cannot be.
absl::StatusOr<RedistributionPlan> PlanRedistribution(
    const topology::Mesh& mesh, std::span<const int64_t> shape, DType dtype,
    const ShardSpec& from, const ShardSpec& to,
    const PlanOptions& options = {});

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_PLAN_H_
