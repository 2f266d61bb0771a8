// RunDirectory: where a run leaves what it makes.
//
//   DIR/config.json      the settings, for --config
//   DIR/metrics.jsonl    one JSON object a step
//   DIR/checkpoints/     step-00000060/, ...
//   DIR/result.json      what the run came to
//   DIR/.ranks/          while ranks run: attempt_files.h
//
//   TESSERA_ASSIGN_OR_RETURN(const RunDirectory run,
//                            RunDirectory::Create(settings));
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_RUN_DIRECTORY_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_RUN_DIRECTORY_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

class RunDirectory {
 public:
  // Makes settings.run_dir, or where that is empty a new directory for
  // temporary files. PermissionDenied and the like where it cannot be written;
  // InvalidArgument where it has checkpoints, with which this run would mix,
  // and the settings do not resume.
  static absl::StatusOr<RunDirectory> Create(const Settings& settings);

  // The absolute path of settings.run_dir; "" where it is empty.
  static std::string PathOf(const Settings& settings);

  // One that another process has made. `path` is absolute.
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string config() const { return path_ + "/config.json"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string result() const { return path_ + "/result.json"; }
  std::string exchange() const { return path_ + "/.ranks"; }

  // The newest complete checkpoint, or "" where there is none.
  std::string LastCheckpoint() const;

  // Whether this run made the directory for temporary files.
  bool is_temporary() const { return is_temporary_; }

  // After the last rank has ended: takes away what was being written, and the
  // whole directory where it is temporary and has no checkpoint. True where the
  // directory is still there.
  bool CleanUp() const;

 private:
  std::string path_;
  bool is_temporary_ = false;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_RUN_DIRECTORY_H_
