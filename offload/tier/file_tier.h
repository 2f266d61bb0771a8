// FileTier: stores blocks in a file, and transfers them while the program
// computes.
#ifndef TESSERA_OFFLOAD_TIER_FILE_TIER_H_
#define TESSERA_OFFLOAD_TIER_FILE_TIER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/tensor/memory.h"
#include "offload/file/async_file.h"
#include "offload/file/block_table.h"
#include "offload/file/block_transfer.h"
#include "offload/file/file_space.h"
#include "offload/file/io_engine.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

struct FileTierOptions {
  std::string path = {};  // a directory; with `keep`, the file
  bool keep = false;
  // The most blocks of a kept file, when it is created; 8 KiB of file for each.
  int64_t kept_blocks = 4096;
  bool direct = true;  // O_DIRECT if the file system allows it
  bool sync = false;   // a Put is on stable storage when it is done (O_DSYNC)
  bool verify = true;  // read every block of a kept file when it is opened
  IoEngineKind engine = IoEngineKind::kAuto;
  int queue_depth = 32;
  // Blocks are transferred in pieces of this size (a power of two, at least
  // 4096).
  int64_t piece_bytes = int64_t{1} << 20;
  // Bounce buffers for memory that lacks the device's alignment; a multiple of
  // piece_bytes. Counted by `bounce_accounting` if it is not null.
  int64_t bounce_bytes = int64_t{16} << 20;
  std::shared_ptr<Accounting> bounce_accounting = nullptr;
  std::shared_ptr<MemoryResource> bounce_memory = HostMemory();
  FileSpace::Options space = {};
  // Timeout for the lock of a kept file, which a killed process may still hold.
  absl::Duration lock_wait = absl::Seconds(5);
  // Wraps the tier's engine, to inject faults in tests.
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> wrap =
      nullptr;
};

// Result of opening a kept file.
struct FileRecovery {
  int64_t blocks = 0;
  int64_t older = 0;  // of these, the number restored to the previous version
  std::vector<std::string> lost;  // keys without an intact version
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::unique_ptr<FileTier> disk,
//       FileTier::Create(std::make_shared<Accounting>("file", 500LL << 30),
//                        {.path = "/scratch"}));
//   Operation store = disk->StartPut("adam.m.17", bytes, info);
//
// Every Put writes a new version to free space and then switches to it: until
// it is done, and after any error, reads return the old version. Every read
// checks the CRC-32C; if it differs, DataLoss names the file, the block and the
// offset. The budget counts the bytes of blocks (during a Put, of the larger
// version); the file is larger because of rounding to 4096 bytes and versions
// in flight, see file_bytes().
//
// A kept file (keep = true) can be reopened after the process died at any
// moment and by any signal. It has every block whose Put was done; a Put in
// flight leaves either the old version or the new one. To survive power
// failures, also set sync = true. Other files have no name and are deleted when
// the process ends.
class FileTier final : public MemoryTier {
 public:
  // The tier has the name of `accounting`. InvalidArgument for invalid options;
  // ResourceExhausted if the blocks of a kept file exceed the budget;
  // FailedPrecondition if the file is in use; otherwise the error of opening
  // it.
  static absl::StatusOr<std::unique_ptr<FileTier>> Create(
      std::shared_ptr<Accounting> accounting, FileTierOptions options);
  ~FileTier() override;

  std::string_view name() const override { return accounting_->name(); }
  Operation StartPut(std::string_view key, std::span<const std::byte> bytes,
                     BlockInfo info) override;
  absl::Status Drop(std::string_view key) override;
  absl::StatusOr<BlockStat> Stat(std::string_view key) const override;
  std::vector<std::string> Keys() const override;
  std::vector<TierUsage> usage() const override;
  absl::Status Flush() override;

  const FileRecovery& recovery() const { return recovery_; }
  std::string_view engine_name() const { return engine_->name(); }
  // Returns whether O_DIRECT is in use, and if not, the reason.
  bool direct() const { return opened_.direct; }
  const std::string& why_not_direct() const { return opened_.why_not_direct; }
  int64_t file_bytes() const { return space_->file_bytes(); }

 protected:
  Operation StartRead(std::string_view key, std::optional<int64_t> offset,
                      std::span<std::byte> out) override;

 private:
  struct Version {
    std::shared_ptr<const FileExtent> extent = {};
    BlockLocation location = {};
    BlockInfo info = {};
  };
  struct Entry {
    std::shared_ptr<const Version> version;  // null until the first Put is done
    std::optional<uint32_t> slot;            // of a kept file
    Reservation room;
    bool busy = false;  // a Put or Drop is in progress
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  struct Store;

  FileTier(std::shared_ptr<Accounting> accounting, FileTierOptions options)
      : accounting_(std::move(accounting)), options_(std::move(options)) {}

  absl::Status Open();
  absl::Status Recover();
  absl::Status RecoverBlock(const std::vector<BlockRecord>& records);
  absl::StatusOr<std::shared_ptr<const Version>> Restore(
      const BlockRecord& record);
  absl::Status Verify(const BlockLocation& location);

  void AwaitIdle(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BeginPut(std::string_view key, int64_t bytes, Purpose purpose);
  absl::StatusOr<std::shared_ptr<Version>> MakeRoom(std::string_view key,
                                                    int64_t bytes,
                                                    BlockInfo info);
  // `version` is null if the Put failed.
  void EndPut(const std::string& key, std::shared_ptr<const Version> version);
  void Record(std::shared_ptr<Store> store);
  absl::Status Entomb(std::string_view key, uint32_t slot);
  std::shared_ptr<const Version> Find(std::string_view key) const;

  const std::shared_ptr<Accounting> accounting_;
  const FileTierOptions options_;
  FileRecovery recovery_;
  OpenedFile opened_;
  std::unique_ptr<BouncePool> pool_;
  std::shared_ptr<FileSpace> space_;
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<AsyncFile> file_;
  std::unique_ptr<BlockTransfer> transfer_;
  std::unique_ptr<BlockTable> table_;  // of a kept file
  mutable absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_FILE_TIER_H_
