#include "offload/file/io_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "offload/file/uring_engine.h"

namespace tessera::offload {
namespace {

int64_t Perform(const IoRequest& request) {
  const ssize_t moved =
      request.kind == IoRequest::Kind::kRead
          ? pread(request.fd, request.data, request.bytes, request.offset)
          : pwrite(request.fd, request.data, request.bytes, request.offset);
  return moved < 0 ? -errno : moved;
}

// Threads that call pread and pwrite.
class ThreadEngine final : public IoEngine {
 public:
  explicit ThreadEngine(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  }

  ~ThreadEngine() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }

  void Submit(IoRequest request) override {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(std::move(request));
  }

 private:
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !waiting_.empty() || stopping_;
  }

  // While the engine stops, its own thread executes requests that `done`
  // submits.
  void Work() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      mutex_.Await(absl::Condition(this, &ThreadEngine::Ready));
      if (waiting_.empty()) return;
      const IoRequest request = std::move(waiting_.front());
      waiting_.pop_front();
      mutex_.Unlock();
      request.done(Perform(request));
      mutex_.Lock();
    }
  }

  absl::Mutex mutex_;
  std::deque<IoRequest> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoEngine(IoEngineKind kind,
                                                         int queue_depth) {
  if (queue_depth < 1 || queue_depth > 4096) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a queue depth of ", queue_depth, "; give 1 to 4096, such as 16"));
  }
  if (kind != IoEngineKind::kThreads) {
    absl::StatusOr<std::unique_ptr<IoEngine>> uring =
        CreateUringEngine(queue_depth);
    if (uring.ok() || kind == IoEngineKind::kIoUring) return uring;
  }
  constexpr int kMostThreads = 32;
  return std::make_unique<ThreadEngine>(std::min(queue_depth, kMostThreads));
}

}  // namespace tessera::offload
