// The checkpoints in a directory: which are complete, and how one becomes so.
//
//   DIR/step-00000020/           complete: nothing in it changes any more
//   DIR/step-00000030.writing/   being written, or left by a crash
//   DIR/step-00000010.removing/  being removed, or left by a crash
//
//   TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
//                            LatestCheckpoint("/ckpt"));
//
// One group of ranks writes to a directory at a time; any number of readers
// may be there, but what is removed is lost to them too.
#ifndef TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::zero3 {

// "step-00000020".
std::string CheckpointName(int64_t step);

struct FoundCheckpoint {
  int64_t step = 0;
  std::string path;  // DIR/step-00000020

  friend bool operator==(const FoundCheckpoint&,
                         const FoundCheckpoint&) = default;
};

// The manifest of the checkpoint at `path`, a directory. Errors name the file:
// NotFound, DataLoss where it was damaged, InvalidArgument as of ParseManifest.
absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& path);

// OK where the manifest is valid and every file has the size that it says. The
// contents are not read: see VerifyCheckpoint.
absl::Status CheckComplete(const FoundCheckpoint& checkpoint);

// Newest first. An error where the directory cannot be read.
absl::StatusOr<std::vector<FoundCheckpoint>> CompleteCheckpoints(
    const std::string& directory);

// The newest complete one; torn ones are passed over. NotFound where there is
// none, with the reason for each of the newest that were passed over.
absl::StatusOr<FoundCheckpoint> LatestCheckpoint(const std::string& directory);

// Writes checkpoints into a directory, step by step. One thread of one rank
// does so; the others write their files into writing_path() between Begin and
// Commit. Whatever call is the last, complete checkpoints stay complete, but
// those that Prune removes.
class CheckpointDirectory {
 public:
  // `calls` outlives this.
  CheckpointDirectory(FileCalls& calls, std::string path)
      : calls_(calls), path_(std::move(path)) {}

  // The path that the checkpoint of `step` is written to before its commit.
  std::string writing_path(int64_t step) const;

  // Makes writing_path(step), empty, and the directory itself where it is
  // missing; takes away what crashes have left.
  absl::Status Begin(int64_t step);

  // The files are written: makes the checkpoint complete, in place of one of
  // the same step if there is one. On an error that stays.
  absl::Status Commit(int64_t step, std::string_view manifest);

  // Takes away what was begun.
  absl::Status Discard(int64_t step);

  // Removes complete checkpoints, oldest first, until `keep` are left; never
  // that of `newest`. Precondition: keep > 0.
  absl::Status Prune(int64_t newest, int64_t keep);

 private:
  absl::Status RemoveLeftovers();
  absl::Status RemoveTree(const std::string& path);
  absl::Status WriteNew(const std::string& path, std::string_view contents);

  FileCalls& calls_;
  const std::string path_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
