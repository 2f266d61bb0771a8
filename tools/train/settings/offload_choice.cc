#include "tools/train/settings/offload_choice.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/dtype/dtype.h"
#include "offload/codec/codec.h"

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

namespace {

using offload::Purpose;

// True if parameters have 16 bits, and therefore master weights.
bool Has16Bits(const Settings& settings) {
  return SizeInBytes(settings.parallel.dtype) == 2;
}

DType TypeOf(const Settings& settings, Purpose purpose) {
  const bool is_narrow =
      purpose == Purpose::kParameters || purpose == Purpose::kActivations;
  return is_narrow && Has16Bits(settings) ? settings.parallel.dtype
                                          : DType::kF32;
}

bool Rounds(std::string_view codec, DType dtype) {
  const auto made = offload::CreateCodec(codec);
  return made.ok() && !(*made)->IsLossless(dtype);
}

}  // namespace

std::string TierCodecName(const Settings& settings, Purpose purpose) {
  const bool may_round =
      purpose == Purpose::kGradients ||
      (purpose == Purpose::kParameters && Has16Bits(settings));
  return may_round || !Rounds(settings.compression, DType::kF32)
             ? settings.compression
             : "lossless";
}

bool TierCodecRounds(const Settings& settings, Purpose purpose) {
  return OffloadChoice::Of(settings.offload).has(purpose) &&
         Rounds(TierCodecName(settings, purpose), TypeOf(settings, purpose));
}

}  // namespace tessera::train
