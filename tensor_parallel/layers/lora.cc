#include "tensor_parallel/layers/lora.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

absl::StatusOr<TensorView> RowsOf(TensorView matrix, IndexRange rows) {
  return matrix.Narrow(0, rows.begin, rows.size());
}
template <typename View>
absl::StatusOr<View> ColumnsOf(View matrix, IndexRange columns) {
  return matrix.Narrow(1, columns.begin, columns.size());
}

}  // namespace

bool IsLoraFactor(std::string_view parameter) {
  return absl::EndsWith(parameter, kLoraA) || absl::EndsWith(parameter, kLoraB);
}

absl::StatusOr<LoraAdapter> LoraAdapter::Create(const TensorGroup& group,
                                                const LoraOptions& options,
                                                const Parameter& weight,
                                                Divided divided,
                                                LoraProjections projections) {
  if (options.rank < 1 || !std::isfinite(options.alpha)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a LoRA adapter of rank ", options.rank, " and alpha ",
                     options.alpha, "; give a rank of 1 or more and a number"));
  }
  const bool is_first = group.rank() == 0;
  const auto held = static_cast<int64_t>(projections.outputs.size());
  const int64_t all = projections.all == 0 ? held : projections.all;
  const IndexRange factors = {projections.first * options.rank,
                              (projections.first + held) * options.rank};
  const bool divides_columns = divided == Divided::kColumns;
  TESSERA_ASSIGN_OR_RETURN(
      Parameter a, Parameter::Create(
                       group, {.name = std::string(kLoraA),
                               .shape = {all * options.rank, weight.shape()[1]},
                               .rows = {{factors, divides_columns || is_first}},
                               .columns = weight.columns(),
                               .replicated = !divides_columns,
                               .matrices = weight.matrices(),
                               .expert_parallel = weight.expert_parallel(),
                               .dtype = weight.dtype()}));
  std::vector<ParameterRows> rows = weight.rows();
  if (divides_columns) {
    for (ParameterRows& range : rows) range.primary = is_first;
  }
  TESSERA_ASSIGN_OR_RETURN(
      Parameter b,
      Parameter::Create(group, {.name = std::string(kLoraB),
                                .shape = {weight.shape()[0], options.rank},
                                .rows = std::move(rows),
                                .columns = {0, options.rank},
                                .replicated = divided != Divided::kRows,
                                .matrices = weight.matrices(),
                                .expert_parallel = weight.expert_parallel(),
                                .dtype = weight.dtype()}));
  return LoraAdapter(group, options, std::move(projections.outputs),
                     std::move(a), std::move(b));
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

// The rows of a.
IndexRange LoraAdapter::FactorsOf(std::optional<int64_t> projection) const {
  const int64_t first = projection.value_or(0);
  const int64_t end =
      projection ? first + 1 : static_cast<int64_t>(outputs_.size());
  return {first * options_.rank, end * options_.rank};
}

std::vector<LoraAdapter::Place> LoraAdapter::PlacesOf(
    std::optional<int64_t> projection) const {
  const IndexRange factors = {0, options_.rank};
  if (projection) {
    const IndexRange rows = outputs_[static_cast<size_t>(*projection)];
    return {{rows, {0, rows.size()}, factors}};
  }
  std::vector<Place> places;
  for (const IndexRange rows : outputs_) {
    const auto index = static_cast<int64_t>(places.size());
    places.push_back({rows, rows, FactorsOf(index)});
  }
  return places;
}

absl::StatusOr<TensorView> LoraAdapter::Reduced(
    ReusableTensor& memory, const ConstTensorView& tokens,
    std::optional<int64_t> projection) {
  return memory.Get(tokens.dtype(),
                    {{tokens.shape()[0], FactorsOf(projection).size()}});
}

absl::StatusOr<TensorView> LoraAdapter::InputTimesA(
    ConstTensorView x, std::optional<int64_t> projection) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView product,
                           Reduced(input_, x, projection));
  TESSERA_ASSIGN_OR_RETURN(const TensorView a,
                           RowsOf(a_.value(), FactorsOf(projection)));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().Run(op::Gemm{{.transpose_b = true}, x, a, product}));
  return product;
}

absl::StatusOr<TensorView> LoraAdapter::GradientTimesB(
    ConstTensorView y_gradient, std::optional<int64_t> projection) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView product,
                           Reduced(gradient_, y_gradient, projection));
  for (const Place& place : PlacesOf(projection)) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             ColumnsOf(y_gradient, place.y_columns));
    TESSERA_ASSIGN_OR_RETURN(const TensorView b,
                             RowsOf(b_.value(), place.outputs));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             ColumnsOf(product, place.factors));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Gemm{{}, gradient, b, to}));
  }
  return product;
}

absl::Status LoraAdapter::AddForward(ConstTensorView x, TensorView y,
                                     std::optional<int64_t> projection) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView product,
                           InputTimesA(x, projection));
  for (const Place& place : PlacesOf(projection)) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView from,
                             ColumnsOf(product, place.factors));
    TESSERA_ASSIGN_OR_RETURN(const TensorView b,
                             RowsOf(b_.value(), place.outputs));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             ColumnsOf(y, place.y_columns));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(
        op::Gemm{{.transpose_b = true, .alpha = options_.scale(), .beta = 1},
                 from,
                 b,
                 to}));
  }
  return absl::OkStatus();
}

absl::Status LoraAdapter::AddInputGradient(ConstTensorView y_gradient,
                                           TensorView x_gradient,
                                           std::optional<int64_t> projection) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView product,
                           GradientTimesB(y_gradient, projection));
  TESSERA_ASSIGN_OR_RETURN(const TensorView a,
                           RowsOf(a_.value(), FactorsOf(projection)));
  return group_.ops().Run(
      op::Gemm{{.alpha = options_.scale(), .beta = 1}, product, a, x_gradient});
}

absl::Status LoraAdapter::AddWeightGradients(
    ConstTensorView y_gradient, ConstTensorView x,
    std::optional<int64_t> projection) {
  const double scale = options_.scale();
  TESSERA_ASSIGN_OR_RETURN(const TensorView b_gradient, GradientOf(b_));
  TESSERA_ASSIGN_OR_RETURN(const TensorView input, InputTimesA(x, projection));
  for (const Place& place : PlacesOf(projection)) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             ColumnsOf(y_gradient, place.y_columns));
    TESSERA_ASSIGN_OR_RETURN(const TensorView factor,
                             ColumnsOf(input, place.factors));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             RowsOf(b_gradient, place.outputs));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(
        op::Gemm{{.transpose_a = true, .alpha = scale, .beta = 1},
                 gradient,
                 factor,
                 to}));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView product,
                           GradientTimesB(y_gradient, projection));
  TESSERA_ASSIGN_OR_RETURN(const TensorView a_gradient, GradientOf(a_));
  TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                           RowsOf(a_gradient, FactorsOf(projection)));
  return group_.ops().Run(op::Gemm{
      {.transpose_a = true, .alpha = scale, .beta = 1}, product, x, to});
}

// This rank's part of the shared factor's gradient since the last
// FinishGradients.
absl::StatusOr<TensorView> LoraAdapter::Unsummed() {
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView sum,
      unsummed_.Get(shared().gradient_dtype(), shared().local_shape()));
  if (!has_unsummed_) {
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Fill{0, sum}));
    has_unsummed_ = true;
  }
  return sum;
}

// The memory to which the gradient of a factor is added.
absl::StatusOr<TensorView> LoraAdapter::GradientOf(Parameter& factor) {
  if (SumsApart() && &factor == &shared()) return Unsummed();
  return factor.gradient();
}

absl::Status LoraAdapter::FinishGradients() {
  if (a_.replicated() && b_.replicated()) {
    if (!group_.sequence_parallel()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(group_.SumOver(a_.gradient()));
    return group_.SumOver(b_.gradient());
  }
  if (!SumsApart()) return group_.SumOver(shared().gradient());
  TESSERA_ASSIGN_OR_RETURN(const TensorView sum, Unsummed());
  has_unsummed_ = false;
  TESSERA_RETURN_IF_ERROR(group_.SumOver(sum));
  return group_.ops().Run(op::Add{sum, shared().gradient()});
}

}  // namespace tessera::tensor_parallel
