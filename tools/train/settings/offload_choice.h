// OffloadChoice: the kinds of data that --offload sends to a tier.
//
//   OffloadChoice::Of("optimizer,activations").activations;   // true
//
// "all" means all model state: optimizer, parameters and gradients. Activations
// are not model state and are named separately.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_OFFLOAD_CHOICE_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_OFFLOAD_CHOICE_H_

#include <string>
#include <string_view>

#include "offload/tier/accounting.h"
#include "tools/train/settings/settings.h"

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

// `state`, followed by ",activations" if `offload` has them.
std::string WithActivationsOf(std::string_view offload, std::string_view state);

// The codec that --compression gives each kind of offloaded state.
//
//   settings.compression = "int8";
//   TierCodecName(settings, offload::Purpose::kGradients);   // "int8"
//   TierCodecName(settings, offload::Purpose::kOptimizer);   // "lossless"
//
// A codec that rounds is for state with a second, exact copy or none to come:
// gradients, and parameters of 16 bits, which are made anew from their master
// weights in every step. Master weights and moments have neither, and
// parameters of fp32 are their own master weights: these are compressed without
// loss, and so are activations, from which gradients are computed. A second
// moment rounded to 0 would divide the update by epsilon alone.

// A name for offload::CreateCodec; "none" with --compression=none. The settings
// need not be checked.
std::string TierCodecName(const Settings& settings, offload::Purpose purpose);

// Whether that codec rounds anything of this kind that --offload sends away.
bool TierCodecRounds(const Settings& settings, offload::Purpose purpose);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_OFFLOAD_CHOICE_H_
