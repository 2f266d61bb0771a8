#include "tensor_parallel/layers/vocabulary.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/parameter.h"

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

absl::StatusOr<VocabularyParallelEmbedding> VocabularyParallelEmbedding::Create(
    const TensorGroup& group, const EmbeddingOptions& options) {
  if (options.width < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an embedding of width ", options.width, "; 0 and more are allowed"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const Partition vocabulary,
      Partition::Balanced(options.vocabulary, group.size()));
  TESSERA_ASSIGN_OR_RETURN(
      LinearWeights weights,
      LinearWeights::Create(group, {.in = options.width,
                                    .rows = {vocabulary.RangeOf(group.rank())},
                                    .columns = {0, options.width},
                                    .bias = false,
                                    .dtype = options.dtype,
                                    .out = options.vocabulary}));
  return VocabularyParallelEmbedding(group, options, vocabulary,
                                     std::move(weights));
}

absl::Status VocabularyParallelEmbedding::Forward(const Partition& tokens,
                                                  ConstTensorView ids,
                                                  TensorView y) {
  TESSERA_RETURN_IF_ERROR(
      CheckTokenNumbers("ids", ids, DType::kI64, tokens.size()));
  TESSERA_RETURN_IF_ERROR(weights_.CheckValues());
  const IndexRange held = vocabulary_.RangeOf(group_.rank());
  if (!group_.sequence_parallel()) {
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Run(op::GatherRows{weights_.weight(), held, ids, y}));
    TESSERA_RETURN_IF_ERROR(group_.SumOver(y));
    return Scale(y);
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_y_.Get(options_.dtype, {{tokens.size(), options_.width}}));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().Run(op::GatherRows{weights_.weight(), held, ids, all}));
  TESSERA_RETURN_IF_ERROR(group_.ScatterSums(tokens, all, y));
  return Scale(y);
}

absl::Status VocabularyParallelEmbedding::Scale(TensorView rows) {
  if (options_.scale == 1) return absl::OkStatus();
  return group_.ops().Run(op::Scale{options_.scale, rows});
}

absl::Status VocabularyParallelEmbedding::BackwardWeight(
    const Partition& tokens, ConstTensorView ids, ConstTensorView y_gradient) {
  TESSERA_RETURN_IF_ERROR(
      CheckTokenNumbers("ids", ids, DType::kI64, tokens.size()));
  if (!table().trainable()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(weights_.CheckGradients());
  const IndexRange held = vocabulary_.RangeOf(group_.rank());
  ConstTensorView gradient = y_gradient;
  if (group_.sequence_parallel() || options_.scale != 1) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView all,
        all_y_.Get(options_.dtype, {{tokens.size(), options_.width}}));
    TESSERA_RETURN_IF_ERROR(group_.sequence_parallel()
                                ? group_.GatherTokens(tokens, y_gradient, all)
                                : group_.ops().Run(op::Copy{y_gradient, all}));
    TESSERA_RETURN_IF_ERROR(Scale(all));
    gradient = all;
  }
  return group_.ops().Run(
      op::AddRows{gradient, held, ids, weights_.weight_gradient()});
}

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
                                .dtype = options.dtype};
  if (tied != nullptr) {
    TESSERA_RETURN_IF_ERROR(CheckTied(*tied, spec));
    return VocabularyParallelProjection(group, options, vocabulary, nullptr,
                                        tied);
  }
  TESSERA_ASSIGN_OR_RETURN(Parameter table, Parameter::Create(group, spec));
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
  if (!group_.sequence_parallel()) return x;
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
  return group_.ops().Run(
      op::Gemm{{.transpose_b = true}, all, table_->value(), logits});
}

absl::StatusOr<Pending> VocabularyParallelProjection::StartBackwardInput(
    const Partition& tokens, ConstTensorView gradient, TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(table_->CheckValue());
  if (!group_.sequence_parallel()) {
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Run(op::Gemm{{}, gradient, table_->value(), x_gradient}));
    return group_.StartSumOver(x_gradient);
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_x_gradient_.Get(options_.dtype, {{tokens.size(), options_.width}}));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().Run(op::Gemm{{}, gradient, table_->value(), all}));
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
  if (!table_->trainable()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(table_->CheckGradient());
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all, AllTokens(tokens, x));
  return group_.ops().Run(op::Gemm{
      {.transpose_a = true, .beta = 1}, gradient, all, table_->gradient()});
}

absl::Status VocabularyParallelProjection::Backward(const Partition& tokens,
                                                    ConstTensorView gradient,
                                                    ConstTensorView x,
                                                    TensorView x_gradient) {
  if (!table_->trainable()) return BackwardInput(tokens, gradient, x_gradient);
  TESSERA_RETURN_IF_ERROR(table_->CheckGradient());
  ConstTensorView all = x;
  Pending gathered;
  if (group_.sequence_parallel()) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView to,
        all_x_.Get(options_.dtype, {{tokens.size(), options_.width}}));
    TESSERA_ASSIGN_OR_RETURN(gathered, group_.StartGatherTokens(tokens, x, to));
    all = to;
  }
  absl::StatusOr<Pending> sum =
      StartBackwardInput(tokens, gradient, x_gradient);
  // Waits even after an error: the started collective uses buffers that are
  // about to be freed.
  absl::Status status = gathered.Wait();
  if (status.ok() && sum.ok()) {
    status = group_.ops().Run(op::Gemm{
        {.transpose_a = true, .beta = 1}, gradient, all, table_->gradient()});
  }
  if (!sum.ok()) return sum.status();
  status.Update(sum->Wait());
  return status;
}

}  // namespace tessera::tensor_parallel
