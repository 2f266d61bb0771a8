#include "zero3/checkpoint/verify_checkpoint.h"

#include <cstddef>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/shard_file.h"

namespace tessera::zero3 {
namespace {

absl::Status VerifyFile(const std::string& path, int64_t step,
                        const CheckpointPart& part, int64_t rank) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ShardFile> file,
                           ShardFile::Open(path, step, part, rank));
  std::vector<std::byte> block;
  for (const BlockEntry& entry : file->entries()) {
    block.resize(static_cast<size_t>(entry.range.bytes()));
    TESSERA_RETURN_IF_ERROR(file->Read(entry, block));
  }
  if (file->Crc32c() == part.files[static_cast<size_t>(rank)].crc32c) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(file->path(),
                   " does not have the checksum that the manifest says; load "
                   "an earlier checkpoint"));
}

absl::Status CheckNames(const std::string& path,
                        const CheckpointManifest& manifest) {
  std::set<std::string> expected = {std::string(kManifestName)};
  for (const CheckpointPart& part : manifest.parts) {
    for (int64_t rank = 0; rank < part.layout.ranks(); ++rank) {
      expected.insert(ShardFileName(part.name, rank));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListDirectory(path));
  for (const std::string& name : names) {
    if (expected.count(name) > 0) continue;
    return absl::DataLossError(absl::StrCat(
        path, " has ", Quoted(name), ", which is no file of the checkpoint"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyCheckpoint(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                           ReadManifest(path));
  absl::Status first = CheckNames(path, manifest);
  int64_t damaged = 0;
  for (const CheckpointPart& part : manifest.parts) {
    for (int64_t rank = 0; rank < part.layout.ranks(); ++rank) {
      const absl::Status status = VerifyFile(path, manifest.step, part, rank);
      damaged += status.ok() ? 0 : 1;
      first.Update(status);
    }
  }
  if (damaged < 2) return first;
  return absl::Status(first.code(), absl::StrCat(first.message(), " (", damaged,
                                                 " files are damaged)"));
}

}  // namespace tessera::zero3
