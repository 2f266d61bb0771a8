// The records of a kept block file, each in a slot of two sectors (BlockTable),
// and their encoding.
//
//   | bytes                | what                                           |
//   | -------------------- | ---------------------------------------------- |
//   | from 8192 * slot     | the slots: 0 contains the size of the table,   |
//   |                      | the others one block or a tombstone each       |
//   | the rest             | blocks, at multiples of 4096                   |
//
// The later valid sector of a slot is its record. A record overwrites the other
// sector, after the data that it refers to has been written: whenever the
// writer dies, one of the two is intact. All numbers are little-endian; every
// sector has its own CRC-32C.
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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "offload/file/async_file.h"
#include "offload/file/block_transfer.h"
#include "offload/file/file_space.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

inline constexpr size_t kSectorBytes = 4096;
inline constexpr size_t kMostKeyBytes = 256;
inline constexpr int64_t kMostKeptBlocks = int64_t{1} << 24;

using SectorView = std::span<const std::byte, kSectorBytes>;
using MutableSectorView = std::span<std::byte, kSectorBytes>;

struct BlockRecord {
  uint64_t generation = 0;
  uint32_t slot = 0;
  int64_t table_blocks = 0;     // slot 0: the size of the table
  bool live = false;            // false: without the fields below
  std::string key = {};         // 1 to 256 bytes
  BlockInfo info = {};          // numbers in the file, unchecked
  BlockLocation location = {};  // at a multiple of 4096
  friend bool operator==(const BlockRecord&, const BlockRecord&) = default;
};

// The record must respect the limits above.
void EncodeRecord(const BlockRecord& record, MutableSectorView sector);
// InvalidArgument if the sector is not a record, is damaged, or exceeds the
// limits above.
absl::StatusOr<BlockRecord> ParseRecord(SectorView sector);

namespace block_format_internal {
// Updates the sector's CRC-32C.
void Seal(MutableSectorView sector);
}  // namespace block_format_internal

//   TESSERA_ASSIGN_OR_RETURN(
//       auto table, BlockTable::Open(file, space, /*blocks=*/4096,
//                                    /*sync=*/false));
//   for (const auto& slot : table->found()) ...      // after a crash
//   TESSERA_ASSIGN_OR_RETURN(uint32_t slot, table->TakeSlot());
//   table->Write(record, [](absl::Status status) { ... });
//
// Safe for concurrent use. `file` must outlive the table and every Write.
class BlockTable {
 public:
  // Reads the table of a block file, or creates one for `blocks` blocks in an
  // empty file. With `sync` a record is on stable storage when its Write is
  // done. DataLoss, with the file unchanged, if it is not a block file or has
  // lost its table.
  static absl::StatusOr<std::unique_ptr<BlockTable>> Open(
      AsyncFile& file, std::shared_ptr<FileSpace> space, int64_t blocks,
      bool sync);

  // For each slot whose newest record is live: its valid live records (one or
  // two), newest first, as read by Open.
  const std::vector<std::vector<BlockRecord>>& found() const { return found_; }
  // Selects the record of a slot in found() that survives the next Write; by
  // default the newest.
  void Keep(uint32_t slot, uint64_t generation);

  // Returns a slot for a new key. ResourceExhausted if all are taken.
  absl::StatusOr<uint32_t> TakeSlot();
  // Frees a slot without a live record.
  void ReturnSlot(uint32_t slot);

  // Writes `record` (the caller sets slot and contents) to the other sector of
  // its slot. Until it is done, and after an error, the slot's last record
  // stays valid. One Write per slot at a time.
  void Write(BlockRecord record, AsyncFile::Done done);

 private:
  struct Slot {
    uint32_t last = 1;  // the sector with the current record
    std::array<uint64_t, 2> generations = {};
  };

  BlockTable(AsyncFile& file, bool sync) : file_(file), sync_(sync) {}

  // Returns the number of blocks of the file's table, or 0 if nothing was ever
  // stored in the file.
  absl::StatusOr<int64_t> ReadSize(const FileSpace& space) const;
  absl::Status Load();
  // Reads a slot; returns its valid records, newest first.
  std::vector<BlockRecord> LoadSlot(uint32_t number,
                                    std::span<const std::byte> sectors);
  // Creates the table in a file whose first `old_bytes` are not new.
  absl::Status Format(int64_t old_bytes);

  AsyncFile& file_;
  const bool sync_;
  std::shared_ptr<const FileExtent> extent_;
  std::vector<std::vector<BlockRecord>> found_;
  absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_BLOCK_TABLE_H_
