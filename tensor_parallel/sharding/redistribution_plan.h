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
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_PLAN_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTION_PLAN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/layout.h"
#include "tensor_parallel/sharding/redistribution_step.h"
#include "tensor_parallel/sharding/shard_spec.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {

struct PlanOptions {
  // What the latency of one collective is worth: the bytes that a link carries
  // in that time. 20 us at 1 GB/s; 1 us at 20 GB/s.
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

  // Of all steps together. InvalidArgument if the mesh has no such rank.
  absl::StatusOr<StepBytes> BytesOf(const topology::Mesh& mesh,
                                    topology::Rank rank) const;

  // A line for each step.
  std::string ToString() const;
};

// What one step costs.
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
