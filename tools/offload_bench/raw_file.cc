#include "tools/offload_bench/raw_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/byte_size.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/offload_bench/blocks.h"

namespace tessera::offload_bench {
namespace {

constexpr int kMostThreads = 32;

int64_t MovePiece(const RawTransfer& transfer, int64_t at, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  const ssize_t moved = transfer.write
                            ? pwrite(transfer.fd, transfer.data + at, size, at)
                            : pread(transfer.fd, transfer.data + at, size, at);
  return moved < 0 ? -errno : moved;
}

class ThreadMover final : public RawMover {
 public:
  explicit ThreadMover(int depth)
      : threads_(std::clamp(depth, 1, kMostThreads)) {}

  std::string_view name() const override { return "threads"; }

  absl::Status Move(const RawTransfer& transfer) override {
    std::atomic<int64_t> next = 0;
    absl::Mutex mutex;
    absl::Status first;
    const auto work = [&] {
      for (int64_t at = next.fetch_add(transfer.piece_bytes);
           at < transfer.bytes; at = next.fetch_add(transfer.piece_bytes)) {
        const int64_t bytes =
            std::min(transfer.piece_bytes, transfer.bytes - at);
        const absl::Status status =
            CheckRawResult(transfer, at, bytes, MovePiece(transfer, at, bytes));
        if (status.ok()) continue;
        absl::MutexLock lock(&mutex);
        first.Update(status);
        return;
      }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < threads_; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    return first;
  }

 private:
  const int threads_;
};

constexpr uint64_t kSeed = 4;

absl::StatusOr<std::unique_ptr<RawMover>> MakeMover(
    const RawFileOptions& options) {
  if (options.uring) {
    auto ring = MakeRingMover(options.depth);
    if (ring.ok()) return ring;
  }
  return MakeThreadMover(options.depth);
}

}  // namespace

absl::Status CheckRawResult(const RawTransfer& transfer, int64_t offset,
                            int64_t bytes, int64_t result) {
  if (result == bytes) return absl::OkStatus();
  const std::string where =
      absl::StrCat("raw ", transfer.write ? "write" : "read", " of ", bytes,
                   " bytes at offset ", offset);
  if (result < 0) return absl::ErrnoToStatus(static_cast<int>(-result), where);
  return absl::UnavailableError(
      absl::StrCat(where, " moved only ", result, " bytes"));
}

std::unique_ptr<RawMover> MakeThreadMover(int depth) {
  return std::make_unique<ThreadMover>(depth);
}

absl::StatusOr<std::unique_ptr<RawFile>> RawFile::Create(
    const RawFileOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(offload::OpenedFile file,
                           offload::OpenScratchFile(options.directory, true));
  // Not supported by every file system; the writes then allocate.
  if (const int error = posix_fallocate(file.fd.get(), 0, options.bytes);
      error != 0 && error != EOPNOTSUPP && error != EINVAL) {
    return absl::ErrnoToStatus(
        error, absl::StrCat("space for ", options.bytes, " bytes in ",
                            QuotedPath(options.directory)));
  }
  TESSERA_ASSIGN_OR_RETURN(Buffer memory, RandomBytes(options.bytes, kSeed));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<RawMover> mover, MakeMover(options));
  auto raw = absl::WrapUnique(new RawFile(options, std::move(file),
                                          std::move(memory), std::move(mover)));
  TESSERA_RETURN_IF_ERROR(raw->Write());
  return raw;
}

absl::Status RawFile::Move(bool write) {
  return Annotate(mover_->Move({.fd = file_.fd.get(),
                                .write = write,
                                .data = memory_.data(),
                                .bytes = options_.bytes,
                                .piece_bytes = options_.piece_bytes}),
                  file_.path);
}

absl::Status CheckFreeSpace(const std::string& directory, int64_t bytes) {
  struct statvfs info = {};
  if (statvfs(directory.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, QuotedPath(directory));
  }
  const double free =
      static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  if (free >= static_cast<double>(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      QuotedPath(directory), " has ",
      ByteSize(static_cast<int64_t>(free) / 4096 * 4096).ToString(),
      " free and ", ByteSize(bytes).ToString(),
      " are needed; free space, give another --dir or a smaller --size"));
}

}  // namespace tessera::offload_bench
