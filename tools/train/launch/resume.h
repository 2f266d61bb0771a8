// FindResumePoint: the checkpoint that --resume means, before any rank starts.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       settings.resume, FindResumePoint(settings, identity));
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_RESUME_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_RESUME_H_

#include <string>

#include "absl/status/statusor.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// The path of a complete checkpoint that a run of `identity` can go on behind;
// "" where the settings do not resume, and for "latest" where the run directory
// has none yet, so that whoever starts a job again and again can always say so.
// InvalidArgument, with the flag, where there is no such checkpoint, or it is
// of another run.
absl::StatusOr<std::string> FindResumePoint(const Settings& settings,
                                            const RunIdentity& identity);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_RESUME_H_
