// ShardWriter: writes a shard file, block after block.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer, ShardWriter::Create(calls, path, {.step = 20}));
//   TESSERA_RETURN_IF_ERROR(writer->Add(range, bytes));
//   TESSERA_ASSIGN_OR_RETURN(const CheckpointFile file, writer->Finish());
//
// Errors name the file and the offset; what was written then is of no use and
// for the caller to remove. One thread at a time.
#ifndef TESSERA_ZERO3_CHECKPOINT_SHARD_WRITER_H_
#define TESSERA_ZERO3_CHECKPOINT_SHARD_WRITER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/shard_format.h"

namespace tessera::zero3 {

class ShardWriter {
 public:
  // A new file; AlreadyExists where there is one. `calls` outlives the writer.
  static absl::StatusOr<std::unique_ptr<ShardWriter>> Create(
      FileCalls& calls, std::string path, const ShardHeader& header);

  // Closes the file, finished or not.
  ~ShardWriter();

  // The next block. Ranges come as ParseShardIndex demands; InvalidArgument,
  // before anything is written, where `bytes` is not range.bytes() long or
  // longer than a block may be.
  absl::Status Add(const BlockRange& range, std::span<const std::byte> bytes);

  // The index and the footer; then the file is on its device.
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
  int64_t bytes_ = 0;    // Of the file with what is not yet written.
  int64_t written_ = 0;  // Without.
  uint32_t crc32c_ = 0;
  std::vector<std::byte> small_;  // Not yet written.
  std::vector<BlockEntry> entries_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_SHARD_WRITER_H_
