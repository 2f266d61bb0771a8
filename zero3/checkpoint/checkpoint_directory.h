// The checkpoints in a directory: listing, verification of completeness, commit
// and removal.
//
//   DIR/step-00000020/           complete: nothing in it changes any more
//   DIR/step-00000030.writing/   being written, or left by a crash
//   DIR/step-00000010.removing/  being removed, or left by a crash
//
//   TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
//                            LatestCheckpoint("/ckpt"));
//
// Only one group of ranks may write to a directory at a time; any number of
// readers is allowed, but they cannot continue to read a checkpoint that is
// removed.
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

// Reads the manifest of the checkpoint directory `path`. Errors name the file:
// NotFound, DataLoss if it is damaged, InvalidArgument as ParseManifest.
absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& path);

// OK if the manifest is valid and every file has the size that it states. The
// contents are not read: see VerifyCheckpoint.
absl::Status CheckComplete(const FoundCheckpoint& checkpoint);

// The complete checkpoints, newest first. An error if the directory cannot be
// read.
absl::StatusOr<std::vector<FoundCheckpoint>> CompleteCheckpoints(
    const std::string& directory);

// The newest complete checkpoint; incomplete ones are skipped. NotFound if
// there is none, with the reasons for the newest skipped ones.
absl::StatusOr<FoundCheckpoint> LatestCheckpoint(const std::string& directory);

// The complete checkpoint with the smallest number at the metadata `key` of its
// first part; the newest one in case of a tie. Checkpoints without a finite
// number are skipped. NotFound if there is none.
absl::StatusOr<FoundCheckpoint> LeastCheckpoint(const std::string& directory,
                                                const std::string& key);

// Writes checkpoints into a directory, one step after the other. Used by one
// thread of one rank; the other ranks write their files into writing_path()
// between Begin and Commit. After a crash during any call, complete checkpoints
// are still complete, except those that Prune removes.
class CheckpointDirectory {
 public:
  // `calls` outlives this.
  CheckpointDirectory(FileCalls& calls, std::string path)
      : calls_(calls), path_(std::move(path)) {}

  // The path to which the checkpoint of `step` is written before its commit.
  std::string writing_path(int64_t step) const;

  // Creates an empty writing_path(step), and the directory itself if it is
  // missing; removes leftovers of crashes.
  absl::Status Begin(int64_t step);

  // Commits the checkpoint, whose files are written; replaces a checkpoint of
  // the same step. On an error the old or the new checkpoint of that step is
  // complete.
  absl::Status Commit(int64_t step, std::string_view manifest);

  // Removes the partial checkpoint.
  absl::Status Discard(int64_t step);

  // Removes the complete checkpoint of `step`, if there is one.
  absl::Status Remove(int64_t step);

  // Removes complete checkpoints, oldest first, until `keep` are left. Never
  // removes the checkpoint of step `newest`, nor LeastCheckpoint of the
  // metadata key `keep_least` ("": not used), which does not count towards
  // `keep` unless it is one of the newest. Precondition: keep > 0.
  absl::Status Prune(int64_t newest, int64_t keep,
                     const std::string& keep_least = "");

 private:
  absl::Status RemoveLeftovers();
  absl::Status RemoveTree(const std::string& path);
  absl::Status WriteNew(const std::string& path, std::string_view contents);

  FileCalls& calls_;
  const std::string path_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
