// IoEngine: asynchronous reads and writes of file ranges.
//
//   TESSERA_ASSIGN_OR_RETURN(auto engine, CreateIoEngine(IoEngineKind::kAuto,
//                                                        /*queue_depth=*/16));
//   engine->Submit({.kind = IoRequest::Kind::kRead, .fd = fd, .offset = 0,
//                   .data = buffer, .bytes = 4096,
//                   .done = [](int64_t result) { ... }});
//
// A request may transfer fewer bytes than requested. AsyncFile continues such
// requests and converts errors to statuses.
#ifndef TESSERA_OFFLOAD_FILE_IO_ENGINE_H_
#define TESSERA_OFFLOAD_FILE_IO_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::offload {

struct IoRequest {
  enum class Kind { kRead, kWrite };

  Kind kind = Kind::kRead;
  int fd = -1;
  int64_t offset = 0;
  std::byte* data = nullptr;  // a write only reads it
  size_t bytes = 0;
  // Receives the bytes transferred (0 at the end of the file) or -errno;
  // -ENOMEM also if the kernel has been short of memory for five seconds.
  // Called on an engine thread; must be quick and must not wait for other
  // requests.
  std::function<void(int64_t result)> done;
};

// Safe for concurrent use. `done` is always called exactly once. The destructor
// waits for all requests, including those that `done` submits meanwhile.
class IoEngine {
 public:
  virtual ~IoEngine() = default;

  virtual std::string_view name() const = 0;  // "io_uring", "threads"

  // Never blocks; requests beyond the queue depth wait in order.
  virtual void Submit(IoRequest request) = 0;
};

enum class IoEngineKind {
  kAuto,     // io_uring if available, else threads
  kIoUring,  // io_uring or an error
  kThreads,
};

// At most `queue_depth` (1 to 4096) requests are in flight. Unimplemented if
// io_uring is not built in, Unavailable (with the kernel's message) if the
// kernel does not allow it.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoEngine(IoEngineKind kind,
                                                         int queue_depth);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_IO_ENGINE_H_
