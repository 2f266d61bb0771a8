#include "tensor_parallel/layers/norm_parameter.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel::norm_internal {

absl::StatusOr<Parameter> CreateWeight(const TensorGroup& group,
                                       const NormOptions& options,
                                       std::string_view name, double value) {
  // Not <: neither is a NaN allowed.
  if (options.width < 0 || !(options.epsilon >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a norm of width ", options.width, " and epsilon ",
                     options.epsilon, "; 0 and more are allowed"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      Parameter weight,
      Parameter::Create({.name = std::string(name),
                         .shape = {options.width},
                         .rows = {{{0, options.width}, group.rank() == 0}},
                         .replicated = true,
                         .dtype = options.dtype,
                         .has_memory = group.has_weight_memory()}));
  if (weight.has_value()) TESSERA_RETURN_IF_ERROR(weight.Fill(value));
  return weight;
}

absl::StatusOr<int64_t> RowsOf(std::string_view norm,
                               const ConstTensorView& x) {
  if (x.rank() == 2) return x.shape()[0];
  return absl::InvalidArgumentError(absl::StrCat(
      norm, " of a tensor of ", x.rank(), " dimensions; give [tokens, width]"));
}

absl::Status CheckState(std::string_view norm, const ConstTensorView& x,
                        const PooledTensor& statistics) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t rows, RowsOf(norm, x));
  if (statistics.held() && statistics.view().shape()[0] == rows) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the backward of ", norm, " for ", rows, " tokens, with the state of ",
      statistics.held()
          ? absl::StrCat("a forward of ", statistics.view().shape()[0])
          : std::string("no forward")));
}

}  // namespace tessera::tensor_parallel::norm_internal
