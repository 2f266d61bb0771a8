// ShardFile reads a shard of a checkpoint, ShardWriter writes one; their format
// is in shard_format.h.
#ifndef TESSERA_ZERO3_CHECKPOINT_SHARD_FILE_H_
#define TESSERA_ZERO3_CHECKPOINT_SHARD_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/shard_format.h"
#include "zero3/layout/state_format.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// Reads a shard file and verifies its blocks.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto file, ShardFile::Open(directory, step, part, /*rank=*/3));
//   for (const BlockEntry& entry : file->Find(parameter, StatePart::kMaster)) {
//     TESSERA_RETURN_IF_ERROR(file->Read(entry, buffer));
//   }
//
// Open reads only header, footer and index, and verifies them against the
// manifest and its layout: every block has the right offset and format, and
// each element exists once. Otherwise DataLoss, with the file, the offset and
// the parameter. Reads are thread-safe.
class ShardFile {
 public:
  // Opens the shard of `rank`, with the layout of `part`, in the checkpoint at
  // `directory`. `part` outlives the file. NotFound if the file is missing.
  static absl::StatusOr<std::unique_ptr<ShardFile>> Open(
      const std::string& directory, int64_t step, const CheckpointPart& part,
      int64_t rank);

  const std::string& path() const { return path_; }
  std::span<const BlockEntry> entries() const { return entries_; }
  // The blocks of one part of a parameter, in ascending order.
  std::span<const BlockEntry> Find(ParameterId parameter, StatePart part) const;

  // Reads the bytes of a block and verifies their checksum. Precondition: `to`
  // has entry.range.bytes() bytes.
  absl::Status Read(const BlockEntry& entry, std::span<std::byte> to) const;

  // The checksum of the whole file, combined from the checksums of its pieces.
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
  std::vector<std::byte> tail_;  // The bytes of index and footer.
};

// Writes a shard file block by block.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer, ShardWriter::Create(calls, path, {.step = 20}));
//   TESSERA_RETURN_IF_ERROR(writer->Add(range, bytes));
//   TESSERA_ASSIGN_OR_RETURN(const CheckpointFile file, writer->Finish());
//
// Errors name the file and the offset; the caller then removes the file. One
// thread at a time.
class ShardWriter {
 public:
  // Creates a file; AlreadyExists if it exists. `calls` outlives the writer.
  static absl::StatusOr<std::unique_ptr<ShardWriter>> Create(
      FileCalls& calls, std::string path, const ShardHeader& header);

  // Closes the file, finished or not.
  ~ShardWriter();

  // Appends the next block. Ranges must be in the order that ParseShardIndex
  // requires. InvalidArgument, before anything is written, if the size of
  // `bytes` is not range.bytes() or exceeds the maximum.
  absl::Status Add(const BlockRange& range, std::span<const std::byte> bytes);

  // Appends the index and the footer, and syncs the file to its device.
  absl::StatusOr<CheckpointFile> Finish();

 private:
  ShardWriter(FileCalls& calls, std::string path, int fd)
      : calls_(calls), path_(std::move(path)), fd_(fd) {}

  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status Keep(std::span<const std::byte> bytes);
  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Flush();

  FileCalls& calls_;
  const std::string path_;
  int fd_;
  int64_t bytes_ = 0;    // The size of the file, including `small_`.
  int64_t written_ = 0;  // Excluding `small_`.
  uint32_t crc32c_ = 0;
  std::vector<std::byte> small_;  // Not yet written.
  std::vector<BlockEntry> entries_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_SHARD_FILE_H_
