// RawMover: a range of a file, read or written in order with a fixed number of
// requests in flight, and nothing else: what a device gives.
//
// It shares no code with offload's engines, which are held against it.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_RAW_MOVER_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_RAW_MOVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::offload_bench {

// From the beginning of the file; the last piece may be shorter.
struct RawTransfer {
  int fd = -1;
  bool write = false;
  std::byte* data = nullptr;  // A write only reads it.
  int64_t bytes = 0;
  int64_t piece_bytes = 0;  // Of one request.
};

// For one caller at a time.
class RawMover {
 public:
  virtual ~RawMover() = default;

  virtual std::string_view name() const = 0;  // "io_uring", "threads"

  // All of it; no request is in flight when it returns. Errors name the offset;
  // a request that moved only a part is one (Unavailable).
  virtual absl::Status Move(const RawTransfer& transfer) = 0;
};

// A ring of `depth` requests, fed by the calling thread. Unimplemented where
// liburing is not built in, Unavailable where the kernel refuses.
absl::StatusOr<std::unique_ptr<RawMover>> MakeRingMover(int depth);

// pread and pwrite by `depth` threads, at most 32.
std::unique_ptr<RawMover> MakeThreadMover(int depth);

// What a request of `bytes` bytes at `offset` has come to: OK for all of it,
// else the error. `result` is bytes or -errno.
absl::Status CheckRawResult(const RawTransfer& transfer, int64_t offset,
                            int64_t bytes, int64_t result);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_RAW_MOVER_H_
