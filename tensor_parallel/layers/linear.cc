#include "tensor_parallel/layers/linear.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/chunked_collectives.h"
#include "tensor_parallel/layers/linear_products.h"
#include "tensor_parallel/layers/lora.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/fused_partition.h"

namespace tessera::tensor_parallel {

namespace {

std::vector<FusedPart> PartsOf(const ColumnParallelOptions& options) {
  if (!options.parts.empty()) return options.parts;
  return {FusedPart{.size = options.out}};
}

absl::Status CheckSizes(const TensorGroup& group,
                        const ColumnParallelOptions& options,
                        const FusedPartition& partition) {
  if (options.in < 0 || options.out < 0 || group.overlap_chunks() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a linear layer of ", options.in, " inputs and ",
                     options.out, " outputs, in ", group.overlap_chunks(),
                     " chunks; 0 and more are allowed"));
  }
  if (partition.size() == options.out) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a linear layer of ", options.out,
                   " outputs whose parts "
                   "have ",
                   partition.size(), "; they should add up"));
}

// Returns true if no earlier rank holds the same outputs of the part.
bool IsFirstHolder(const FusedPartition& partition, size_t part, int64_t rank) {
  const FusedPart& of = partition.parts()[part];
  return !of.replicated || rank % (partition.ranks() / of.groups) == 0;
}

// nullopt for a LoRA rank of 0.
absl::StatusOr<std::optional<LoraAdapter>> AdapterOf(
    const TensorGroup& group, const LoraOptions& options,
    const Parameter& weight, LoraAdapter::Divided divided,
    std::vector<IndexRange> outputs) {
  if (options.rank == 0) return std::optional<LoraAdapter>();
  TESSERA_ASSIGN_OR_RETURN(
      LoraAdapter adapter,
      LoraAdapter::Create(group, options, weight, divided,
                          {.outputs = std::move(outputs)}));
  return std::optional(std::move(adapter));
}

// Adds the weight gradients of some tokens, except for the bias.
absl::Status AddProducts(ConstTensorView y_gradient, ConstTensorView x,
                         LinearProducts& products, const Parameter& weight,
                         std::optional<LoraAdapter>& adapter) {
  if (weight.trainable()) {
    TESSERA_RETURN_IF_ERROR(
        products.AddWeightGradient(y_gradient, x, weight.gradient()));
  }
  return adapter ? adapter->AddWeightGradients(y_gradient, x)
                 : absl::OkStatus();
}

}  // namespace

absl::StatusOr<LinearPart> LinearPart::Create(const TensorGroup& group,
                                              LinearWeights weights,
                                              const LoraOptions& lora,
                                              LoraAdapter::Divided divided,
                                              std::vector<IndexRange> outputs,
                                              std::shared_ptr<Fp8Scaling> fp8) {
  TESSERA_ASSIGN_OR_RETURN(std::optional<LoraAdapter> adapter,
                           AdapterOf(group, lora, weights.weight_parameter(),
                                     divided, std::move(outputs)));
  TESSERA_ASSIGN_OR_RETURN(LinearProducts products,
                           LinearProducts::Create(group, std::move(fp8)));
  return LinearPart(group, std::move(weights), std::move(adapter),
                    std::move(products));
}

void LinearPart::AppendParameters(std::string_view prefix,
                                  std::vector<Parameter*>& parameters) {
  weights_.AppendParameters(prefix, parameters);
  if (adapter_) adapter_->AppendParameters(prefix, parameters);
}

absl::Status LinearPart::CheckValues() const {
  TESSERA_RETURN_IF_ERROR(weights_.CheckValues());
  return adapter_ ? adapter_->CheckValues() : absl::OkStatus();
}

absl::Status LinearPart::CheckGradients() const {
  TESSERA_RETURN_IF_ERROR(weights_.CheckGradients());
  return adapter_ ? adapter_->CheckGradients() : absl::OkStatus();
}

bool LinearPart::HasGradients() {
  return adapter_ || weights_.weight_parameter().trainable() ||
         (weights_.has_bias() && weights_.bias_parameter().trainable());
}

absl::Status LinearPart::SetOutput(ConstTensorView x, TensorView y) {
  TESSERA_RETURN_IF_ERROR(products_.Forward(x, y));
  return adapter_ ? adapter_->AddForward(x, y) : absl::OkStatus();
}

absl::Status LinearPart::SetInputGradient(ConstTensorView y_gradient,
                                          TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(products_.InputGradient(y_gradient, x_gradient));
  return adapter_ ? adapter_->AddInputGradient(y_gradient, x_gradient)
                  : absl::OkStatus();
}

absl::Status LinearPart::AddWeightGradient(ConstTensorView y_gradient,
                                           ConstTensorView x) {
  return AddProducts(y_gradient, x, products_, weights_.weight_parameter(),
                     adapter_);
}

absl::Status LinearPart::AddBias(TensorView y) {
  return weights_.has_bias() ? group_.ops().Run(op::AddBias{weights_.bias(), y})
                             : absl::OkStatus();
}

absl::Status LinearPart::AddBiasGradient(ConstTensorView y_gradient) {
  return weights_.has_bias() && weights_.bias_parameter().trainable()
             ? group_.ops().Run(
                   op::SumRows{y_gradient, weights_.bias_gradient()})
             : absl::OkStatus();
}

absl::StatusOr<ChunkedGather> LinearPart::StartGather(std::string_view name,
                                                      const Partition& tokens,
                                                      ConstTensorView mine,
                                                      int64_t width,
                                                      ReusableTensor& all) {
  if (!group_.sequence_parallel()) {
    TESSERA_RETURN_IF_ERROR(CheckTokenRows(name, mine, tokens.size()));
    return ChunkedGather::Here(mine);
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView buffer,
                           all.Get(mine.dtype(), {{tokens.size(), width}}));
  return ChunkedGather::Start(
      group_, TokenChunks(tokens, group_.overlap_chunks()), mine, buffer);
}

absl::StatusOr<ChunkedSums> LinearPart::StartSums(
    std::string_view name, const Partition& tokens, TensorView sums,
    int64_t width, ReusableTensor& all, ChunkedSums::Compute compute) {
  const int64_t chunks = group_.overlap_chunks();
  if (!group_.sequence_parallel()) {
    TESSERA_RETURN_IF_ERROR(CheckTokenRows(name, sums, tokens.size()));
    return ChunkedSums::SumOver(group_, std::max<int64_t>(1, chunks), sums,
                                compute);
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView buffer,
                           all.Get(sums.dtype(), {{tokens.size(), width}}));
  return ChunkedSums::Scatter(group_, TokenChunks(tokens, chunks), buffer, sums,
                              compute);
}

absl::StatusOr<ColumnParallelLinear> ColumnParallelLinear::Create(
    const TensorGroup& group, const ColumnParallelOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      FusedPartition partition,
      FusedPartition::Create(PartsOf(options), group.size()));
  TESSERA_RETURN_IF_ERROR(CheckSizes(group, options, partition));
  TESSERA_ASSIGN_OR_RETURN(
      LinearWeights weights,
      LinearWeights::Create(group, {.in = options.in,
                                    .rows = partition.RangesOf(group.rank()),
                                    .columns = {0, options.in},
                                    .bias = options.bias,
                                    .dtype = options.dtype}));
  LinearWeights::Place place = {.out = options.out};
  for (size_t part = 0; part < partition.parts().size(); ++part) {
    place.primary.push_back(IsFirstHolder(partition, part, group.rank()));
  }
  TESSERA_RETURN_IF_ERROR(weights.Describe(place));
  std::vector<IndexRange> outputs;
  for (size_t part = 0; part < partition.parts().size(); ++part) {
    outputs.push_back(
        partition.LocalRange(static_cast<int64_t>(part), group.rank()));
  }
  TESSERA_ASSIGN_OR_RETURN(
      LinearPart part,
      LinearPart::Create(group, std::move(weights), options.lora,
                         LoraAdapter::Divided::kRows, std::move(outputs),
                         options.fp8));
  ColumnParallelLinear layer(std::move(part), options, std::move(partition));
  TESSERA_RETURN_IF_ERROR(layer.JoinSharers());
  return layer;
}

absl::Status ColumnParallelLinear::JoinSharers() {
  const std::vector<FusedPart>& parts = partition_.parts();
  for (size_t part = 0; part < parts.size(); ++part) {
    const int64_t sharers = group_.size() / parts[part].groups;
    if (!parts[part].replicated || sharers == 1) continue;
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<collectives::Communicator> communicator,
        group_.communicator()->Split(group_.rank() / sharers, group_.rank(),
                                     absl::StrCat("sharers of part ", part)));
    sharers_.push_back({part, std::move(communicator)});
  }
  return absl::OkStatus();
}

absl::Status ColumnParallelLinear::Forward(const Partition& tokens,
                                           ConstTensorView x, TensorView y) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckTokenRows("y", y, tokens.size()));
  TESSERA_ASSIGN_OR_RETURN(ChunkedGather gather, GatherInputs(tokens, x));
  TESSERA_RETURN_IF_ERROR(products_.LoadForForward(weights_.weight()));
  TESSERA_RETURN_IF_ERROR(gather.ForEach(
      [&](IndexRange some, ConstTensorView rows) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const TensorView part,
                                 y.Narrow(0, some.begin, some.size()));
        return SetOutput(rows, part);
      }));
  return AddBias(y);
}

// x_gradient = the sum over ranks of y_gradient w, where w has the rank's
// outputs.
absl::StatusOr<ChunkedSums> ColumnParallelLinear::StartBackwardInput(
    const Partition& tokens, ConstTensorView y_gradient,
    TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(products_.LoadForInputGradient(weights_.weight()));
  return StartSums(
      "the gradient of x", tokens, x_gradient, options_.in, all_x_gradient_,
      [&](IndexRange some, TensorView rows) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const ConstTensorView part,
                                 y_gradient.Narrow(0, some.begin, some.size()));
        return SetInputGradient(part, rows);
      });
}

absl::Status ColumnParallelLinear::BackwardInput(const Partition& tokens,
                                                 ConstTensorView y_gradient,
                                                 TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(
      CheckTokenRows("the gradient of y", y_gradient, tokens.size()));
  TESSERA_ASSIGN_OR_RETURN(ChunkedSums sums,
                           StartBackwardInput(tokens, y_gradient, x_gradient));
  return sums.Wait();
}

absl::Status ColumnParallelLinear::AddWeightGradients(
    ConstTensorView y_gradient, ChunkedGather& gather) {
  TESSERA_RETURN_IF_ERROR(
      gather.ForEach([&](IndexRange some, ConstTensorView x) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const ConstTensorView part,
                                 y_gradient.Narrow(0, some.begin, some.size()));
        return AddWeightGradient(part, x);
      }));
  return AddBiasGradient(y_gradient);
}

absl::Status ColumnParallelLinear::BackwardWeight(const Partition& tokens,
                                                  ConstTensorView y_gradient,
                                                  ConstTensorView x) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  if (!HasGradients()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      CheckTokenRows("the gradient of y", y_gradient, tokens.size()));
  TESSERA_ASSIGN_OR_RETURN(ChunkedGather gather, GatherInputs(tokens, x));
  return AddWeightGradients(y_gradient, gather);
}

absl::Status ColumnParallelLinear::Backward(const Partition& tokens,
                                            ConstTensorView y_gradient,
                                            ConstTensorView x,
                                            TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  if (!HasGradients()) {
    return BackwardInput(tokens, y_gradient, x_gradient);
  }
  TESSERA_RETURN_IF_ERROR(
      CheckTokenRows("the gradient of y", y_gradient, tokens.size()));
  // The gather of x overlaps the computation of the gradient of x, whose
  // summation overlaps the gradient of the weights.
  TESSERA_ASSIGN_OR_RETURN(ChunkedGather gather, GatherInputs(tokens, x));
  TESSERA_ASSIGN_OR_RETURN(ChunkedSums sums,
                           StartBackwardInput(tokens, y_gradient, x_gradient));
  absl::Status status = AddWeightGradients(y_gradient, gather);
  status.Update(sums.Wait());
  return status;
}

// Sums the gradient of outputs that several ranks hold.
absl::Status ColumnParallelLinear::SumSharedRows(Parameter& parameter) {
  if (!parameter.trainable()) return absl::OkStatus();
  for (const Sharers& sharers : sharers_) {
    const IndexRange rows = partition_.LocalRange(
        static_cast<int64_t>(sharers.part), group_.rank());
    const TensorGroup group(group_.ops(), sharers.communicator.get());
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView gradient,
        parameter.gradient().Narrow(0, rows.begin, rows.size()));
    TESSERA_RETURN_IF_ERROR(group.SumOver(gradient));
  }
  return absl::OkStatus();
}

absl::Status ColumnParallelLinear::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(SumSharedRows(weights_.weight_parameter()));
  if (weights_.has_bias()) {
    TESSERA_RETURN_IF_ERROR(SumSharedRows(weights_.bias_parameter()));
  }
  if (!adapter_) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(SumSharedRows(adapter_->b()));
  return adapter_->FinishGradients();
}

absl::StatusOr<RowParallelLinear> RowParallelLinear::Create(
    const TensorGroup& group, const RowParallelOptions& options) {
  const IndexRange columns = options.columns;
  if (options.in < 0 || options.out < 0 || group.overlap_chunks() < 0 ||
      columns.begin < 0 || columns.end < columns.begin ||
      columns.end > options.in) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a linear layer of ", options.in, " inputs, of which rank ",
        group.rank(), " has ", columns.begin, " to ", columns.end, ", and ",
        options.out, " outputs, in ", group.overlap_chunks(),
        " chunks; give sizes from 0 on, and inputs within them"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      LinearWeights weights,
      LinearWeights::Create(group, {.in = options.in,
                                    .rows = {{0, options.out}},
                                    .columns = columns,
                                    .bias = options.bias,
                                    .dtype = options.dtype}));
  TESSERA_RETURN_IF_ERROR(
      weights.Describe({.out = options.out,
                        .bias_replicated = true,
                        .bias_primary = group.rank() == 0}));
  TESSERA_ASSIGN_OR_RETURN(
      LinearPart part,
      LinearPart::Create(group, std::move(weights), options.lora,
                         LoraAdapter::Divided::kColumns, {{0, options.out}},
                         options.fp8));
  return RowParallelLinear(std::move(part), options);
}

// y = the sum over ranks of x w^T, plus the bias.
absl::Status RowParallelLinear::Forward(const Partition& tokens,
                                        ConstTensorView x, TensorView y) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckTokenRows("x", x, tokens.size()));
  TESSERA_RETURN_IF_ERROR(products_.LoadForForward(weights_.weight()));
  TESSERA_ASSIGN_OR_RETURN(
      ChunkedSums sums,
      StartSums("y", tokens, y, options_.out, all_y_,
                [&](IndexRange some, TensorView rows) -> absl::Status {
                  TESSERA_ASSIGN_OR_RETURN(
                      const ConstTensorView part,
                      x.Narrow(0, some.begin, some.size()));
                  return SetOutput(part, rows);
                }));
  TESSERA_RETURN_IF_ERROR(sums.Wait());
  return AddBias(y);
}

absl::Status RowParallelLinear::BackwardInput(const Partition& tokens,
                                              ConstTensorView y_gradient,
                                              TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(
      CheckTokenRows("the gradient of x", x_gradient, tokens.size()));
  TESSERA_ASSIGN_OR_RETURN(ChunkedGather gather,
                           GatherGradient(tokens, y_gradient));
  TESSERA_RETURN_IF_ERROR(products_.LoadForInputGradient(weights_.weight()));
  return gather.ForEach(
      [&](IndexRange some, ConstTensorView rows) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const TensorView part,
                                 x_gradient.Narrow(0, some.begin, some.size()));
        return SetInputGradient(rows, part);
      });
}

absl::Status RowParallelLinear::BackwardWeight(const Partition& tokens,
                                               ConstTensorView y_gradient,
                                               ConstTensorView x) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(CheckTokenRows("x", x, tokens.size()));
  if (!HasGradients()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(ChunkedGather gather,
                           GatherGradient(tokens, y_gradient));
  TESSERA_RETURN_IF_ERROR(gather.ForEach(
      [&](IndexRange some, ConstTensorView rows) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const ConstTensorView part,
                                 x.Narrow(0, some.begin, some.size()));
        return AddWeightGradient(rows, part);
      }));
  return AddBiasGradient(y_gradient);
}

absl::Status RowParallelLinear::Backward(const Partition& tokens,
                                         ConstTensorView y_gradient,
                                         ConstTensorView x,
                                         TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  if (!HasGradients()) {
    return BackwardInput(tokens, y_gradient, x_gradient);
  }
  TESSERA_RETURN_IF_ERROR(CheckTokenRows("x", x, tokens.size()));
  TESSERA_RETURN_IF_ERROR(
      CheckTokenRows("the gradient of x", x_gradient, tokens.size()));
  TESSERA_ASSIGN_OR_RETURN(ChunkedGather gather,
                           GatherGradient(tokens, y_gradient));
  TESSERA_RETURN_IF_ERROR(products_.LoadForInputGradient(weights_.weight()));
  TESSERA_RETURN_IF_ERROR(gather.ForEach(
      [&](IndexRange some, ConstTensorView rows) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const TensorView result,
                                 x_gradient.Narrow(0, some.begin, some.size()));
        TESSERA_RETURN_IF_ERROR(SetInputGradient(rows, result));
        TESSERA_ASSIGN_OR_RETURN(const ConstTensorView part,
                                 x.Narrow(0, some.begin, some.size()));
        return AddWeightGradient(rows, part);
      }));
  return AddBiasGradient(y_gradient);
}

absl::Status RowParallelLinear::FinishGradients() {
  if (adapter_) TESSERA_RETURN_IF_ERROR(adapter_->FinishGradients());
  if (!group_.sequence_parallel() || !weights_.has_bias() ||
      !weights_.bias_parameter().trainable()) {
    return absl::OkStatus();
  }
  return group_.SumOver(weights_.bias_gradient());
}

absl::StatusOr<ReplicatedLinear> ReplicatedLinear::Create(
    const TensorGroup& group, const ReplicatedOptions& options) {
  std::vector<IndexRange> outputs;
  int64_t out = 0;
  for (const int64_t size : options.outs) {
    if (size < 0 || options.in < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a linear layer of ", options.in, " inputs and ", size,
                       " outputs; 0 and more are allowed"));
    }
    outputs.push_back({out, out + size});
    out += size;
  }
  TESSERA_ASSIGN_OR_RETURN(
      Parameter weight,
      Parameter::Create(group, {.name = "weight",
                                .shape = {out, options.in},
                                .rows = {{{0, out}, group.rank() == 0}},
                                .columns = {0, options.in},
                                .replicated = true,
                                .dtype = options.dtype}));
  TESSERA_ASSIGN_OR_RETURN(
      std::optional<LoraAdapter> adapter,
      AdapterOf(group, options.lora, weight, LoraAdapter::Divided::kNone,
                std::move(outputs)));
  TESSERA_ASSIGN_OR_RETURN(LinearProducts products,
                           LinearProducts::Create(group, options.fp8));
  return ReplicatedLinear(group, std::move(weight), std::move(adapter),
                          std::move(products));
}

void ReplicatedLinear::AppendParameters(std::string_view prefix,
                                        std::vector<Parameter*>& parameters) {
  weight_.Rename(ParameterName(prefix, "weight"));
  parameters.push_back(&weight_);
  if (adapter_) adapter_->AppendParameters(prefix, parameters);
}

absl::Status ReplicatedLinear::CheckValues() const {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  return adapter_ ? adapter_->CheckValues() : absl::OkStatus();
}

absl::Status ReplicatedLinear::CheckGradients() const {
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  return adapter_ ? adapter_->CheckGradients() : absl::OkStatus();
}

absl::Status ReplicatedLinear::Forward(ConstTensorView x, TensorView y) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(products_.LoadForForward(weight_.value()));
  TESSERA_RETURN_IF_ERROR(products_.Forward(x, y));
  return adapter_ ? adapter_->AddForward(x, y) : absl::OkStatus();
}

absl::Status ReplicatedLinear::BackwardInput(ConstTensorView y_gradient,
                                             TensorView x_gradient,
                                             bool accumulate) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(products_.LoadForInputGradient(weight_.value()));
  TESSERA_RETURN_IF_ERROR(
      products_.InputGradient(y_gradient, x_gradient, accumulate));
  return adapter_ ? adapter_->AddInputGradient(y_gradient, x_gradient)
                  : absl::OkStatus();
}

absl::Status ReplicatedLinear::BackwardWeight(ConstTensorView y_gradient,
                                              ConstTensorView x) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  return AddProducts(y_gradient, x, products_, weight_, adapter_);
}

absl::Status ReplicatedLinear::FinishGradients() {
  if (adapter_) TESSERA_RETURN_IF_ERROR(adapter_->FinishGradients());
  // Without sequence parallelism each rank has seen all tokens.
  return group_.sequence_parallel() && weight_.trainable()
             ? group_.SumOver(weight_.gradient())
             : absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
