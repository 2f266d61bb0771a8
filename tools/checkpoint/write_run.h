// CheckpointPlan: the checkpoint of a run that no ranks have to write: its
// parts, and what each of them holds.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const std::vector<PlannedPart> parts,
//       PlanParts({.identity = identity, .mesh = {.dp = 2, .tp = 4}}));
//
// As TrainRank divides a model with one stage on each pipeline rank; a run with
// more takes it up all the same.
#ifndef TESSERA_TOOLS_CHECKPOINT_WRITE_RUN_H_
#define TESSERA_TOOLS_CHECKPOINT_WRITE_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/loop/run_options.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"
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

// WriteRun: a whole checkpoint from one process, block by block.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const std::string path,
//       WriteRun(FileCalls::System(), "new", plan,
//                [&](const HeldTensor& held, StatePart part,
//                    const StateArray& to) { ... }));

// Sets elements [to.begin, to.begin + to.capacity) of what `held` says, which
// are zeros.
using BlockSource = absl::FunctionRef<absl::Status(
    const train::HeldTensor& held, zero3::StatePart part,
    const zero3::StateArray& to)>;

// Writes the checkpoint of `plan` into `directory`, which is made where it is
// missing, and returns its path. It is complete or not there. Holds one block
// of at most a million elements at a time. AlreadyExists, with nothing changed,
// where the directory has one of that step.
absl::StatusOr<std::string> WriteRun(zero3::FileCalls& calls,
                                     const std::string& directory,
                                     const CheckpointPlan& plan,
                                     BlockSource source);

// ReshardRun: the checkpoint of a run for another mesh, without ranks.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::string path,
//                            ReshardRun("run/checkpoints", "new",
//                                       {.mesh = {.tp = 4}, .zero = 1}));
//
// A run resumes from a checkpoint of any mesh anyway (restore_run.h); after
// this each of its ranks reads its own file alone.

struct ReshardOptions {
  train::MeshSizes mesh = {};
  int zero = 3;
};

// Of a checkpoint, or the newest one of a directory of them, into `directory`;
// the new one's path. Every bit of the state is the same. Errors of
// SavedRun::Open and WriteRun; InvalidArgument where the model cannot be
// divided so, or 8-bit moments would be cut inside a block.
absl::StatusOr<std::string> ReshardRun(const std::string& checkpoint,
                                       const std::string& directory,
                                       const ReshardOptions& options);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_WRITE_RUN_H_
