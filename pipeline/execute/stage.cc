#include "pipeline/execute/stage.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "collectives/reduction/combine.h"

namespace tessera::pipeline {

absl::StatusOr<TensorSpec> Stage::OutputSpec(const TensorSpec*) {
  return absl::UnimplementedError(
      "the stage does not say what its output is: override Stage::OutputSpec, "
      "or give ExecutorOptions::boundaries");
}

absl::Status Stage::Backward(const BackwardPass& pass) {
  TESSERA_RETURN_IF_ERROR(BackwardInput(pass));
  BackwardPass weight = pass;
  weight.input_gradient = nullptr;
  return BackwardWeight(weight);
}

bool Stage::KeepsInput(int32_t) const { return false; }

void Stage::Release(int32_t) {}

absl::StatusOr<std::vector<TensorView>> Stage::Gradients() {
  return absl::UnimplementedError(
      "two ranks hold the stage, and it does not say where its gradients are: "
      "override Stage::Gradients");
}

absl::StatusOr<TensorView> Stage::TiedGradient(std::string_view name) {
  return absl::UnimplementedError(absl::StrCat(
      "the stage does not say where the gradient of the tied weights \"",
      name.substr(0, 64), "\" is: override Stage::TiedGradient"));
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
