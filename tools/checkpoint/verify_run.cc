#include "tools/checkpoint/verify_run.h"

#include <cstddef>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/train/checkpoint/saved_run.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/shard_file.h"

namespace tessera::tools {
namespace {

using zero3::CheckpointManifest;
using zero3::CheckpointPart;

absl::Status VerifyFile(const std::string& path, int64_t step,
                        const CheckpointPart& part, int64_t rank) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<zero3::ShardFile> file,
                           zero3::ShardFile::Open(path, step, part, rank));
  std::vector<std::byte> block;
  for (const zero3::BlockEntry& entry : file->entries()) {
    block.resize(static_cast<size_t>(entry.range.bytes()));
    TESSERA_RETURN_IF_ERROR(file->Read(entry, block));
  }
  if (file->Crc32c() == part.files[static_cast<size_t>(rank)].crc32c) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      file->path(), " does not have the checksum that the manifest says"));
}

absl::Status CheckNames(const std::string& path,
                        const CheckpointManifest& manifest) {
  std::set<std::string> known = {std::string(zero3::kManifestName)};
  for (const CheckpointPart& part : manifest.parts) {
    for (int64_t rank = 0; rank < part.layout.ranks(); ++rank) {
      known.insert(zero3::ShardFileName(part.name, rank));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           zero3::ListDirectory(path));
  for (const std::string& name : names) {
    if (known.count(name) > 0) continue;
    return absl::DataLossError(absl::StrCat(
        path, " has ", Quoted(name), ", which is no file of the checkpoint"));
  }
  return absl::OkStatus();
}

VerifiedBytes TotalOf(const CheckpointManifest& manifest) {
  VerifiedBytes total;
  for (const CheckpointPart& part : manifest.parts) {
    for (const zero3::CheckpointFile& file : part.files) {
      ++total.all_files;
      total.all_bytes += file.bytes;
    }
  }
  return total;
}

}  // namespace

absl::StatusOr<VerifiedBytes> VerifyRun(
    const std::string& path,
    absl::FunctionRef<void(const VerifiedBytes&)> progress) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<train::SavedRun> run,
                           train::SavedRun::Open(path));
  const CheckpointManifest& manifest = run->manifest();
  absl::Status first = CheckNames(path, manifest);
  VerifiedBytes verified = TotalOf(manifest);
  int64_t damaged = 0;
  for (const CheckpointPart& part : manifest.parts) {
    for (int64_t rank = 0; rank < part.layout.ranks(); ++rank) {
      const absl::Status status = VerifyFile(path, manifest.step, part, rank);
      damaged += status.ok() ? 0 : 1;
      first.Update(status);
      ++verified.files;
      verified.bytes += part.files[static_cast<size_t>(rank)].bytes;
      progress(verified);
    }
  }
  if (first.ok()) return verified;
  return absl::Status(
      first.code(),
      absl::StrCat(
          first.message(),
          damaged > 1 ? absl::StrCat(" (", damaged, " files are damaged)") : "",
          "; use another checkpoint"));
}

}  // namespace tessera::tools
