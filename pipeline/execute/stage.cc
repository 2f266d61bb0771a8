#include "pipeline/execute/stage.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "collectives/reduction/combine.h"

namespace tessera::pipeline {

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 62;

}  // namespace

int64_t TensorSpec::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::string TensorSpec::ToString() const {
  return absl::StrCat(DTypeName(dtype), " ", DimsToString(shape));
}

absl::Status CheckSpec(const TensorSpec& spec) {
  if (!IsValid(spec.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of type number ",
                                                   static_cast<int>(spec.dtype),
                                                   ", which is invalid"));
  }
  if (spec.shape.size() > TensorSpec::kMostDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of ", spec.shape.size(), " dimensions; at most ",
                     TensorSpec::kMostDims, " are allowed"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t count, ElementCount(spec.shape),
      Annotate(_, absl::StrCat("a tensor ", spec.ToString())));
  if (count <= kMostBytes / SizeInBytes(spec.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor ", spec.ToString(), " is larger than 2^62 bytes"));
}

WireSpec ToWire(const TensorSpec& spec) {
  WireSpec wire = {};
  wire[0] = static_cast<int64_t>(spec.dtype);
  wire[1] = static_cast<int64_t>(spec.shape.size());
  std::copy(spec.shape.begin(), spec.shape.end(), wire.begin() + 2);
  return wire;
}

absl::StatusOr<TensorSpec> FromWire(
    std::span<const int64_t, kWireSpecSize> wire) {
  const auto dims = wire.subspan<2>();
  if (wire[0] < 0 || wire[0] >= static_cast<int64_t>(kAllDTypes.size()) ||
      wire[1] < 0 || wire[1] > static_cast<int64_t>(dims.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid tensor type number ", wire[0], " with ", wire[1],
                     " dimensions"));
  }
  TensorSpec spec;
  spec.dtype = static_cast<DType>(wire[0]);
  spec.shape.assign(dims.begin(), dims.begin() + wire[1]);
  TESSERA_RETURN_IF_ERROR(CheckSpec(spec));
  const bool padded = std::all_of(dims.begin() + wire[1], dims.end(),
                                  [](int64_t size) { return size == 0; });
  if (padded) return spec;
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor ", spec.ToString(), " with more sizes than that"));
}

absl::StatusOr<TensorSpec> Stage::OutputSpec(const TensorSpec*) {
  return absl::UnimplementedError(
      "the stage does not specify its output: override Stage::OutputSpec, "
      "or give ExecutorOptions::boundaries");
}

absl::Status Stage::Backward(const BackwardPass& pass) {
  TESSERA_RETURN_IF_ERROR(BackwardInput(pass));
  BackwardPass weight = pass;
  weight.input_gradient = nullptr;
  return BackwardWeight(weight);
}

absl::Status Stage::LoadInputs(const MicroBatchInputs&) {
  return absl::OkStatus();
}

bool Stage::KeepsInput(int32_t) const { return false; }

void Stage::Release(int32_t) {}

absl::StatusOr<std::vector<TensorView>> Stage::Gradients() {
  return absl::UnimplementedError(
      "two ranks hold the stage, but it does not provide its gradients: "
      "override Stage::Gradients");
}

absl::StatusOr<TensorView> Stage::TiedGradient(std::string_view name) {
  return absl::UnimplementedError(absl::StrCat(
      "the stage does not provide the gradient of the tied weights \"",
      name.substr(0, 64), "\": override Stage::TiedGradient"));
}

absl::Status Stage::AddGradient(ConstTensorView gradient, TensorView sum) {
  if (!IsHostAccessible(sum.kind())) {
    return absl::UnimplementedError(absl::StrCat(
        "tied gradients of two stages of one rank in ",
        MemoryKindName(sum.kind()),
        " memory; they are added on the host: override Stage::AddGradient and "
        "CopyGradient"));
  }
  const void* const sources[] = {sum.data(), gradient.data()};
  void* const target = sum.data();
  collectives::Combine(collectives::Combination::Partial(
                           collectives::Reduction::Sum(), sum.dtype()),
                       sources, std::span(&target, 1), sum.element_count());
  return absl::OkStatus();
}

absl::Status Stage::CopyGradient(ConstTensorView gradient, TensorView copy) {
  return Copy(gradient, copy);
}

absl::Status Stage::Unshard() { return absl::OkStatus(); }
absl::Status Stage::Reshard() { return absl::OkStatus(); }
absl::Status Stage::ReduceGradient() { return absl::OkStatus(); }

}  // namespace tessera::pipeline
