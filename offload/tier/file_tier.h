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
#include "base/tensor/memory.h"
#include "offload/file/async_file.h"
#include "offload/file/block_transfer.h"
#include "offload/file/file_space.h"
#include "offload/file/io_engine.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

struct FileTierOptions {
  std::string path = {};  // the directory of the file
  bool direct = true;     // O_DIRECT if the file system allows it
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
  // Wraps the tier's engine, to inject faults in tests.
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> wrap =
      nullptr;
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
// The file has no name, and the system deletes it when the process ends, even
// after SIGKILL: checkpoints store what must outlive the process.
class FileTier final : public MemoryTier {
 public:
  // The tier has the name of `accounting`. InvalidArgument for invalid options;
  // otherwise the error of opening the file.
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
    Reservation room;
    bool busy = false;  // a Put is in progress
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  FileTier(std::shared_ptr<Accounting> accounting, FileTierOptions options)
      : accounting_(std::move(accounting)), options_(std::move(options)) {}

  absl::Status Open();
  void AwaitIdle(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BeginPut(std::string_view key, int64_t bytes, Purpose purpose);
  absl::StatusOr<std::shared_ptr<Version>> MakeRoom(std::string_view key,
                                                    int64_t bytes,
                                                    BlockInfo info);
  // `version` is null if the Put failed.
  void EndPut(const std::string& key, std::shared_ptr<const Version> version);
  std::shared_ptr<const Version> Find(std::string_view key) const;

  const std::shared_ptr<Accounting> accounting_;
  const FileTierOptions options_;
  OpenedFile opened_;
  std::unique_ptr<BouncePool> pool_;
  std::shared_ptr<FileSpace> space_;
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<AsyncFile> file_;
  std::unique_ptr<BlockTransfer> transfer_;
  mutable absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_FILE_TIER_H_
