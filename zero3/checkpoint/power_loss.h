// PowerLossCalls: FileCalls on a machine that stops at a chosen call, and what
// its disk has afterwards.
//
//   PowerLossCalls calls("/tmp/live", /*last=*/7);
//   ... what is tested writes below /tmp/live; from call 7 on all fail ...
//   calls.WriteDisk(Survival::kSynced, seed, "/tmp/after");
//
// Calls go to the real directory too, so that it can be read meanwhile. The
// model of a disk: contents of a file are there once it was synced, entries of
// a directory once that was; what was not may be there or not, independently
// (POSIX promises no more).
#ifndef TESSERA_ZERO3_CHECKPOINT_POWER_LOSS_H_
#define TESSERA_ZERO3_CHECKPOINT_POWER_LOSS_H_

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::zero3::testing {

enum class Survival {
  kAll,     // As when the process dies: what was called has happened.
  kSynced,  // Only what was synced.
  kRandom,  // That, and any of the rest.
};

class PowerLossCalls : public FileCalls {
 public:
  // `root` is there; what it has is on the disk. Call number `last`, from 1,
  // and those behind it fail.
  PowerLossCalls(std::string root, int64_t last);

  // How many calls there were, failed ones too.
  int64_t calls() const;

  // Makes the directory `to` with what the disk has at `root`.
  void WriteDisk(Survival survival, uint64_t seed, const std::string& to) const;

  absl::StatusOr<int> Create(const std::string& path) override;
  absl::Status Write(int fd, std::span<const std::byte> bytes, int64_t offset,
                     const std::string& path) override;
  absl::Status Sync(int fd, const std::string& path) override;
  absl::Status Close(int fd, const std::string& path) override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Exchange(const std::string& a, const std::string& b) override;
  absl::Status RemoveFile(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;

 private:
  using Entries = std::map<std::string, int>;  // Nodes by name.
  struct Node {
    bool is_directory = false;
    std::string data = "";
    std::string synced_data = "";
    Entries entries = {};
    Entries synced_entries = {};
  };

  absl::Status Count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int Load(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The directory of `path`, and the entry there.
  Entries& EntriesAround(const std::string& path, std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int NodeAt(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNode(int node, Survival survival, std::mt19937_64& random,
                 const std::string& to) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string root_;
  const int64_t last_;
  mutable absl::Mutex mutex_;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, Node> nodes_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int> open_ ABSL_GUARDED_BY(mutex_);  // Nodes by descriptor.
};

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_CHECKPOINT_POWER_LOSS_H_
