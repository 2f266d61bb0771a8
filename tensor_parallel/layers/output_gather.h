// OutputGather: the outputs of a column-parallel layer, of which each rank has
// some, put together on every rank.
//
//   OutputGather gather(group, layer.partition());
//   TESSERA_RETURN_IF_ERROR(gather.Gather(my_y, y));
//   TESSERA_RETURN_IF_ERROR(gather.Slice(y_gradient, my_y_gradient));
//
// Outputs that several ranks hold (key and value heads, where there are fewer
// than ranks) are taken from the first of these, and their gradient goes to it
// alone: the others get zeros, so that sums over the ranks count it once.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_OUTPUT_GATHER_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_OUTPUT_GATHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/reusable_tensor.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/sharding/fused_partition.h"

namespace tessera::tensor_parallel {

// Whether no rank before this one holds the same outputs of the part.
bool IsFirstHolder(const FusedPartition& partition, size_t part, int64_t rank);

class OutputGather {
 public:
  OutputGather(const TensorGroup& group, const FusedPartition& partition)
      : group_(group), partition_(partition) {}

  // y [tokens, partition.size()] from `local` [tokens, the rank's outputs],
  // which is contiguous. A collective: an all-gather of y's bytes (and of what
  // ranks hold more than once).
  absl::Status Gather(ConstTensorView local, TensorView y);

  // The rank's outputs of the gradient of y. Moves nothing.
  absl::Status Slice(ConstTensorView y_gradient, TensorView local) const;

 private:
  absl::Status Place(int64_t rank, ConstTensorView local, TensorView y) const;

  TensorGroup group_;
  FusedPartition partition_;
  ReusableTensor all_{group_.memory()};
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_OUTPUT_GATHER_H_
