#include "tensor_parallel/layers/parameter.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "tensor_parallel/random/rounded_normals.h"

namespace tessera::tensor_parallel {

namespace {

std::string Quoted(const std::string& name) {
  return absl::StrCat("parameter \"", name, "\"");
}

absl::Status CheckHeld(const Parameter::Spec& spec) {
  const bool vector = spec.shape.size() == 1;
  if (!vector && spec.shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(spec.name), " of ", spec.shape.size(),
                     " dimensions; one or two are allowed"));
  }
  const IndexRange columns = {0, vector ? 1 : spec.shape[1]};
  const auto within = [](IndexRange part, IndexRange whole) {
    return whole.begin <= part.begin && part.begin <= part.end &&
           part.end <= whole.end;
  };
  for (const ParameterRows& rows : spec.rows) {
    if (within(rows.range, {0, spec.shape[0]})) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(spec.name), " holds rows ", rows.range.begin, " to ",
        rows.range.end, " of ", spec.shape[0], "; give rows within it"));
  }
  if (within(spec.columns, columns) && (!vector || spec.columns == columns)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(spec.name), " holds columns ", spec.columns.begin, " to ",
      spec.columns.end, " of ", columns.end, "; give columns within it",
      vector ? ", which are 0 to 1 for a vector" : ""));
}

std::vector<int64_t> LocalShape(const Parameter::Spec& spec) {
  int64_t rows = 0;
  for (const ParameterRows& held : spec.rows) rows += held.range.size();
  if (spec.shape.size() == 1) return {rows};
  return {rows, spec.columns.size()};
}

TensorView Nothing(DType dtype) {
  return *TensorView::Create(std::span<std::byte>(), dtype, {{0, 0}});
}

}  // namespace

DType GradientDType(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

std::string ParameterName(std::string_view prefix, std::string_view name) {
  return prefix.empty() ? std::string(name) : absl::StrCat(prefix, ".", name);
}

absl::StatusOr<Parameter> Parameter::Create(const TensorGroup& group,
                                            Spec spec) {
  if (spec.dtype != DType::kF64 && spec.dtype != DType::kF32 &&
      spec.dtype != DType::kBF16 && spec.dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights of ", DTypeName(spec.dtype),
                     "; f64, f32, bf16 and f16 are allowed"));
  }
  TESSERA_RETURN_IF_ERROR(CheckHeld(spec));
  Parameter parameter(std::move(spec));
  parameter.local_shape_ = LocalShape(parameter.spec_);
  const DType dtype = parameter.dtype();
  parameter.value_.dtype = dtype;
  parameter.gradient_.dtype = GradientDType(dtype);
  if (!group.has_weight_memory()) return parameter;
  TESSERA_RETURN_IF_ERROR(parameter.Allocate(group, parameter.value_));
  if (!parameter.trainable()) return parameter;
  TESSERA_RETURN_IF_ERROR(parameter.Allocate(group, parameter.gradient_));
  return parameter;
}

absl::Status Parameter::Allocate(const TensorGroup& group,
                                 Memory& memory) const {
  TESSERA_ASSIGN_OR_RETURN(
      memory.own, Tensor::Create(memory.dtype, local_shape_, group.memory()));
  memory.view = memory.own->view();
  return group.ops().Run(op::Fill{0, *memory.view});
}

int64_t Parameter::element_count() const {
  int64_t count = 1;
  for (const int64_t size : local_shape_) count *= size;
  return count;
}

absl::Status Parameter::Describe(std::vector<int64_t> shape,
                                 std::vector<ParameterRows> rows,
                                 bool replicated) {
  Spec spec = spec_;
  spec.shape = std::move(shape);
  spec.rows = std::move(rows);
  spec.replicated = replicated;
  TESSERA_RETURN_IF_ERROR(CheckHeld(spec));
  const auto same_size = [](const ParameterRows& a, const ParameterRows& b) {
    return a.range.size() == b.range.size();
  };
  if (!std::equal(spec.rows.begin(), spec.rows.end(), spec_.rows.begin(),
                  spec_.rows.end(), same_size) ||
      spec.shape.size() != spec_.shape.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(name()), " has ", spec_.rows.size(), " ranges of rows in ",
        spec_.shape.size(), " dimensions; describe as many of the same sizes"));
  }
  spec_ = std::move(spec);
  return absl::OkStatus();
}

TensorView Parameter::value() const {
  return has_value() ? *value_.view : Nothing(value_.dtype);
}

TensorView Parameter::gradient() const {
  return has_gradient() ? *gradient_.view : Nothing(gradient_.dtype);
}

absl::Status Parameter::CheckValue() const {
  if (has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Quoted(name()), " is released; bind its values first"));
}

absl::Status Parameter::CheckGradient() const {
  if (has_gradient() || !trainable()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the gradient of ", Quoted(name()), " is released; bind it first"));
}

absl::Status Parameter::CheckView(std::string_view what,
                                  const TensorView& view) const {
  const bool gradient = what == "gradient";
  const bool fits = view.dtype() == dtype() ||
                    (gradient && view.dtype() == GradientDType(dtype()));
  if (fits && view.IsContiguous() &&
      std::equal(view.shape().begin(), view.shape().end(), local_shape_.begin(),
                 local_shape_.end())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", what, " of ", Quoted(name()), " was to be ",
      DTypeName(view.dtype()), " of ", absl::StrJoin(view.shape(), " x "),
      view.IsContiguous() ? "" : " with gaps", "; it should be contiguous, ",
      gradient ? DTypeName(GradientDType(dtype())) : DTypeName(dtype()), " of ",
      absl::StrJoin(local_shape_, " x ")));
}

absl::Status Parameter::Bind(TensorView value) {
  TESSERA_RETURN_IF_ERROR(CheckView("value", value));
  value_.Reset();
  value_.view = std::move(value);
  return absl::OkStatus();
}

absl::Status Parameter::BindGradient(TensorView gradient) {
  TESSERA_RETURN_IF_ERROR(CheckView("gradient", gradient));
  gradient_.Reset();
  gradient_.dtype = gradient.dtype();
  gradient_.view = std::move(gradient);
  return absl::OkStatus();
}

absl::Status Parameter::FillNormal(Ops& ops, const RandomKey& key,
                                   double deviation) {
  TESSERA_RETURN_IF_ERROR(CheckValue());
  constexpr int64_t kElements = 4096;
  StagingPool staging(ops.queue());
  const int64_t width = SizeInBytes(dtype());
  std::vector<std::byte> drawn;
  for (int64_t first = 0; first < element_count(); first += kElements) {
    drawn.resize(static_cast<size_t>(
        std::min(kElements, element_count() - first) * width));
    TESSERA_RETURN_IF_ERROR(DrawNormals(key, deviation, first, drawn));
    TESSERA_RETURN_IF_ERROR(
        staging.Upload(drawn, {value().data() + first * width, drawn.size()}));
  }
  return ops.queue().Synchronize();
}

absl::Status Parameter::DrawNormals(const RandomKey& key, double deviation,
                                    int64_t first,
                                    std::span<std::byte> values) const {
  const int64_t held = columns().size();
  const int64_t width = shape().size() == 1 ? 1 : shape()[1];
  const int64_t element = SizeInBytes(dtype());
  std::span<std::byte> left = values;
  int64_t begin = 0;  // The first held element of the range of rows.
  for (const ParameterRows& rows : spec_.rows) {
    const int64_t end = begin + rows.range.size() * held;
    while (first < end && !left.empty()) {
      const int64_t row = rows.range.begin + (first - begin) / held;
      const int64_t column = (first - begin) % held;
      // Whole rows are also contiguous in the whole tensor.
      const int64_t run = std::min(held == width ? end - first : held - column,
                                   static_cast<int64_t>(left.size()) / element);
      const auto bytes = static_cast<size_t>(run * element);
      TESSERA_RETURN_IF_ERROR(FillRoundedNormals(
          key, static_cast<uint64_t>(row * width + columns().begin + column),
          deviation, dtype(), left.first(bytes)));
      left = left.subspan(bytes);
      first += run;
    }
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status Parameter::Fill(Ops& ops, double value) {
  TESSERA_RETURN_IF_ERROR(CheckValue());
  return ops.Run(op::Fill{value, *value_.view});
}

absl::Status Parameter::ZeroGradient(Ops& ops) {
  TESSERA_RETURN_IF_ERROR(CheckGradient());
  return ops.Run(op::Fill{0, *gradient_.view});
}

absl::StatusOr<LinearWeights> LinearWeights::Create(const TensorGroup& group,
                                                    const Shape& shape) {
  int64_t out = 0;
  std::vector<ParameterRows> rows;
  for (const IndexRange& range : shape.rows) {
    rows.push_back({range});
    out = std::max(out, range.end);
  }
  out = shape.out.value_or(out);
  TESSERA_ASSIGN_OR_RETURN(Parameter weight,
                           Parameter::Create(group, {.name = "weight",
                                                     .shape = {out, shape.in},
                                                     .rows = rows,
                                                     .columns = shape.columns,
                                                     .dtype = shape.dtype}));
  LinearWeights weights(std::move(weight));
  if (shape.bias) {
    TESSERA_ASSIGN_OR_RETURN(weights.bias_,
                             Parameter::Create(group, {.name = "bias",
                                                       .shape = {out},
                                                       .rows = rows,
                                                       .dtype = shape.dtype}));
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

absl::Status LinearWeights::FillNormal(Ops& ops, const RandomKey& key,
                                       double deviation) {
  return weight_.FillNormal(ops, key, deviation);
}

}  // namespace tessera::tensor_parallel
