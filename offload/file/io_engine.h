// IoEngine: reads and writes of file ranges that go on by themselves.
//
//   TESSERA_ASSIGN_OR_RETURN(auto engine, CreateIoEngine(IoEngineKind::kAuto,
//                                                        /*queue_depth=*/16));
//   engine->Submit({.kind = IoRequest::Kind::kRead, .fd = fd, .offset = 0,
//                   .data = buffer, .bytes = 4096,
//                   .done = [](int64_t result) { ... }});
//
// The raw operation: it may move fewer bytes than asked. async_file.h completes
// it and turns errors into statuses.
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
  // A write that is on stable storage when it is done (O_DSYNC).
  bool sync = false;
  // Bytes moved (0 at the end of the file), or -errno; -ENOMEM also where the
  // kernel has refused it for five seconds for want of memory. On a thread of
  // the engine; quick, never waiting for other requests.
  std::function<void(int64_t result)> done;
};

// Safe for concurrent use. Every request ends: `done` is called once, whatever
// happens. The destructor waits for all; `done` may submit more until then.
class IoEngine {
 public:
  virtual ~IoEngine() = default;

  virtual std::string_view name() const = 0;  // "io_uring", "threads"

  // Never waits for the device; requests beyond the queue depth wait in order.
  virtual void Submit(IoRequest request) = 0;
};

enum class IoEngineKind {
  kAuto,     // io_uring, or threads where that is not to be had
  kIoUring,  // or an error
  kThreads,
};

// `queue_depth` requests, 1 to 4096, are with the device at once. Unimplemented
// where io_uring is not built in, Unavailable (with the kernel's words) where
// the kernel refuses it.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoEngine(IoEngineKind kind,
                                                         int queue_depth);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_IO_ENGINE_H_
