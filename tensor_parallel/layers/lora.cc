#include "tensor_parallel/layers/lora.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

bool IsLoraFactor(std::string_view parameter) {
  return absl::EndsWith(parameter, kLoraA) || absl::EndsWith(parameter, kLoraB);
}

absl::StatusOr<LoraAdapter> LoraAdapter::Create(
    const TensorGroup& group, const LoraOptions& options,
    const Parameter& weight, Divided divided, std::vector<IndexRange> outputs) {
  if (options.rank < 1 || !std::isfinite(options.alpha)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a LoRA adapter of rank ", options.rank, " and alpha ",
                     options.alpha, "; give a rank of 1 or more and a number"));
  }
  const bool is_first = group.rank() == 0;
  const int64_t factors = static_cast<int64_t>(outputs.size()) * options.rank;
  const bool divides_columns = divided == Divided::kColumns;
  TESSERA_ASSIGN_OR_RETURN(
      Parameter a,
      Parameter::Create(group,
                        {.name = std::string(kLoraA),
                         .shape = {factors, weight.shape()[1]},
                         .rows = {{{0, factors}, divides_columns || is_first}},
                         .columns = weight.columns(),
                         .replicated = !divides_columns,
                         .dtype = weight.dtype()}));
  std::vector<ParameterRows> rows = weight.rows();
  if (divides_columns) {
    for (ParameterRows& held : rows) held.primary = is_first;
  }
  TESSERA_ASSIGN_OR_RETURN(
      Parameter b,
      Parameter::Create(group, {.name = std::string(kLoraB),
                                .shape = {weight.shape()[0], options.rank},
                                .rows = std::move(rows),
                                .columns = {0, options.rank},
                                .replicated = divides_columns,
                                .dtype = weight.dtype()}));
  return LoraAdapter(group, options, std::move(outputs), std::move(a),
                     std::move(b));
}

void LoraAdapter::AppendParameters(std::string_view prefix,
                                   std::vector<Parameter*>& parameters) {
  a_.Rename(ParameterName(prefix, kLoraA));
  b_.Rename(ParameterName(prefix, kLoraB));
  parameters.push_back(&a_);
  parameters.push_back(&b_);
}

absl::Status LoraAdapter::CheckValues() const {
  TESSERA_RETURN_IF_ERROR(a_.CheckValue());
  return b_.CheckValue();
}

absl::Status LoraAdapter::CheckGradients() const {
  TESSERA_RETURN_IF_ERROR(a_.CheckGradient());
  return b_.CheckGradient();
}

// The rows of a, and the columns of x a^T, of a part.
IndexRange LoraAdapter::FactorsOf(size_t part) const {
  const int64_t begin = static_cast<int64_t>(part) * options_.rank;
  return {begin, begin + options_.rank};
}

absl::StatusOr<TensorView> LoraAdapter::Reduced(ReusableTensor& memory,
                                                const ConstTensorView& tokens) {
  return memory.Get(tokens.dtype(), {{tokens.shape()[0], a_.local_shape()[0]}});
}

absl::StatusOr<TensorView> LoraAdapter::InputTimesA(ConstTensorView x) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView product, Reduced(input_, x));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(
      op::Gemm{{.transpose_b = true}, x, a_.value(), product}));
  return product;
}

absl::StatusOr<TensorView> LoraAdapter::GradientTimesB(
    ConstTensorView y_gradient) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView product,
                           Reduced(gradient_, y_gradient));
  for (size_t part = 0; part < outputs_.size(); ++part) {
    const IndexRange rows = outputs_[part];
    const IndexRange factors = FactorsOf(part);
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             y_gradient.Narrow(1, rows.begin, rows.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView b,
                             b_.value().Narrow(0, rows.begin, rows.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             product.Narrow(1, factors.begin, factors.size()));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Gemm{{}, gradient, b, to}));
  }
  return product;
}

absl::Status LoraAdapter::AddForward(ConstTensorView x, TensorView y) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView product, InputTimesA(x));
  for (size_t part = 0; part < outputs_.size(); ++part) {
    const IndexRange rows = outputs_[part];
    const IndexRange factors = FactorsOf(part);
    TESSERA_ASSIGN_OR_RETURN(const TensorView from,
                             product.Narrow(1, factors.begin, factors.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView b,
                             b_.value().Narrow(0, rows.begin, rows.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             y.Narrow(1, rows.begin, rows.size()));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(
        op::Gemm{{.transpose_b = true, .alpha = options_.scale(), .beta = 1},
                 from,
                 b,
                 to}));
  }
  return absl::OkStatus();
}

absl::Status LoraAdapter::AddInputGradient(ConstTensorView y_gradient,
                                           TensorView x_gradient) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView product,
                           GradientTimesB(y_gradient));
  return group_.ops().Run(op::Gemm{
      {.alpha = options_.scale(), .beta = 1}, product, a_.value(), x_gradient});
}

absl::Status LoraAdapter::AddWeightGradients(ConstTensorView y_gradient,
                                             ConstTensorView x) {
  const double scale = options_.scale();
  TESSERA_ASSIGN_OR_RETURN(const TensorView input, InputTimesA(x));
  for (size_t part = 0; part < outputs_.size(); ++part) {
    const IndexRange rows = outputs_[part];
    const IndexRange factors = FactorsOf(part);
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             y_gradient.Narrow(1, rows.begin, rows.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView factor,
                             input.Narrow(1, factors.begin, factors.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             b_.gradient().Narrow(0, rows.begin, rows.size()));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(
        op::Gemm{{.transpose_a = true, .alpha = scale, .beta = 1},
                 gradient,
                 factor,
                 to}));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView product,
                           GradientTimesB(y_gradient));
  return group_.ops().Run(
      op::Gemm{{.transpose_a = true, .alpha = scale, .beta = 1},
               product,
               x,
               a_.gradient()});
}

absl::Status LoraAdapter::FinishGradients() {
  return group_.SumOver(a_.replicated() ? a_.gradient() : b_.gradient());
}

}  // namespace tessera::tensor_parallel
