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

#include "offload/tier/purpose.h"

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

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_OFFLOAD_CHOICE_H_
