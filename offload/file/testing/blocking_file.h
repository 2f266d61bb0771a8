// Blocking reads and writes of an AsyncFile, for tests.
#ifndef TESSERA_OFFLOAD_FILE_TESTING_BLOCKING_FILE_H_
#define TESSERA_OFFLOAD_FILE_TESTING_BLOCKING_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "offload/file/async_file.h"

namespace tessera::offload {

// Calls `start` with a callback, waits for it, and returns its argument.
template <typename Result>
Result AwaitDone(auto start) {
  absl::Notification over;
  Result result = absl::UnknownError("");
  start([&](Result r) {
    result = std::move(r);
    over.Notify();
  });
  over.WaitForNotification();
  return result;
}

inline absl::Status ReadNow(AsyncFile& file, int64_t offset,
                            std::span<std::byte> out) {
  return AwaitDone<absl::Status>(
      [&](auto done) { file.Read(offset, out, std::move(done)); });
}

inline absl::Status WriteNow(AsyncFile& file, int64_t offset,
                             std::span<const std::byte> bytes) {
  return AwaitDone<absl::Status>(
      [&](auto done) { file.Write(offset, bytes, std::move(done)); });
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_TESTING_BLOCKING_FILE_H_
