// FileCalls that fail or lose power, for tests of checkpoints.
#ifndef TESSERA_ZERO3_CHECKPOINT_TESTING_FILES_H_
#define TESSERA_ZERO3_CHECKPOINT_TESTING_FILES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::zero3::testing {

// Calls `before` with the name and path of every call. If `before` returns an
// error, the call fails with that error and is not executed.
class HookedCalls : public FileCalls {
 public:
  using Hook = std::function<absl::Status(std::string_view call,
                                          const std::string& path)>;
  explicit HookedCalls(Hook before) : before_(std::move(before)) {}

  absl::StatusOr<int> Create(const std::string& path) override {
    if (absl::Status status = before_("create", path); !status.ok()) {
      return status;
    }
    return System().Create(path);
  }
  absl::Status Write(int fd, std::span<const std::byte> bytes, int64_t offset,
                     const std::string& path) override {
    const absl::Status status = before_("write", path);
    return status.ok() ? System().Write(fd, bytes, offset, path) : status;
  }
  absl::Status Sync(int fd, const std::string& path) override {
    const absl::Status status = before_("sync", path);
    return status.ok() ? System().Sync(fd, path) : status;
  }
  absl::Status Close(int fd, const std::string& path) override {
    const absl::Status status = before_("close", path);
    const absl::Status closed = System().Close(fd, path);
    return status.ok() ? closed : status;
  }
  absl::Status MakeDirectory(const std::string& path) override {
    const absl::Status status = before_("make_directory", path);
    return status.ok() ? System().MakeDirectory(path) : status;
  }
  absl::Status SyncDirectory(const std::string& path) override {
    const absl::Status status = before_("sync_directory", path);
    return status.ok() ? System().SyncDirectory(path) : status;
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    const absl::Status status = before_("rename", from);
    return status.ok() ? System().Rename(from, to) : status;
  }
  absl::Status Exchange(const std::string& a, const std::string& b) override {
    const absl::Status status = before_("exchange", a);
    return status.ok() ? System().Exchange(a, b) : status;
  }
  absl::Status RemoveFile(const std::string& path) override {
    const absl::Status status = before_("remove_file", path);
    return status.ok() ? System().RemoveFile(path) : status;
  }
  absl::Status RemoveDirectory(const std::string& path) override {
    const absl::Status status = before_("remove_directory", path);
    return status.ok() ? System().RemoveDirectory(path) : status;
  }

 private:
  const Hook before_;
};

enum class Survival {
  kAll,     // After the death of the process: all calls took effect.
  kSynced,  // Only synced data.
  kRandom,  // Synced data, and a random part of the rest.
};

// FileCalls on a machine that stops at a chosen call, and the contents of its
// disk afterwards.
//
//   PowerLossCalls calls("/tmp/live", /*last=*/7);
//   ...  // the tested code writes below /tmp/live; calls from 7 on fail
//   calls.WriteDisk(Survival::kSynced, seed, "/tmp/after");
//
// Calls are also executed in the real directory, so that it can be read in the
// meantime. The disk model: the contents of a file survive once the file is
// synced, the entries of a directory once the directory is synced; anything
// else may or may not survive, independently (POSIX guarantees no more).
class PowerLossCalls : public FileCalls {
 public:
  // Precondition: `root` exists and its contents are on the disk. Calls from
  // number `last` (counted from 1) on fail.
  PowerLossCalls(std::string root, int64_t last);

  // The number of calls, including failed ones.
  int64_t calls() const;

  // Creates the directory `to` with the disk's contents of `root`.
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
  // Returns the entries of the directory of `path`, and the last name.
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

#endif  // TESSERA_ZERO3_CHECKPOINT_TESTING_FILES_H_
