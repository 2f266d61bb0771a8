#include "tensor_parallel/blocks/linear_places.h"

#include <cstdint>
#include <vector>

#include "tensor_parallel/layers/linear_weights.h"
#include "tensor_parallel/sharding/fused_partition.h"

namespace tessera::tensor_parallel {

absl::Status DescribeWeights(const TensorGroup& group,
                             ColumnParallelLinear& layer) {
  std::vector<bool> primary;
  for (const FusedPart& part : layer.partition().parts()) {
    const int64_t sharers = part.replicated ? group.size() / part.groups : 1;
    primary.push_back(group.rank() % sharers == 0);
  }
  return layer.weights().Describe(
      {.out = layer.partition().size(), .primary = std::move(primary)});
}

absl::Status DescribeWeights(const TensorGroup& group,
                             RowParallelLinear& layer) {
  return layer.weights().Describe({.out = layer.weights().out(),
                                   .bias_replicated = true,
                                   .bias_primary = group.rank() == 0});
}

}  // namespace tessera::tensor_parallel
