// BlockTable: the records of a kept file, each in a slot of two sectors.
//
//   TESSERA_ASSIGN_OR_RETURN(auto table, BlockTable::Open(file, space, false));
//   for (const auto& slot : table->found()) ...      // what a crash has left
//   TESSERA_ASSIGN_OR_RETURN(uint32_t slot, table->TakeSlot());
//   table->Write(record, [](absl::Status status) { ... });
//
// block_format.h has the layout and why it survives a crash.
#ifndef TESSERA_OFFLOAD_FILE_BLOCK_TABLE_H_
#define TESSERA_OFFLOAD_FILE_BLOCK_TABLE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "offload/file/async_file.h"
#include "offload/file/block_format.h"
#include "offload/file/file_space.h"

namespace tessera::offload {

// Safe for concurrent use. `file` outlives it and every Write.
class BlockTable {
 public:
  // Reads the table of a block file, or writes that of an empty file. With
  // `sync` a record is on stable storage when its Write is done. DataLoss, with
  // the file untouched, where it holds something else or both superblocks are
  // damaged.
  static absl::StatusOr<std::unique_ptr<BlockTable>> Open(
      AsyncFile& file, std::shared_ptr<FileSpace> space, bool sync);

  // Per slot whose newest record is live: its valid live records, newest first
  // (one or two). As Open found them.
  const std::vector<std::vector<BlockRecord>>& found() const { return found_; }
  // Of a slot in found(): the record that is to survive the next Write. The
  // newest, unless this is called.
  void Keep(uint32_t slot, uint64_t generation);

  // Larger than any before in this file.
  uint64_t NextGeneration();

  // A slot for a new key. May write to grow the table, and then waits: not for
  // threads of the engine.
  absl::StatusOr<uint32_t> TakeSlot();
  // Gives back a slot that holds no live record.
  void ReturnSlot(uint32_t slot);

  // Writes `record` (its slot, generation and contents are the caller's) where
  // the slot's last record is not, which stays in force until then, and after
  // an error. One Write per slot at a time.
  void Write(BlockRecord record, AsyncFile::Done done);

 private:
  struct Slot {
    int64_t offset = 0;
    uint32_t last = 1;  // the half that holds what is in force
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
  // Held over writes; threads of the engine never take it.
  absl::Mutex grow_mutex_;
  Superblock superblock_;  // changed under grow_mutex_; file_id never again
  std::vector<std::shared_ptr<const FileExtent>> extents_;
  absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_BLOCK_TABLE_H_
