// The format of a kept block file: the encoding of its superblock and records,
// and the table that reads and writes them (BlockTable).
//
//   | bytes          | what                                                 |
//   | -------------- | ---------------------------------------------------- |
//   | 0, 4096        | superblock, twice; the later valid one counts        |
//   | tables         | slots of two sectors; the later valid one of the two |
//   |                | is the slot's record, live or a tombstone            |
//   | the rest       | blocks, at multiples of 4096                         |
//
// A sector overwrites the older of its two versions, after the data that it
// refers to has been written: whenever the writer dies, one of the two is
// intact. All numbers are little-endian; every sector has its own CRC-32C.
#ifndef TESSERA_OFFLOAD_FILE_BLOCK_TABLE_H_
#define TESSERA_OFFLOAD_FILE_BLOCK_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "offload/file/async_file.h"
#include "offload/file/block_transfer.h"
#include "offload/file/file_space.h"

namespace tessera::offload {

inline constexpr size_t kSectorBytes = 4096;
inline constexpr size_t kMostTables = 26;  // slots are 32-bit numbers
inline constexpr size_t kMostKeyBytes = 256;

using SectorView = std::span<const std::byte, kSectorBytes>;
using MutableSectorView = std::span<std::byte, kSectorBytes>;

struct Superblock {
  uint64_t file_id = 0;  // random; identifies stale sectors of other files
  uint64_t generation = 0;
  std::vector<int64_t> tables;  // offsets; table i has 64 << i slots
  friend bool operator==(const Superblock&, const Superblock&) = default;
};

struct BlockRecord {
  uint64_t file_id = 0;
  uint64_t generation = 0;
  uint32_t slot = 0;
  bool live = false;    // false: a tombstone, without the fields below
  uint8_t purpose = 0;  // stored as numbers, unchecked
  uint8_t dtype = 0;
  std::string key;     // 1 to 256 bytes
  int64_t offset = 0;  // a multiple of 4096
  int64_t bytes = 0;
  int64_t original_bytes = -1;  // at least -1
  BlockChecksums checksums;
  friend bool operator==(const BlockRecord&, const BlockRecord&) = default;
};

// The arguments must respect the limits above.
void EncodeSuperblock(const Superblock& superblock, MutableSectorView sector);
void EncodeRecord(const BlockRecord& record, MutableSectorView sector);

// InvalidArgument if a sector is of another kind, is damaged, or exceeds the
// limits above.
absl::StatusOr<Superblock> ParseSuperblock(SectorView sector);
absl::StatusOr<BlockRecord> ParseRecord(SectorView sector);

namespace block_format_internal {
// Updates the sector's CRC-32C.
void Seal(MutableSectorView sector);
}  // namespace block_format_internal

// The records of a kept file, each in a slot of two sectors.
//
//   TESSERA_ASSIGN_OR_RETURN(auto table, BlockTable::Open(file, space, false));
//   for (const auto& slot : table->found()) ...      // after a crash
//   TESSERA_ASSIGN_OR_RETURN(uint32_t slot, table->TakeSlot());
//   table->Write(record, [](absl::Status status) { ... });
//
// Safe for concurrent use. `file` must outlive the table and every Write.
class BlockTable {
 public:
  // Reads the table of a block file, or creates the table of an empty file.
  // With `sync` a record is on stable storage when its Write is done. DataLoss,
  // with the file unchanged, if it is not a block file or both superblocks are
  // damaged.
  static absl::StatusOr<std::unique_ptr<BlockTable>> Open(
      AsyncFile& file, std::shared_ptr<FileSpace> space, bool sync);

  // For each slot whose newest record is live: its valid live records (one or
  // two), newest first, as read by Open.
  const std::vector<std::vector<BlockRecord>>& found() const { return found_; }
  // Selects the record of a slot in found() that survives the next Write; by
  // default the newest.
  void Keep(uint32_t slot, uint64_t generation);

  // Returns a generation larger than all previous ones in this file.
  uint64_t NextGeneration();

  // Returns a slot for a new key. May block to grow the table, so engine
  // threads must not call it.
  absl::StatusOr<uint32_t> TakeSlot();
  // Frees a slot without a live record.
  void ReturnSlot(uint32_t slot);

  // Writes `record` (the caller sets slot, generation and contents) to the
  // other sector of its slot. Until it is done, and after an error, the slot's
  // last record stays valid. One Write per slot at a time.
  void Write(BlockRecord record, AsyncFile::Done done);

 private:
  struct Slot {
    int64_t offset = 0;
    uint32_t last = 1;  // the sector with the current record
    std::array<uint64_t, 2> generations = {};
  };

  BlockTable(AsyncFile& file, std::shared_ptr<FileSpace> space, bool sync)
      : file_(file), space_(std::move(space)), sync_(sync) {}

  absl::Status NoBlockFile(std::string_view why) const;
  absl::StatusOr<bool> ReadSuperblock();
  absl::Status Format();
  absl::Status LoadTable(int64_t offset);
  void LoadSlot(int64_t offset, std::span<const std::byte> sectors);
  absl::Status GrowTable();
  absl::Status WriteSuperblock(const Superblock& superblock);
  void AddSlots(int64_t offset, size_t count);
  size_t SlotsOfTable(size_t index) const { return size_t{64} << index; }

  AsyncFile& file_;
  const std::shared_ptr<FileSpace> space_;
  const bool sync_;
  std::vector<std::vector<BlockRecord>> found_;
  // Held during writes; engine threads never lock it.
  absl::Mutex grow_mutex_;
  Superblock superblock_;  // guarded by grow_mutex_; file_id is constant
  std::vector<std::shared_ptr<const FileExtent>> extents_;
  absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_BLOCK_TABLE_H_
