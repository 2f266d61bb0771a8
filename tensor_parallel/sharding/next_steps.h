// NextSteps: every step that a search for a redistribution may take next.
//
//   for (const RedistributionStep& step : NextSteps(mesh, a, b, axes)) ...
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_NEXT_STEPS_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_NEXT_STEPS_H_

#include <span>
#include <string>
#include <vector>

#include "tensor_parallel/sharding/redistribution_step.h"
#include "tensor_parallel/sharding/shard_spec.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {

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

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_NEXT_STEPS_H_
