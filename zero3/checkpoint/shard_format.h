// The format of a shard file (README.md has tables):
//
//   header | block | block | ... | index | footer
//
// All fields are little-endian, without gaps. Each byte is covered by a
// checksum, of its block or of header, index and footer, so that a reader can
// verify the blocks it reads without reading the rest.
#ifndef TESSERA_ZERO3_CHECKPOINT_SHARD_FORMAT_H_
#define TESSERA_ZERO3_CHECKPOINT_SHARD_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "zero3/layout/state_format.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

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

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_SHARD_FORMAT_H_
