#include "tensor_parallel/layers/vocabulary_parallel_projection.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

absl::Status CheckTied(const Parameter& table, const Parameter::Spec& wanted) {
  if (table.shape() == wanted.shape && table.rows() == wanted.rows &&
      table.columns() == wanted.columns && table.dtype() == wanted.dtype) {
    return absl::OkStatus();
  }
  const auto describe = [](const std::vector<int64_t>& shape,
                           const std::vector<ParameterRows>& rows,
                           DType dtype) {
    const IndexRange range = rows.empty() ? IndexRange{} : rows[0].range;
    return absl::StrCat("rows ", range.begin, " to ", range.end, " of ",
                        shape[0], " x ", shape.size() < 2 ? 1 : shape[1], " ",
                        DTypeName(dtype));
  };
  return absl::InvalidArgumentError(absl::StrCat(
      "a projection tied to \"", table.name(), "\", which is ",
      describe(table.shape(), table.rows(), table.dtype()), "; it should be ",
      describe(wanted.shape, wanted.rows, wanted.dtype)));
}

}  // namespace

absl::StatusOr<VocabularyParallelProjection>
VocabularyParallelProjection::Create(const TensorGroup& group,
                                     const EmbeddingOptions& options,
                                     Parameter* tied) {
  if (options.width < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a projection of width ", options.width, "; 0 and more are allowed"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const Partition vocabulary,
      Partition::Balanced(options.vocabulary, group.size()));
  const Parameter::Spec spec = {.name = "weight",
                                .shape = {options.vocabulary, options.width},
                                .rows = {{vocabulary.RangeOf(group.rank())}},
                                .columns = {0, options.width},
                                .dtype = options.dtype,
                                .has_memory = group.has_weight_memory()};
  if (tied != nullptr) {
    TESSERA_RETURN_IF_ERROR(CheckTied(*tied, spec));
    return VocabularyParallelProjection(group, options, vocabulary, nullptr,
                                        tied);
  }
  TESSERA_ASSIGN_OR_RETURN(Parameter table, Parameter::Create(spec));
  auto own = std::make_unique<Parameter>(std::move(table));
  Parameter* const pointer = own.get();
  return VocabularyParallelProjection(group, options, vocabulary,
                                      std::move(own), pointer);
}

void VocabularyParallelProjection::AppendParameters(
    std::string_view prefix, std::vector<Parameter*>& parameters) {
  if (tied()) return;
  table_->Rename(ParameterName(prefix, "weight"));
  parameters.push_back(table_);
}

absl::StatusOr<ConstTensorView> VocabularyParallelProjection::AllTokens(
    const Partition& tokens, ConstTensorView x) {
  if (!options_.sequence_parallel) return x;
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_x_.Get(options_.dtype, {{tokens.size(), options_.width}}));
  TESSERA_RETURN_IF_ERROR(group_.GatherTokens(tokens, x, all));
  return ConstTensorView(all);
}

absl::Status VocabularyParallelProjection::Forward(const Partition& tokens,
                                                   ConstTensorView x,
                                                   TensorView logits) {
  TESSERA_RETURN_IF_ERROR(table_->CheckValue());
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all, AllTokens(tokens, x));
  return group_.ops().Gemm({.transpose_b = true}, all, table_->value(), logits);
}

absl::StatusOr<Pending> VocabularyParallelProjection::StartBackwardInput(
    const Partition& tokens, ConstTensorView gradient, TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(table_->CheckValue());
  if (!options_.sequence_parallel) {
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Gemm({}, gradient, table_->value(), x_gradient));
    return group_.StartSumOver(x_gradient);
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_x_gradient_.Get(options_.dtype, {{tokens.size(), options_.width}}));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().Gemm({}, gradient, table_->value(), all));
  return group_.StartScatterSums(tokens, all, x_gradient);
}

absl::Status VocabularyParallelProjection::BackwardInput(
    const Partition& tokens, ConstTensorView gradient, TensorView x_gradient) {
  TESSERA_ASSIGN_OR_RETURN(Pending sum,
                           StartBackwardInput(tokens, gradient, x_gradient));
  return sum.Wait();
}

absl::Status VocabularyParallelProjection::BackwardWeight(
    const Partition& tokens, ConstTensorView gradient, ConstTensorView x) {
  TESSERA_RETURN_IF_ERROR(table_->CheckGradient());
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all, AllTokens(tokens, x));
  return group_.ops().Gemm({.transpose_a = true, .beta = 1}, gradient, all,
                           table_->gradient());
}

absl::Status VocabularyParallelProjection::Backward(const Partition& tokens,
                                                    ConstTensorView gradient,
                                                    ConstTensorView x,
                                                    TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(table_->CheckGradient());
  ConstTensorView all = x;
  Pending gathered;
  if (options_.sequence_parallel) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView to,
        all_x_.Get(options_.dtype, {{tokens.size(), options_.width}}));
    TESSERA_ASSIGN_OR_RETURN(gathered, group_.StartGatherTokens(tokens, x, to));
    all = to;
  }
  absl::StatusOr<Pending> sum =
      StartBackwardInput(tokens, gradient, x_gradient);
  // What was started must end before its buffers may go, error or not.
  absl::Status status = gathered.Wait();
  if (status.ok() && sum.ok()) {
    status = group_.ops().Gemm({.transpose_a = true, .beta = 1}, gradient, all,
                               table_->gradient());
  }
  if (!sum.ok()) return sum.status();
  status.Update(sum->Wait());
  return status;
}

}  // namespace tessera::tensor_parallel
