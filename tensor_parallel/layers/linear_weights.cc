#include "tensor_parallel/layers/linear_weights.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace tessera::tensor_parallel {

absl::StatusOr<LinearWeights> LinearWeights::Create(const Shape& shape) {
  int64_t out = 0;
  std::vector<ParameterRows> rows;
  for (const IndexRange& range : shape.rows) {
    rows.push_back({range});
    out = std::max(out, range.end);
  }
  out = shape.out.value_or(out);
  TESSERA_ASSIGN_OR_RETURN(Parameter weight,
                           Parameter::Create({.name = "weight",
                                              .shape = {out, shape.in},
                                              .rows = rows,
                                              .columns = shape.columns,
                                              .dtype = shape.dtype,
                                              .has_memory = shape.has_memory}));
  LinearWeights weights(std::move(weight));
  if (shape.bias) {
    TESSERA_ASSIGN_OR_RETURN(
        weights.bias_, Parameter::Create({.name = "bias",
                                          .shape = {out},
                                          .rows = rows,
                                          .dtype = shape.dtype,
                                          .has_memory = shape.has_memory}));
  }
  return weights;
}

absl::Status LinearWeights::CheckValues() const {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  return has_bias() ? bias_->CheckValue() : absl::OkStatus();
}

absl::Status LinearWeights::CheckGradients() const {
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  return has_bias() ? bias_->CheckGradient() : absl::OkStatus();
}

absl::Status LinearWeights::Describe(const Place& place) {
  std::vector<ParameterRows> rows = weight_.rows();
  for (size_t i = 0; i < std::min(rows.size(), place.primary.size()); ++i) {
    rows[i].primary = place.primary[i];
  }
  TESSERA_RETURN_IF_ERROR(weight_.Describe({place.out, weight_.shape()[1]},
                                           rows,
                                           /*replicated=*/false));
  if (!has_bias()) return absl::OkStatus();
  if (place.bias_replicated) {
    for (ParameterRows& held : rows) held.primary = place.bias_primary;
  }
  return bias_->Describe({place.out}, rows, place.bias_replicated);
}

void LinearWeights::AppendParameters(std::string_view prefix,
                                     std::vector<Parameter*>& parameters) {
  weight_.Rename(ParameterName(prefix, "weight"));
  parameters.push_back(&weight_);
  if (!has_bias()) return;
  bias_->Rename(ParameterName(prefix, "bias"));
  parameters.push_back(&*bias_);
}

absl::Status LinearWeights::FillNormal(const RandomKey& key, double deviation) {
  return weight_.FillNormal(key, deviation);
}

absl::Status LinearWeights::ZeroGradients() {
  TESSERA_RETURN_IF_ERROR(weight_.ZeroGradient());
  return has_bias() ? bias_->ZeroGradient() : absl::OkStatus();
}

absl::Status LinearWeights::ScaleGradients(double factor) {
  TESSERA_RETURN_IF_ERROR(weight_.ScaleGradient(factor));
  return has_bias() ? bias_->ScaleGradient(factor) : absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
