// ReshardRun: the checkpoint of a run for another mesh, without ranks.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::string path,
//                            ReshardRun("run/checkpoints", "new",
//                                       {.mesh = {.tp = 4}, .zero = 1}));
//
// A run resumes from a checkpoint of any mesh anyway (restore_run.h); after
// this each of its ranks reads its own file alone.
#ifndef TESSERA_TOOLS_CHECKPOINT_RESHARD_RUN_H_
#define TESSERA_TOOLS_CHECKPOINT_RESHARD_RUN_H_

#include <string>

#include "absl/status/statusor.h"
#include "tools/train/loop/run_options.h"

namespace tessera::tools {

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

#endif  // TESSERA_TOOLS_CHECKPOINT_RESHARD_RUN_H_
