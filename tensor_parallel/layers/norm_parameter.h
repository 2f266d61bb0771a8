// What the norms have in common: their weights, and what they ask for.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_NORM_PARAMETER_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_NORM_PARAMETER_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/norm_options.h"
#include "tensor_parallel/layers/norm_state.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"

namespace tessera::tensor_parallel::norm_internal {

// A vector of the options' width that every rank has, filled with `value`.
absl::StatusOr<Parameter> CreateWeight(const TensorGroup& group,
                                       const NormOptions& options,
                                       std::string_view name, double value);

// The rows of x, where that has two dimensions.
absl::StatusOr<int64_t> RowsOf(std::string_view norm, const ConstTensorView& x);

// FailedPrecondition where the state is not of a forward with the rows of x.
absl::Status CheckState(std::string_view norm, const ConstTensorView& x,
                        const PooledTensor& statistics);

}  // namespace tessera::tensor_parallel::norm_internal

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_NORM_PARAMETER_H_
