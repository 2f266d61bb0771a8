// The format of a shard file, a reader that verifies its blocks (ShardFile),
// and a writer (ShardWriter).
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
//
// The format (README.md has tables):
//
//   header | block | block | ... | index | footer
//
// All fields are little-endian, without gaps. Each byte is covered by a
// checksum, of its block or of header, index and footer, so that a reader can
// verify the blocks it reads without reading the rest.
#ifndef TESSERA_ZERO3_CHECKPOINT_SHARD_FILE_H_
#define TESSERA_ZERO3_CHECKPOINT_SHARD_FILE_H_

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/layout/state_format.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

template <std::unsigned_integral T>
void StoreLittleEndian(T value, std::byte* to) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
  }
}

template <std::unsigned_integral T>
T LoadLittleEndian(const std::byte* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(from[i]) << (8 * i));
  }
  return value;
}

inline constexpr uint32_t kShardVersion = 1;
inline constexpr int64_t kShardHeaderBytes = 32;
inline constexpr int64_t kShardEntryBytes = 48;
inline constexpr int64_t kShardFooterBytes = 32;
// Limits for readers.
inline constexpr int64_t kMaxShardBlockBytes = int64_t{64} << 20;

struct ShardHeader {
  int64_t step = 0;
  // The index of the shard in its part of the checkpoint, and the number of
  // shards.
  int64_t rank = 0;
  int64_t ranks = 1;

  friend bool operator==(const ShardHeader&, const ShardHeader&) = default;
};

// Elements [begin, end) of one part of a parameter.
struct BlockRange {
  ParameterId parameter = {};  // Its id in the part of the checkpoint.
  StatePart part = StatePart::kValue;
  StateFormat format = {};
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  int64_t bytes() const { return format.BytesOf(size()); }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

struct BlockEntry {
  BlockRange range;
  int64_t offset = 0;  // In the file.
  uint32_t crc32c = 0;

  friend bool operator==(const BlockEntry&, const BlockEntry&) = default;
};

struct ShardFooter {
  int64_t index_offset = 0;
  int64_t entries = 0;
  uint32_t index_crc32c = 0;

  friend bool operator==(const ShardFooter&, const ShardFooter&) = default;
};

std::array<std::byte, kShardHeaderBytes> FormatShardHeader(
    const ShardHeader& header);
std::vector<std::byte> FormatShardIndex(std::span<const BlockEntry> entries);
std::array<std::byte, kShardFooterBytes> FormatShardFooter(
    const ShardFooter& footer);

// Safe for untrusted bytes: lengths are checked before use. InvalidArgument,
// with the offset, for invalid bytes.
absl::StatusOr<ShardHeader> ParseShardHeader(
    std::span<const std::byte, kShardHeaderBytes> bytes);
// `file_bytes` is the size of the file, at least that of header and footer.
absl::StatusOr<ShardFooter> ParseShardFooter(
    std::span<const std::byte, kShardFooterBytes> bytes, int64_t file_bytes);
// Blocks are disjoint, in ascending order of parameter, part and element, and
// contiguous from the header to the index.
absl::StatusOr<std::vector<BlockEntry>> ParseShardIndex(
    std::span<const std::byte> bytes, const ShardFooter& footer);

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
