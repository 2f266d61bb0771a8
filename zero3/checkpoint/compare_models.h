// Checks that a checkpoint belongs to this model, and lists the differences.
#ifndef TESSERA_ZERO3_CHECKPOINT_COMPARE_MODELS_H_
#define TESSERA_ZERO3_CHECKPOINT_COMPARE_MODELS_H_

#include "absl/status/status.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/layout/state_format.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// OK if a state of `model` with `moments` can be loaded from `saved` exactly.
// This requires parameters of the same names, shapes, types and
// `orthogonalized`, in any order and groups, and the same number and format of
// moments. Trained parameters may become frozen. Otherwise InvalidArgument,
// which names the first parameters that are missing, unknown or different, and
// the remedy.
absl::Status CompareModels(const CheckpointPart& saved,
                           const ModelParameters& model,
                           const MomentKinds& moments);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_COMPARE_MODELS_H_
