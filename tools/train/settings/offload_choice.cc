#include "tools/train/settings/offload_choice.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "offload/codec/codec.h"
#include "offload/pressure/pressure_policy.h"

namespace tessera::train {

OffloadChoice OffloadChoice::Of(std::string_view offload) {
  OffloadChoice choice;
  for (const std::string_view name : absl::StrSplit(offload, ',')) {
    const bool all = name == "all";
    choice.optimizer |= all || name == "optimizer";
    choice.parameters |= all || name == "params";
    choice.gradients |= all || name == "grads";
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

zero3::OffloadConfig OffloadConfigOf(const Settings& settings) {
  const OffloadChoice choice = OffloadChoice::Of(settings.offload);
  zero3::OffloadConfig config = {.parameters = choice.parameters,
                                 .gradients = choice.gradients,
                                 .optimizer = choice.optimizer,
                                 .pin_memory = settings.pin_memory,
                                 .codec = settings.compression};
  if (settings.host_budget > ByteSize()) {
    config.host_budget = settings.host_budget.bytes();
  }
  if (settings.parallel.device_budget > ByteSize()) {
    config.device_budget = settings.parallel.device_budget.bytes();
  }
  if (!settings.offload_dir.empty()) {
    config.directory = settings.offload_dir;
  }
  const auto policy = offload::PressurePolicy::Parse(settings.offload_strategy);
  if (policy.ok()) config.strategy = policy->strategy;
  return config;
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
  return OffloadConfigOf(settings).CodecOf(purpose, settings.parallel.dtype);
}

bool TierCodecRounds(const Settings& settings, Purpose purpose) {
  return OffloadChoice::Of(settings.offload).has(purpose) &&
         Rounds(TierCodecName(settings, purpose), TypeOf(settings, purpose));
}

absl::StatusOr<std::string> DescribeHostBudget(const Settings& settings) {
  zero3::OffloadConfig config = OffloadConfigOf(settings);
  std::string text;
  for (const Purpose purpose : offload::kAllPurposes) {
    if (settings.host_budget == ByteSize()) break;
    if (!OffloadChoice::Of(settings.offload).has(purpose)) continue;
    config.codec = TierCodecName(settings, purpose);
    TESSERA_ASSIGN_OR_RETURN(
        const int64_t bytes,
        config.EffectiveHostBudget(TypeOf(settings, purpose)));
    absl::StrAppend(
        &text, text.empty() ? "host budget of a rank: " : " or ",
        text.empty() ? settings.host_budget.ToString() + ", for " : "",
        ByteSize(bytes).ToString(), " of ", offload::PurposeName(purpose));
  }
  if (text.empty() || settings.offload_dir.empty()) return text;
  return absl::StrCat(text, "; more goes to --offload_dir, and the strategy ",
                      settings.offload_strategy, " ",
                      offload::PressurePolicy::Of(config.strategy).description);
}

}  // namespace tessera::train
