#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tools/offload_bench/raw_mover.h"

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

}  // namespace

std::unique_ptr<RawMover> MakeThreadMover(int depth) {
  return std::make_unique<ThreadMover>(depth);
}

}  // namespace tessera::offload_bench
