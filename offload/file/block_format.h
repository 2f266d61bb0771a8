// The sectors that describe a block file: the superblock and the records.
//
//   | bytes          | what                                                 |
//   | -------------- | ---------------------------------------------------- |
//   | 0, 4096        | superblock, twice; the later valid one counts        |
//   | tables         | slots of two sectors; the later valid one of the two |
//   |                | is the slot's record, live or a tombstone            |
//   | the rest       | blocks, at multiples of 4096                         |
//
// A sector is written where its twin is not, and after what it points to:
// whatever moment the writer dies at, one of the two is whole and true. All
// numbers are little-endian; every sector carries its own CRC-32C.
#ifndef TESSERA_OFFLOAD_FILE_BLOCK_FORMAT_H_
#define TESSERA_OFFLOAD_FILE_BLOCK_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/file/block_transfer.h"

namespace tessera::offload {

inline constexpr size_t kSectorBytes = 4096;
inline constexpr size_t kMostTables = 26;  // slots are 32-bit numbers
inline constexpr size_t kMostKeyBytes = 256;

using SectorView = std::span<const std::byte, kSectorBytes>;
using MutableSectorView = std::span<std::byte, kSectorBytes>;

struct Superblock {
  uint64_t file_id = 0;  // random; tells stale sectors of other files apart
  uint64_t generation = 0;
  std::vector<int64_t> tables;  // offsets; table i has 64 << i slots
  friend bool operator==(const Superblock&, const Superblock&) = default;
};

struct BlockRecord {
  uint64_t file_id = 0;
  uint64_t generation = 0;
  uint32_t slot = 0;
  bool live = false;    // a tombstone has none of what follows
  uint8_t purpose = 0;  // numbers as the writer gave them
  uint8_t dtype = 0;
  std::string key;     // 1 to 256 bytes
  int64_t offset = 0;  // a multiple of 4096
  int64_t bytes = 0;
  int64_t original_bytes = -1;  // at least -1
  BlockChecksums checksums;
  friend bool operator==(const BlockRecord&, const BlockRecord&) = default;
};

// The arguments keep to the limits above.
void EncodeSuperblock(const Superblock& superblock, MutableSectorView sector);
void EncodeRecord(const BlockRecord& record, MutableSectorView sector);

// InvalidArgument where a sector is not what its name says, is damaged, or
// holds what the limits above do not allow.
absl::StatusOr<Superblock> ParseSuperblock(SectorView sector);
absl::StatusOr<BlockRecord> ParseRecord(SectorView sector);

namespace block_format_internal {
// Makes the sector's CRC-32C right again, whatever it holds.
void Seal(MutableSectorView sector);
}  // namespace block_format_internal

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_BLOCK_FORMAT_H_
