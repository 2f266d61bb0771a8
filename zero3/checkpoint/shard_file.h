// ShardFile: reads blocks of a shard file, and checks what it reads.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto file, ShardFile::Open(directory, step, part, /*rank=*/3));
//   for (const BlockEntry& entry : file->Find(parameter, StatePart::kMaster)) {
//     TESSERA_RETURN_IF_ERROR(file->Read(entry, buffer));
//   }
//
// Opening reads header, footer and index alone, compares them with the manifest
// and each block with the layout there, so that blocks have the place and the
// format they must have, and each element is there once. What differs is
// DataLoss that names the file, the offset and the parameter.
// Reads may come from any thread.
#ifndef TESSERA_ZERO3_CHECKPOINT_SHARD_FILE_H_
#define TESSERA_ZERO3_CHECKPOINT_SHARD_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/shard_format.h"

namespace tessera::zero3 {

class ShardFile {
 public:
  // The shard of `rank`, of the layout of `part`, in the checkpoint at
  // `directory`. `part` outlives the file. NotFound where there is none.
  static absl::StatusOr<std::unique_ptr<ShardFile>> Open(
      const std::string& directory, int64_t step, const CheckpointPart& part,
      int64_t rank);

  const std::string& path() const { return path_; }
  std::span<const BlockEntry> entries() const { return entries_; }
  // Those of one part of a parameter, ascending.
  std::span<const BlockEntry> Find(ParameterId parameter, StatePart part) const;

  // The bytes of a block, which have its checksum. Precondition: `to` has
  // entry.range.bytes() bytes.
  absl::Status Read(const BlockEntry& entry, std::span<std::byte> to) const;

  // Of the whole file, as the checksums of its pieces make it.
  uint32_t Crc32c() const;

 private:
  ShardFile(std::string path, const CheckpointPart& part, int64_t rank)
      : path_(std::move(path)), part_(part), rank_(rank) {}

  absl::Status OpenFile();
  absl::Status ReadIndex(int64_t step);
  absl::Status CheckBlocks() const;
  absl::Status ReadAt(int64_t offset, std::span<std::byte> to) const;
  absl::Status Damaged(int64_t offset, std::string_view what) const;

  const std::string path_;
  const CheckpointPart& part_;
  const int64_t rank_;
  UniqueFd fd_;
  uint32_t header_crc_ = 0;
  std::vector<BlockEntry> entries_;
  std::vector<std::byte> tail_;  // Index and footer, as they were read.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_SHARD_FILE_H_
