// FileCalls that go wrong, for tests.
#ifndef TESSERA_ZERO3_CHECKPOINT_FAULT_CALLS_H_
#define TESSERA_ZERO3_CHECKPOINT_FAULT_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::zero3::testing {

// Asks `before` before every call, with the name of the call and its path; an
// error that it gives is the call's, which is not made.
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

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_CHECKPOINT_FAULT_CALLS_H_
