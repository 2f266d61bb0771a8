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
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_TIER_CODECS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_TIER_CODECS_H_

#include <string>

#include "offload/tier/purpose.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// A name for offload::CreateCodec; "none" with --compression=none. The settings
// need not be checked.
std::string TierCodecName(const Settings& settings, offload::Purpose purpose);

// Whether that codec rounds anything of this kind that --offload sends away.
bool TierCodecRounds(const Settings& settings, offload::Purpose purpose);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_TIER_CODECS_H_
