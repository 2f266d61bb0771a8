#include "tools/train/report/tier_log.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "collectives/engine/operation_context.h"

namespace tessera::train {

namespace {

int64_t ProcessorNanos() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The second number of schedstat: nanoseconds ready without a processor.
int64_t KeptOffNanos(int fd) {
  std::array<char, 128> text = {};
  if (fd < 0 || pread(fd, text.data(), text.size() - 1, 0) <= 0) return 0;
  long long on = 0;
  long long off = 0;
  return std::sscanf(text.data(), "%lld %lld", &on, &off) == 2 ? off : 0;
}

}  // namespace

TierLog::TierLog()
    : thread_(std::this_thread::get_id()),
      schedstat_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)),
      last_(Now()) {}

TierLog::Moment TierLog::Now() const {
  return {collectives::MonotonicNanos(), ProcessorNanos(),
          KeptOffNanos(schedstat_.get())};
}

void TierLog::Called(int64_t begin_ns) {
  if (std::this_thread::get_id() != thread_) return;
  Stamp();
  calls_.push_back({begin_ns, last_.ns});
}

uint64_t TierLog::Began(int64_t begin_ns) {
  const std::lock_guard lock(mutex_);
  under_way_[next_] = begin_ns;
  return next_++;
}

void TierLog::Ended(uint64_t operation) {
  const std::lock_guard lock(mutex_);
  const auto found = under_way_.find(operation);
  if (found == under_way_.end()) return;
  in_flight_.push_back({found->second, collectives::MonotonicNanos()});
  under_way_.erase(found);
}

void TierLog::Stamp() {
  const Moment now = Now();
  const int64_t slept = (now.ns - last_.ns) -
                        (now.on_processor_ns - last_.on_processor_ns) -
                        (now.kept_off_ns - last_.kept_off_ns);
  segments_.push_back({{last_.ns, now.ns}, std::max<int64_t>(slept, 0)});
  last_ = now;
}

TierTime TierLog::Take() {
  const std::lock_guard lock(mutex_);
  const int64_t now = collectives::MonotonicNanos();
  for (const auto& [operation, begin] : under_way_) {
    in_flight_.push_back({begin, now});
  }
  return {std::exchange(calls_, {}), std::exchange(in_flight_, {}),
          std::exchange(segments_, {})};
}

using collectives::MonotonicNanos;
using offload::BlockInfo;
using offload::BlockView;
using offload::Operation;

Operation TimedTier::Logged(int64_t begin_ns, Operation operation) {
  const uint64_t number = log_->Began(begin_ns);
  operation.OnDone(
      [log = log_, number](const absl::Status&) { log->Ended(number); });
  log_->Called(begin_ns);
  return operation;
}

Operation TimedTier::StartPut(std::string_view key,
                              std::span<const std::byte> bytes,
                              BlockInfo info) {
  const int64_t begin = MonotonicNanos();
  return Logged(begin, inner_->StartPut(key, bytes, info));
}

Operation TimedTier::StartPrefetch(std::string_view key) {
  const int64_t begin = MonotonicNanos();
  return Logged(begin, inner_->StartPrefetch(key));
}

Operation TimedTier::StartRead(std::string_view key,
                               std::optional<int64_t> offset,
                               std::span<std::byte> out) {
  const int64_t begin = MonotonicNanos();
  return Logged(begin, offset ? inner_->StartGetRange(key, *offset, out)
                              : inner_->StartGet(key, out));
}

absl::Status TimedTier::Drop(std::string_view key) {
  const int64_t begin = MonotonicNanos();
  absl::Status status = inner_->Drop(key);
  log_->Called(begin);
  return status;
}

absl::StatusOr<BlockView> TimedTier::Map(std::string_view key) {
  const int64_t begin = MonotonicNanos();
  absl::StatusOr<BlockView> view = inner_->Map(key);
  log_->Called(begin);
  return view;
}

absl::StatusOr<BlockView> TimedTier::MapNew(std::string_view key, int64_t bytes,
                                            BlockInfo info) {
  const int64_t begin = MonotonicNanos();
  absl::StatusOr<BlockView> view = inner_->MapNew(key, bytes, info);
  log_->Called(begin);
  return view;
}

}  // namespace tessera::train
