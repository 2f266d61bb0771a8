// The kinds of data that --offload moves to a tier, and the codecs that
// --compression selects for them.
//
//   OffloadChoice::Of("optimizer,activations").activations;  // true
//
// "all" means all model state: optimizer, parameters ("params") and gradients
// ("grads"). Activations are not model state and are named separately.
//
//   settings.compression = "int8";
//   TierCodecName(settings, offload::Purpose::kGradients);  // "int8"
//   TierCodecName(settings, offload::Purpose::kOptimizer);  // "lossless"
//
// A rounding codec is used only for gradients and 16-bit parameters
// (zero3::OffloadConfig::CodecOf); each step recomputes the latter from their
// master weights. If a second moment were rounded to 0, the update would be
// divided by epsilon alone.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_OFFLOAD_CHOICE_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_OFFLOAD_CHOICE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "offload/tier/accounting.h"
#include "tools/train/settings/settings.h"
#include "zero3/config/offload_config.h"

namespace tessera::train {

struct OffloadChoice {
  bool optimizer = false;
  bool parameters = false;  // With --zero=3.
  bool gradients = false;   // With --zero=2 and 3.
  bool activations = false;

  // Ignores invalid names (check_settings.h rejects them).
  static OffloadChoice Of(std::string_view offload);

  bool any() const {
    return optimizer || parameters || gradients || activations;
  }
  bool has(offload::Purpose purpose) const;
};

// The configuration of the settings.
zero3::OffloadConfig OffloadConfigOf(const Settings& settings);

// "host budget of a rank: 8MiB, for 16MiB of parameters or ...": the bytes
// of each offloaded purpose, before compression, that fill the budget; for
// lossless codecs, those that certainly fit. Empty without --host_budget.
// Returns the errors of OffloadConfig::EffectiveHostBudget.
absl::StatusOr<std::string> DescribeHostBudget(const Settings& settings);

// `state`, followed by ",activations" if `offload` includes activations.
std::string WithActivationsOf(std::string_view offload, std::string_view state);

// The codec's name for offload::CreateCodec; "none" with --compression=none.
// The settings may be unchecked.
std::string TierCodecName(const Settings& settings, offload::Purpose purpose);

// True if --offload includes this purpose and its codec rounds.
bool TierCodecRounds(const Settings& settings, offload::Purpose purpose);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_OFFLOAD_CHOICE_H_
