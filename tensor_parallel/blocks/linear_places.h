// Tells the weights of linear layers what they are parts of, which the shapes
// that they hold do not say.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_LINEAR_PLACES_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_LINEAR_PLACES_H_

#include "absl/status/status.h"
#include "tensor_parallel/layers/column_parallel_linear.h"
#include "tensor_parallel/layers/row_parallel_linear.h"
#include "tensor_parallel/layers/tensor_group.h"

namespace tessera::tensor_parallel {

absl::Status DescribeWeights(const TensorGroup& group,
                             ColumnParallelLinear& layer);
absl::Status DescribeWeights(const TensorGroup& group,
                             RowParallelLinear& layer);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_LINEAR_PLACES_H_
