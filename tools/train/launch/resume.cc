#include "tools/train/launch/resume.h"

#include <memory>

#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/train/checkpoint/resolve_checkpoint.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/settings/user_path.h"

namespace tessera::train {
namespace {

absl::Status CheckSameRunAt(const std::string& path,
                            const RunIdentity& identity) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<SavedRun> saved,
                           SavedRun::Open(path));
  return Annotate(CheckSameRun(saved->identity(), saved->steps(), identity),
                  path);
}

absl::StatusOr<std::string> Find(const Settings& settings,
                                 const RunIdentity& identity) {
  std::string path;
  if (settings.resume != "latest") {
    TESSERA_ASSIGN_OR_RETURN(path,
                             ResolveCheckpoint(UserPath(settings.resume)));
  } else if (settings.run_dir.empty()) {
    return absl::InvalidArgumentError(
        "it is the newest checkpoint of --run_dir, which is not given");
  } else {
    path = RunDirectory(RunDirectory::PathOf(settings)).LastCheckpoint();
  }
  if (path.empty()) return path;
  TESSERA_RETURN_IF_ERROR(CheckSameRunAt(path, identity));
  return path;
}

}  // namespace

absl::StatusOr<std::string> FindResumePoint(const Settings& settings,
                                            const RunIdentity& identity) {
  if (settings.resume.empty()) return "";
  absl::StatusOr<std::string> found = Find(settings, identity);
  if (found.ok()) return found;
  return tools::FlagError("resume", settings.resume, found.status());
}

}  // namespace tessera::train
