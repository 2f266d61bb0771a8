#include "tools/train/settings/offload_choice.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::train {

OffloadChoice OffloadChoice::Of(std::string_view offload) {
  OffloadChoice choice;
  for (const std::string_view name : absl::StrSplit(offload, ',')) {
    const bool all = name == "all";
    choice.optimizer |= all || name == "optimizer";
    choice.parameters |= all || name == "params";
    choice.gradients |= all;
    choice.activations |= name == "activations";
  }
  return choice;
}

bool OffloadChoice::has(offload::Purpose purpose) const {
  switch (purpose) {
    case offload::Purpose::kParameters:
      return parameters;
    case offload::Purpose::kGradients:
      return gradients;
    case offload::Purpose::kOptimizer:
      return optimizer;
    case offload::Purpose::kActivations:
      return activations;
    case offload::Purpose::kBuffers:
      return false;
  }
  return false;
}

std::string WithActivationsOf(std::string_view offload,
                              std::string_view state) {
  return OffloadChoice::Of(offload).activations
             ? absl::StrCat(state, ",activations")
             : std::string(state);
}

}  // namespace tessera::train
