// Writes the checkpoint of a run in one process, without ranks: WriteRun from
// any source of state, ReshardRun from a checkpoint of another mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::string path,
//                            ReshardRun("run/checkpoints", "new",
//                                       {.mesh = {.tp = 4}, .zero = 1}));
//
// A run can resume from a checkpoint of any mesh. After ReshardRun each rank
// reads only its own file.
#ifndef TESSERA_TOOLS_CHECKPOINT_WRITE_RUN_H_
#define TESSERA_TOOLS_CHECKPOINT_WRITE_RUN_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/cli/cli.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/step/run_progress.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/layout/state_format.h"

namespace tessera::tools {

struct CheckpointPlan {
  train::RunIdentity identity = {};
  train::MeshSizes mesh = {};
  int zero = 3;
  DType dtype = DType::kF32;
  zero3::MomentKinds moments = {};
  int64_t optimizer_steps = 0;
  train::RunProgress progress = {};  // Steps include skipped steps.
  std::string fp8_scales = "";       // SavedRun::fp8_scales.
  double loss_scale = 1;
  int64_t steps_since_scale_change = 0;
};

struct PlannedPart {
  zero3::CheckpointPart part;              // Without its files.
  std::vector<train::HeldTensor> tensors;  // Indexed by parameter number.
};

// The parts of the checkpoint, ordered by pipeline rank, then tensor rank, then
// expert rank, with one stage on each pipeline rank. InvalidArgument if the
// model is invalid or indivisible: it has fewer layers than stages, or its
// heads or experts cannot be divided over the tensor or expert ranks.
absl::StatusOr<std::vector<PlannedPart>> PlanParts(const CheckpointPlan& plan);

// Sets the elements [to.begin, to.begin + to.capacity) of `held`, which are
// zero initially.
using BlockSource = absl::FunctionRef<absl::Status(
    const train::HeldTensor& held, zero3::StatePart part,
    const zero3::StateArray& to)>;

// Writes the checkpoint of `plan` into `directory`, which is created if
// missing, and returns its path. The checkpoint appears atomically. Holds one
// block of at most a million elements at a time in memory. AlreadyExists,
// without a change, if the directory contains a checkpoint of that step.
absl::StatusOr<std::string> WriteRun(zero3::FileCalls& calls,
                                     const std::string& directory,
                                     const CheckpointPlan& plan,
                                     BlockSource source);

struct ReshardOptions {
  train::MeshSizes mesh = {};
  int zero = 3;
};

// Reshards a checkpoint, or the newest one in a directory, into `directory` and
// returns the new path. The state is bit-identical. Returns the errors of
// SavedRun::Open and WriteRun; InvalidArgument if the model is indivisible, or
// 8-bit moments would be split inside a block.
absl::StatusOr<std::string> ReshardRun(const std::string& checkpoint,
                                       const std::string& directory,
                                       const ReshardOptions& options);

// The bytes of state that a file of a resharded checkpoint takes from a file of
// the given one. File names are relative to the checkpoints.
struct FileMove {
  std::string from = "";
  std::string to = "";
  int64_t bytes = 0;  // Above 0.

  friend bool operator==(const FileMove&, const FileMove&) = default;
};

// The moves of ReshardRun, in the order of the files, without reading or
// writing state. Returns the errors of ReshardRun.
absl::StatusOr<std::vector<FileMove>> PlanReshard(
    const std::string& checkpoint, const ReshardOptions& options);

// CSV: from,to,bytes. JSON: an array of objects with these fields.
void PrintMoves(std::span<const FileMove> moves, OutputFormat format,
                std::ostream& out);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_WRITE_RUN_H_
