// CheckpointPlan: the checkpoint of a run that no ranks have to write: its parts, and
// what each of them holds.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const std::vector<PlannedPart> parts,
//       PlanParts({.identity = identity, .mesh = {.dp = 2, .tp = 4}}));
//
// As TrainRank divides a model with one stage on each pipeline rank; a run with
// more takes it up all the same.
#ifndef TESSERA_TOOLS_CHECKPOINT_RUN_PLAN_H_
#define TESSERA_TOOLS_CHECKPOINT_RUN_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/loop/run_options.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/state_format.h"

namespace tessera::tools {

struct CheckpointPlan {
  train::RunIdentity identity = {};
  train::MeshSizes mesh = {};
  int zero = 3;
  DType dtype = DType::kF32;
  zero3::MomentKinds moments = {};
  int64_t optimizer_steps = 0;
  int64_t steps = 0;  // With those that were skipped.
  double loss_scale = 1;
  int64_t steps_since_scale_change = 0;
};

struct PlannedPart {
  zero3::CheckpointPart part;              // Without its files.
  std::vector<train::HeldTensor> tensors;  // By the parameter's number.
};

// By pipeline rank, then tensor rank. InvalidArgument where the model is not
// valid or cannot be divided so: more stages than layers, or heads that tensor
// ranks cannot share.
absl::StatusOr<std::vector<PlannedPart>> PlanParts(const CheckpointPlan& plan);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_RUN_PLAN_H_
