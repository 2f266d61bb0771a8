#include "zero3/checkpoint/shard_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/file/crc32c.h"

namespace tessera::zero3 {
namespace {

// Blocks below this wait for others, to be written at once.
constexpr size_t kSmallBytes = size_t{1} << 18;

}  // namespace

absl::StatusOr<std::unique_ptr<ShardWriter>> ShardWriter::Create(
    FileCalls& calls, std::string path, const ShardHeader& header) {
  TESSERA_ASSIGN_OR_RETURN(const int fd, calls.Create(path));
  std::unique_ptr<ShardWriter> writer(
      new ShardWriter(calls, std::move(path), fd));
  TESSERA_RETURN_IF_ERROR(writer->Append(FormatShardHeader(header)));
  return writer;
}

ShardWriter::~ShardWriter() {
  if (fd_ >= 0) calls_.Close(fd_, path_).IgnoreError();
}

absl::Status ShardWriter::Add(const BlockRange& range,
                              std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size != range.bytes() || size == 0 || size > kMaxShardBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": a block of ", size, " bytes for elements ",
                     range.begin, " to ", range.end, ", which take ",
                     range.bytes(), "; allowed: 1 to ", kMaxShardBlockBytes));
  }
  const uint32_t crc = offload::Crc32c(bytes);
  entries_.push_back({range, bytes_, crc});
  crc32c_ = offload::CombineCrc32c(crc32c_, crc, bytes.size());
  bytes_ += size;
  return Keep(bytes);
}

// Header, index and footer.
absl::Status ShardWriter::Append(std::span<const std::byte> bytes) {
  crc32c_ = offload::ExtendCrc32c(crc32c_, bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
  return Keep(bytes);
}

absl::Status ShardWriter::Keep(std::span<const std::byte> bytes) {
  if (small_.size() + bytes.size() > kSmallBytes) {
    TESSERA_RETURN_IF_ERROR(Flush());
  }
  if (bytes.size() > kSmallBytes) return Write(bytes);
  small_.insert(small_.end(), bytes.begin(), bytes.end());
  return absl::OkStatus();
}

absl::Status ShardWriter::Write(std::span<const std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(calls_.Write(fd_, bytes, written_, path_));
  written_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status ShardWriter::Flush() {
  if (small_.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(Write(small_));
  small_.clear();
  return absl::OkStatus();
}

absl::StatusOr<CheckpointFile> ShardWriter::Finish() {
  const std::vector<std::byte> index = FormatShardIndex(entries_);
  const ShardFooter footer = {.index_offset = bytes_,
                              .entries = static_cast<int64_t>(entries_.size()),
                              .index_crc32c = offload::Crc32c(index)};
  TESSERA_RETURN_IF_ERROR(Append(index));
  TESSERA_RETURN_IF_ERROR(Append(FormatShardFooter(footer)));
  TESSERA_RETURN_IF_ERROR(Flush());
  TESSERA_RETURN_IF_ERROR(calls_.Sync(fd_, path_));
  TESSERA_RETURN_IF_ERROR(calls_.Close(std::exchange(fd_, -1), path_));
  return CheckpointFile{
      .bytes = bytes_, .crc32c = crc32c_, .index_crc32c = footer.index_crc32c};
}

}  // namespace tessera::zero3
