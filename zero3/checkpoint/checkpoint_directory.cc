#include "zero3/checkpoint/checkpoint_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::zero3 {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kWriting = ".writing";
constexpr std::string_view kRemoving = ".removing";

// The step in a name of the form of CheckpointName.
std::optional<int64_t> StepOf(std::string_view name) {
  std::string_view digits = name;
  int64_t step = -1;
  if (!absl::ConsumePrefix(&digits, kPrefix) ||
      !absl::SimpleAtoi(digits, &step) || step < 0 ||
      CheckpointName(step) != name) {
    return std::nullopt;
  }
  return step;
}

bool IsLeftover(std::string_view name) {
  return (absl::ConsumeSuffix(&name, kWriting) ||
          absl::ConsumeSuffix(&name, kRemoving)) &&
         StepOf(name).has_value();
}

std::string ParentOf(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

// All directories with the name of a checkpoint, newest first.
absl::StatusOr<std::vector<FoundCheckpoint>> ListCheckpoints(
    const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListDirectory(directory));
  std::vector<FoundCheckpoint> found;
  for (const std::string& name : names) {
    if (const auto step = StepOf(name)) {
      found.push_back({*step, absl::StrCat(directory, "/", name)});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

}  // namespace

std::string CheckpointName(int64_t step) {
  return absl::StrCat(kPrefix, absl::StrFormat("%08d", step));
}

absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& path) {
  const std::string file = absl::StrCat(path, "/", kManifestName);
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           ReadFile(file, kMaxManifestBytes));
  TESSERA_ASSIGN_OR_RETURN(CheckpointManifest manifest, ParseManifest(text),
                           Annotate(_, file));
  return manifest;
}

absl::Status CheckComplete(const FoundCheckpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                           ReadManifest(checkpoint.path));
  if (manifest.step != checkpoint.step) {
    return absl::DataLossError(absl::StrCat(
        checkpoint.path, ": its manifest names step ", manifest.step));
  }
  for (const CheckpointPart& part : manifest.parts) {
    for (size_t rank = 0; rank < part.files.size(); ++rank) {
      const std::string path =
          absl::StrCat(checkpoint.path, "/",
                       ShardFileName(part.name, static_cast<int64_t>(rank)));
      struct stat file;
      if (stat(path.c_str(), &file) != 0) {
        return absl::ErrnoToStatus(errno, absl::StrCat("cannot find ", path));
      }
      if (file.st_size != part.files[rank].bytes) {
        return absl::DataLossError(absl::StrCat(path, " has ", file.st_size,
                                                " of ", part.files[rank].bytes,
                                                " bytes"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FoundCheckpoint>> CompleteCheckpoints(
    const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<FoundCheckpoint> found,
                           ListCheckpoints(directory));
  std::erase_if(found, [](const FoundCheckpoint& checkpoint) {
    return !CheckComplete(checkpoint).ok();
  });
  return found;
}

absl::StatusOr<FoundCheckpoint> LatestCheckpoint(const std::string& directory) {
  constexpr size_t kReasonsShown = 3;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> found,
                           ListCheckpoints(directory));
  std::string reasons;
  for (size_t i = 0; i < found.size(); ++i) {
    const absl::Status status = CheckComplete(found[i]);
    if (status.ok()) return found[i];
    if (i < kReasonsShown) absl::StrAppend(&reasons, "; ", status.message());
  }
  return absl::NotFoundError(absl::StrCat(
      directory, " has no complete checkpoint, of ", found.size(), reasons));
}

absl::StatusOr<FoundCheckpoint> LeastCheckpoint(const std::string& directory,
                                                const std::string& key) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> complete,
                           CompleteCheckpoints(directory));
  std::optional<FoundCheckpoint> least;
  double least_number = 0;
  for (const FoundCheckpoint& checkpoint : complete) {
    TESSERA_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                             ReadManifest(checkpoint.path));
    double number = 0;
    if (manifest.parts.empty()) continue;
    const CheckpointMetadata& metadata = manifest.parts[0].metadata;
    const auto found = metadata.find(key);
    if (found == metadata.end() || !absl::SimpleAtod(found->second, &number) ||
        !std::isfinite(number) || (least && number >= least_number)) {
      continue;
    }
    least = checkpoint;
    least_number = number;
  }
  if (least) return *least;
  return absl::NotFoundError(
      absl::StrCat(directory, " has no checkpoint with a number as ",
                   Quoted(key), ", of ", complete.size(), " complete ones"));
}

std::string CheckpointDirectory::writing_path(int64_t step) const {
  return absl::StrCat(path_, "/", CheckpointName(step), kWriting);
}

absl::Status CheckpointDirectory::Begin(int64_t step) {
  const absl::Status made = calls_.MakeDirectory(path_);
  if (made.ok()) {
    TESSERA_RETURN_IF_ERROR(calls_.SyncDirectory(ParentOf(path_)));
  } else if (!absl::IsAlreadyExists(made)) {
    return made;
  }
  TESSERA_RETURN_IF_ERROR(RemoveLeftovers());
  return calls_.MakeDirectory(writing_path(step));
}

absl::Status CheckpointDirectory::Commit(int64_t step,
                                         std::string_view manifest) {
  const std::string from = writing_path(step);
  const std::string to = absl::StrCat(path_, "/", CheckpointName(step));
  TESSERA_RETURN_IF_ERROR(
      WriteNew(absl::StrCat(from, "/", kManifestName), manifest));
  // The names of all files must be on the device before the directory gets its
  // final name.
  TESSERA_RETURN_IF_ERROR(calls_.SyncDirectory(from));
  const bool replaces = PathExists(to);
  TESSERA_RETURN_IF_ERROR(replaces ? calls_.Exchange(from, to)
                                   : calls_.Rename(from, to));
  TESSERA_RETURN_IF_ERROR(calls_.SyncDirectory(path_));
  // The new checkpoint is complete; the next Begin removes remains of the old
  // one.
  if (replaces) RemoveTree(from).IgnoreError();
  return absl::OkStatus();
}

absl::Status CheckpointDirectory::Discard(int64_t step) {
  const std::string path = writing_path(step);
  return PathExists(path) ? RemoveTree(path) : absl::OkStatus();
}

absl::Status CheckpointDirectory::Remove(int64_t step) {
  const std::string path = absl::StrCat(path_, "/", CheckpointName(step));
  if (!PathExists(path)) return absl::OkStatus();
  const std::string removing = absl::StrCat(path, kRemoving);
  // Renames the checkpoint before removing its first file, so that it is never
  // listed as a partial one.
  TESSERA_RETURN_IF_ERROR(calls_.Rename(path, removing));
  TESSERA_RETURN_IF_ERROR(calls_.SyncDirectory(path_));
  return RemoveTree(removing);
}

absl::Status CheckpointDirectory::Prune(int64_t newest, int64_t keep,
                                        const std::string& keep_least) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> complete,
                           CompleteCheckpoints(path_));
  int64_t least = -1;
  if (!keep_least.empty()) {
    const auto found = LeastCheckpoint(path_, keep_least);
    // Removes no checkpoint if it is unknown which one must be kept.
    if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
    if (found.ok()) least = found->step;
  }
  int64_t kept = 1;  // `newest`.
  for (const FoundCheckpoint& checkpoint : complete) {
    if (checkpoint.step == newest || kept++ < keep) continue;
    if (checkpoint.step == least) continue;
    TESSERA_RETURN_IF_ERROR(Remove(checkpoint.step));
  }
  return absl::OkStatus();
}

absl::Status CheckpointDirectory::RemoveLeftovers() {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListDirectory(path_));
  for (const std::string& name : names) {
    if (!IsLeftover(name)) continue;
    TESSERA_RETURN_IF_ERROR(RemoveTree(absl::StrCat(path_, "/", name)));
  }
  return absl::OkStatus();
}

// A checkpoint has no subdirectories.
absl::Status CheckpointDirectory::RemoveTree(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListDirectory(path));
  for (const std::string& name : names) {
    TESSERA_RETURN_IF_ERROR(calls_.RemoveFile(absl::StrCat(path, "/", name)));
  }
  return calls_.RemoveDirectory(path);
}

absl::Status CheckpointDirectory::WriteNew(const std::string& path,
                                           std::string_view contents) {
  TESSERA_ASSIGN_OR_RETURN(const int fd, calls_.Create(path));
  absl::Status status = calls_.Write(
      fd, std::as_bytes(std::span(contents.data(), contents.size())), 0, path);
  if (status.ok()) status = calls_.Sync(fd, path);
  status.Update(calls_.Close(fd, path));
  return status;
}

}  // namespace tessera::zero3
