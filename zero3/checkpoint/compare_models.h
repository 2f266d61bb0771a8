// Checks that a checkpoint belongs to this model, and lists the differences.
#ifndef TESSERA_ZERO3_CHECKPOINT_COMPARE_MODELS_H_
#define TESSERA_ZERO3_CHECKPOINT_COMPARE_MODELS_H_

#include "absl/status/status.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/state_format.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// OK where a state of `model` with `moments` can take its state from `saved`
// in every bit: parameters of the same names, shapes and types, in any order
// and groups, and as many moments, of one format. What was trained may be
// frozen now. InvalidArgument otherwise, which names the first parameters that
// are missing, unknown or different, and what to do.
absl::Status CompareModels(const CheckpointPart& saved,
                           const ModelParameters& model,
                           const MomentKinds& moments);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_COMPARE_MODELS_H_
