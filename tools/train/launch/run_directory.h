// The directory of a run's outputs, and the checkpoint from which it resumes.
//
//   DIR/config.json      the settings, for --config
//   DIR/metrics.jsonl    one JSON object per step
//   DIR/checkpoints/     step-00000060/, ...
//   DIR/result.json      FormatRunResult
//   DIR/flight/N/        the places of the ranks of the N-th attempt that had
//                        a failure: watch/rank_file.h
//   DIR/.ranks/          exists while ranks run: attempt_files.h
//
//   TESSERA_ASSIGN_OR_RETURN(const RunDirectory run,
//                            RunDirectory::Create(settings));
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_RUN_DIRECTORY_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_RUN_DIRECTORY_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

class RunDirectory {
 public:
  // Creates settings.run_dir, or a new temporary directory if that is empty.
  // Returns errors of the file system if it cannot be written; InvalidArgument
  // if it has checkpoints of an earlier run and the settings do not resume.
  static absl::StatusOr<RunDirectory> Create(const Settings& settings);

  // The absolute path of settings.run_dir; "" if that is empty.
  static std::string PathOf(const Settings& settings);

  // A directory that another process has created. `path` is absolute.
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string config() const { return path_ + "/config.json"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string result() const { return path_ + "/result.json"; }
  std::string exchange() const { return path_ + "/.ranks"; }
  // The directory for the places of the ranks of a new attempt
  // (//tools/flight), flight/N with the next N; "" if this directory is
  // temporary.
  std::string NextFlight() const;

  // The newest complete checkpoint; "" if there is none.
  std::string LastCheckpoint() const;

  // The complete checkpoint with the least validation loss (--keep_best).
  // NotFound if no checkpoint has a validation loss.
  absl::StatusOr<std::string> BestCheckpoint() const;

  // True if Create made a temporary directory.
  bool is_temporary() const { return is_temporary_; }

  // Call it after the last rank has ended. Removes incomplete checkpoints, and
  // the whole directory if it is temporary and has no checkpoint. Returns true
  // if the directory still exists.
  bool CleanUp() const;

 private:
  std::string path_;
  bool is_temporary_ = false;
};

// Sets --dtype to the type of the checkpoint that --resume selects, if there is
// one. Leaves errors to FindResumePoint.
void FollowCheckpoint(Settings& settings);

// A line that says how the weights of the checkpoint at `path` change if they
// are not of --dtype; "" if they do not change or `path` is empty.
absl::StatusOr<std::string> ConversionNotice(const Settings& settings,
                                             const std::string& path);

// Returns the path of the complete checkpoint that --resume selects for a run
// of `identity`; for "best" it is BestCheckpoint. Returns "" if the settings do
// not resume, or if --resume is "latest" and the run directory has no
// checkpoint yet, so that a job that is started repeatedly can always pass it.
// InvalidArgument, with the flag, if there is no such checkpoint, it belongs to
// another run, or its moments are not of the type of --moments.
absl::StatusOr<std::string> FindResumePoint(const Settings& settings,
                                            const RunIdentity& identity);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_RUN_DIRECTORY_H_
