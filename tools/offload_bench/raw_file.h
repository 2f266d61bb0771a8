// RawFile: what the device under a directory gives, as a limit for a file tier.
//
//   TESSERA_ASSIGN_OR_RETURN(auto raw, RawFile::Create({.directory =
//   "/scratch",
//                                                       .bytes = 64 << 20,
//                                                       .piece_bytes = 1 << 20,
//                                                       .depth = 32}));
//   TESSERA_RETURN_IF_ERROR(raw->Write());
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_RAW_FILE_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_RAW_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "offload/file/async_file.h"
#include "tools/offload_bench/raw_mover.h"

namespace tessera::offload_bench {

struct RawFileOptions {
  std::string directory;
  int64_t bytes = 0;        // A multiple of 4096, as is a piece.
  int64_t piece_bytes = 0;  // Of one request.
  int depth = 1;            // Requests in flight.
  bool uring = true;        // Else threads; also where there is no io_uring.
};

// A file without a name: it is gone when the process is, however it ends.
class RawFile {
 public:
  // Allocates and writes the file, so that later passes are of the device
  // alone.
  static absl::StatusOr<std::unique_ptr<RawFile>> Create(
      const RawFileOptions& options);

  // The whole file in order, in pieces.
  absl::Status Write() { return Move(true); }
  absl::Status Read() { return Move(false); }

  // Whether O_DIRECT is in use; if not, why: the numbers are then of the page
  // cache.
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

// ResourceExhausted where the file system of `directory` has less than `bytes`
// free: the message says how much it has. NotFound and the like where there is
// no such directory.
absl::Status CheckFreeSpace(const std::string& directory, int64_t bytes);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_RAW_FILE_H_
