// WriteRun: a whole checkpoint from one process, block by block.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const std::string path,
//       WriteRun(FileCalls::System(), "new", plan,
//                [&](const HeldTensor& held, StatePart part,
//                    const StateArray& to) { ... }));
#ifndef TESSERA_TOOLS_CHECKPOINT_WRITE_RUN_H_
#define TESSERA_TOOLS_CHECKPOINT_WRITE_RUN_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/checkpoint/run_plan.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/state_format.h"

namespace tessera::tools {

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
                                     const CheckpointPlan& plan, BlockSource source);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_WRITE_RUN_H_
