// RawFile: reads and writes a file in order with a fixed number of requests in
// flight: the throughput of the device under a directory, as a limit for a file
// tier. RawMover issues the requests and shares no code with offload's engines.
//
// clang-format off
//   TESSERA_ASSIGN_OR_RETURN(auto raw,
//                            RawFile::Create({.directory = "/scratch",
//                                             .bytes = 64 << 20,
//                                             .piece_bytes = 1 << 20,
//                                             .depth = 32}));
//   TESSERA_RETURN_IF_ERROR(raw->Write());
// clang-format on
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_RAW_FILE_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_RAW_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "offload/file/async_file.h"

namespace tessera::offload_bench {

// A transfer from the beginning of the file; the last piece may be shorter.
struct RawTransfer {
  int fd = -1;
  bool write = false;
  std::byte* data = nullptr;  // Not modified by a write.
  int64_t bytes = 0;
  int64_t piece_bytes = 0;  // Bytes of one request.
};

// One caller at a time.
class RawMover {
 public:
  virtual ~RawMover() = default;

  virtual std::string_view name() const = 0;  // "io_uring", "threads"

  // Returns when no request is in flight. Errors name the offset; a short
  // transfer is an error (Unavailable).
  virtual absl::Status Move(const RawTransfer& transfer) = 0;
};

// A ring of `depth` requests, fed by the calling thread. Unimplemented if
// built without liburing, Unavailable if the kernel refuses.
absl::StatusOr<std::unique_ptr<RawMover>> MakeRingMover(int depth);

// pread and pwrite by `depth` threads, at most 32.
std::unique_ptr<RawMover> MakeThreadMover(int depth);

// The status of a request of `bytes` bytes at `offset`: OK if all were moved.
// `result` is the number of bytes or -errno.
absl::Status CheckRawResult(const RawTransfer& transfer, int64_t offset,
                            int64_t bytes, int64_t result);

struct RawFileOptions {
  std::string directory;
  int64_t bytes = 0;        // A multiple of 4096, like piece_bytes.
  int64_t piece_bytes = 0;  // Of one request.
  int depth = 1;            // Requests in flight.
  bool uring = true;        // False, or without io_uring: threads.
};

// The file has no name, so it disappears with the process, however it ends.
class RawFile {
 public:
  // Allocates and writes the file, so that later passes measure only the
  // device.
  static absl::StatusOr<std::unique_ptr<RawFile>> Create(
      const RawFileOptions& options);

  // Move the whole file in order, in pieces.
  absl::Status Write() { return Move(true); }
  absl::Status Read() { return Move(false); }

  // True with O_DIRECT; otherwise the reason, and the page cache is measured.
  bool direct() const { return file_.direct; }
  const std::string& why_not_direct() const { return file_.why_not_direct; }
  std::string_view engine() const { return mover_->name(); }

 private:
  RawFile(const RawFileOptions& options, offload::OpenedFile file,
          Buffer memory, std::unique_ptr<RawMover> mover)
      : options_(options),
        file_(std::move(file)),
        memory_(std::move(memory)),
        mover_(std::move(mover)) {}

  absl::Status Move(bool write);

  const RawFileOptions options_;
  const offload::OpenedFile file_;
  Buffer memory_;
  const std::unique_ptr<RawMover> mover_;
};

// ResourceExhausted, with the free space, if the file system of `directory` has
// less than `bytes` free. The system's error if the directory cannot be read.
absl::Status CheckFreeSpace(const std::string& directory, int64_t bytes);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_RAW_FILE_H_
