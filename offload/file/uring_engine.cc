#include "offload/file/uring_engine.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "base/steady_now.h"

namespace tessera::offload {
namespace {

// The kernel's lengths have 32 bits; AsyncFile requests the remainder.
constexpr size_t kLongest = size_t{1} << 30;
constexpr int kRetryMilliseconds = 1;

void Prepare(io_uring_sqe* entry, const IoRequest& request) {
  const auto bytes = static_cast<unsigned>(std::min(request.bytes, kLongest));
  const auto offset = static_cast<uint64_t>(request.offset);
  if (request.kind == IoRequest::Kind::kRead) {
    io_uring_prep_read(entry, request.fd, request.data, bytes, offset);
  } else {
    io_uring_prep_write(entry, request.fd, request.data, bytes, offset);
  }
}

// Submitters add entries under mutex_. Only the reaper takes completions; it
// also retries rejected submissions, and runs every `done`.
class UringEngine final : public IoEngine {
 public:
  UringEngine(size_t depth, UringOptions options)
      : depth_(depth), options_(std::move(options)) {
    if (options_.submit == nullptr) options_.submit = io_uring_submit;
  }
  ~UringEngine() override;

  absl::Status Start();
  std::string_view name() const override { return "io_uring"; }
  void Submit(IoRequest request) override;

 private:
  using Request = std::unique_ptr<IoRequest>;
  struct Result {
    Request request;
    int64_t value;
  };

  // Moves waiting requests into the ring, up to the depth.
  void Fill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddEntries() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Submits the ring's entries until the kernel rejects them.
  void Enter() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refused(int error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails all requests that the kernel has not accepted, and those that wait.
  void Fail(int error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() const;

  void Reap();
  bool TakeCompletion();
  std::vector<Result> TakeFailed();
  void AwaitEvent();
  bool Finished();

  const size_t depth_;
  UringOptions options_;
  UniqueFd wake_;  // an eventfd, for events other than completions
  absl::Mutex mutex_;
  io_uring ring_;
  std::deque<Request> waiting_ ABSL_GUARDED_BY(mutex_);
  // In the ring, but not accepted by the kernel yet.
  std::deque<io_uring_sqe*> offered_ ABSL_GUARDED_BY(mutex_);
  std::vector<Result> failed_ ABSL_GUARDED_BY(mutex_);
  // Requests in the ring or with the kernel.
  size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Duration> refused_since_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reaper_;
};

absl::Status UringEngine::Start() {
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  const int error =
      io_uring_queue_init(static_cast<unsigned>(depth_), &ring_, 0);
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
  }
  Wake();
  reaper_.join();
  io_uring_queue_exit(&ring_);
}

void UringEngine::Wake() const {
  const uint64_t one = 1;
  // The pipe is full only if it has not been read yet, which wakes the reaper,
  // too.
  [[maybe_unused]] const ssize_t written =
      write(wake_.get(), &one, sizeof(one));
}

void UringEngine::Submit(IoRequest request) {
  auto owned = std::make_unique<IoRequest>(std::move(request));
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(std::move(owned));
  Fill();
  if (refused_since_.has_value() || !failed_.empty()) Wake();
}

// If the kernel rejects requests, the reaper resubmits them before it adds
// more.
void UringEngine::Fill() {
  while (!waiting_.empty() && in_flight_ < depth_ &&
         !refused_since_.has_value()) {
    AddEntries();
    Enter();
  }
}

void UringEngine::AddEntries() {
  while (!waiting_.empty() && in_flight_ < depth_) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return;  // full of failed requests
    Prepare(entry, *waiting_.front());
    io_uring_sqe_set_data(entry, waiting_.front().release());
    waiting_.pop_front();
    offered_.push_back(entry);
    ++in_flight_;
  }
}

void UringEngine::Enter() {
  while (!offered_.empty()) {
    const int taken = options_.submit(&ring_);
    if (taken > 0) {
      const size_t gone = std::min(offered_.size(), static_cast<size_t>(taken));
      offered_.erase(offered_.begin(),
                     offered_.begin() + static_cast<int64_t>(gone));
      refused_since_.reset();
    } else if (taken != -EINTR) {
      Refused(-taken);
      return;
    }
  }
}

void UringEngine::Refused(int error) {
  const absl::Duration now = SteadyNow();
  if (!refused_since_.has_value()) refused_since_ = now;
  // Short of memory or of completion entries.
  const bool may_pass = error == 0 || error == EAGAIN || error == EBUSY;
  if (!may_pass) {
    Fail(error);
  } else if (now - *refused_since_ >= options_.patience) {
    Fail(ENOMEM);
  }
}

// The entries stay in the ring without effect.
void UringEngine::Fail(int error) {
  for (io_uring_sqe* entry : offered_) {
    auto* request = reinterpret_cast<IoRequest*>(entry->user_data);
    if (request == nullptr) continue;  // failed before
    failed_.push_back({Request(request), -error});
    --in_flight_;
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data(entry, nullptr);
  }
  for (Request& request : waiting_) {
    failed_.push_back({std::move(request), -error});
  }
  waiting_.clear();
  refused_since_.reset();
}

// False if there is none.
bool UringEngine::TakeCompletion() {
  io_uring_cqe* completion = nullptr;
  if (io_uring_peek_cqe(&ring_, &completion) != 0) return false;
  const Request request(
      static_cast<IoRequest*>(io_uring_cqe_get_data(completion)));
  const int64_t result = completion->res;
  io_uring_cqe_seen(&ring_, completion);
  if (request == nullptr) return true;
  {
    // Submits waiting requests first, so that the device works while `done`
    // runs.
    absl::MutexLock lock(&mutex_);
    --in_flight_;
    Fill();
  }
  request->done(result);
  return true;
}

std::vector<UringEngine::Result> UringEngine::TakeFailed() {
  absl::MutexLock lock(&mutex_);
  if (refused_since_.has_value()) Enter();
  Fill();
  return std::exchange(failed_, {});
}

// Waits for a completion, a wake-up, or the time to retry.
void UringEngine::AwaitEvent() {
  int timeout = -1;
  bool is_busy = false;
  {
    absl::MutexLock lock(&mutex_);
    is_busy = in_flight_ > offered_.size();
    if (refused_since_.has_value()) timeout = kRetryMilliseconds;
  }
  if (is_busy) {
    // The kernel has requests, so a completion will arrive; waiting for it
    // directly is fastest.
    io_uring_cqe* completion = nullptr;
    io_uring_wait_cqe(&ring_, &completion);
    return;
  }
  pollfd events[] = {{ring_.ring_fd, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  if (poll(events, 2, timeout) > 0 && events[1].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got =
        read(wake_.get(), &count, sizeof(count));
  }
}

// Called only by the reaper, after every `done` has returned.
bool UringEngine::Finished() {
  absl::MutexLock lock(&mutex_);
  return stopping_ && in_flight_ == 0 && waiting_.empty() && failed_.empty();
}

void UringEngine::Reap() {
  while (true) {
    while (TakeCompletion()) {
    }
    for (const Result& failed : TakeFailed()) {
      failed.request->done(failed.value);
    }
    if (Finished()) return;
    AwaitEvent();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> CreateUringEngine(
    int queue_depth, UringOptions options) {
  auto engine = std::make_unique<UringEngine>(static_cast<size_t>(queue_depth),
                                              std::move(options));
  absl::Status started = engine->Start();
  if (!started.ok()) return started;
  return engine;
}

}  // namespace tessera::offload
