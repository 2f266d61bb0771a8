#include "offload/file/uring_engine.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tessera::offload {
namespace {

// A request's length is 32 bits wide there; async_file.h asks for the rest.
constexpr size_t kLongest = size_t{1} << 30;

void Prepare(io_uring_sqe* entry, const IoRequest& request) {
  const auto bytes = static_cast<unsigned>(std::min(request.bytes, kLongest));
  const auto offset = static_cast<uint64_t>(request.offset);
  if (request.kind == IoRequest::Kind::kRead) {
    io_uring_prep_read(entry, request.fd, request.data, bytes, offset);
  } else {
    io_uring_prep_write(entry, request.fd, request.data, bytes, offset);
    if (request.sync) entry->rw_flags = RWF_DSYNC;
  }
}

class UringEngine final : public IoEngine {
 public:
  explicit UringEngine(size_t depth) : depth_(depth) {}
  ~UringEngine() override;

  absl::Status Start();
  std::string_view name() const override { return "io_uring"; }
  void Submit(IoRequest request) override;

 private:
  using Request = std::unique_ptr<IoRequest>;

  // Moves what waits into the ring, as far as the depth allows.
  void Fill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enter(size_t entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Finished() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ && in_flight_ == 0 && waiting_.empty();
  }
  void Reap();

  const size_t depth_;
  absl::Mutex mutex_;
  io_uring ring_;  // entries are added under mutex_, taken by the reaper
  std::deque<Request> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reaper_;
};

absl::Status UringEngine::Start() {
  // One more, for the entry that wakes the reaper at the end.
  const int error =
      io_uring_queue_init(static_cast<unsigned>(depth_ + 1), &ring_, 0);
  if (error < 0) {
    return absl::UnavailableError(
        absl::StrCat("the kernel refuses io_uring of depth ", depth_, " (",
                     absl::ErrnoToStatus(-error, "io_uring_setup").message(),
                     "); IoEngineKind::kThreads needs none"));
  }
  reaper_ = std::thread([this] { Reap(); });
  return absl::OkStatus();
}

UringEngine::~UringEngine() {
  if (!reaper_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    io_uring_sqe* wake = io_uring_get_sqe(&ring_);
    io_uring_prep_nop(wake);
    io_uring_sqe_set_data(wake, nullptr);
    Enter(1);
  }
  reaper_.join();
  io_uring_queue_exit(&ring_);
}

void UringEngine::Submit(IoRequest request) {
  auto owned = std::make_unique<IoRequest>(std::move(request));
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(std::move(owned));
  Fill();
}

void UringEngine::Fill() {
  size_t added = 0;
  while (!waiting_.empty() && in_flight_ < depth_) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    Prepare(entry, *waiting_.front());
    io_uring_sqe_set_data(entry, waiting_.front().release());
    waiting_.pop_front();
    ++in_flight_;
    ++added;
  }
  if (added > 0) Enter(added);
}

// The kernel is short of memory for a moment, or interrupted, at worst:
// entries that are wrong come back as completions.
void UringEngine::Enter(size_t entries) {
  while (entries > 0) {
    const int taken = io_uring_submit(&ring_);
    if (taken > 0) {
      entries -= std::min(entries, static_cast<size_t>(taken));
    } else {
      absl::SleepFor(absl::Microseconds(50));
    }
  }
}

void UringEngine::Reap() {
  while (true) {
    io_uring_cqe* completion = nullptr;
    if (io_uring_wait_cqe(&ring_, &completion) < 0) continue;  // EINTR
    const Request request(
        static_cast<IoRequest*>(io_uring_cqe_get_data(completion)));
    const int64_t result = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    if (request != nullptr) {
      // Next in line first: the device works while `done` does.
      absl::ReleasableMutexLock lock(&mutex_);
      // This thread stays counted until `done` has returned.
      if (!waiting_.empty()) {
        --in_flight_;
        Fill();
        ++in_flight_;
      }
      lock.Release();
      request->done(result);
    }
    absl::MutexLock lock(&mutex_);
    if (request != nullptr) --in_flight_;
    Fill();
    if (Finished()) return;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> CreateUringEngine(int queue_depth) {
  auto engine = std::make_unique<UringEngine>(static_cast<size_t>(queue_depth));
  absl::Status started = engine->Start();
  if (!started.ok()) return started;
  return engine;
}

}  // namespace tessera::offload
