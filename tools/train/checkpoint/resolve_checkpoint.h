// ResolveCheckpoint: which checkpoint a path means.
//
//   ResolveCheckpoint("run/checkpoints");                // the newest there
//   ResolveCheckpoint("run/checkpoints/step-00000020");  // itself
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_RESOLVE_CHECKPOINT_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_RESOLVE_CHECKPOINT_H_

#include <string>

#include "absl/status/statusor.h"

namespace tessera::train {

// A directory with a manifest.json is itself; of another one, the newest
// complete checkpoint. NotFound where there is none, with what was passed over.
absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_RESOLVE_CHECKPOINT_H_
