// RestoreRun: a rank of a run takes up a checkpoint of any other mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(auto rank, TrainRank::Create(...));
//   TESSERA_RETURN_IF_ERROR(RestoreRun("run/checkpoints", identity, *rank));
//   rank->steps();  // the next step
//
// The sizes of dp, pp, cp and tp, the schedule, the ZeRO stage, the layout and
// where state lives may all differ: each rank reads the elements that it owns
// from whichever files have them. Values, master weights, moments, the number
// of steps and the loss scale become those that were saved, in every bit.
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_RESTORE_RUN_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_RESTORE_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/loop/train_rank.h"

namespace tessera::train {

// A collective of the rank's world, between steps. `path` is a checkpoint or a
// directory of them, of which rank 0's newest complete one is taken.
//
// Errors are the same on every rank and name the one that met them. With
// nothing changed: NotFound; InvalidArgument where it is a checkpoint of
// another run (CheckSameRun), of weights or moments of another type, or where
// 8-bit moments would be cut inside a block; FailedPrecondition where ranks
// see different checkpoints; DataLoss where the manifest is damaged or parts
// are missing. DataLoss of the files themselves leaves the state partly
// restored: restore another checkpoint.
absl::Status RestoreRun(const std::string& path, const RunIdentity& identity,
                        TrainRank& rank);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_RESTORE_RUN_H_
