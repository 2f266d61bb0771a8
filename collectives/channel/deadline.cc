#include "collectives/channel/deadline.h"

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "absl/status/status.h"
#include "absl/time/clock.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t NowNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int64_t NanosAfter(absl::Duration duration) {
  const int64_t now = NowNanos();
  const int64_t nanos = absl::ToInt64Nanoseconds(duration);  // Saturates.
  return nanos > kNever - now ? kNever : now + std::max<int64_t>(nanos, 0);
}

}  // namespace

Deadline::Deadline(absl::Time at) : nanos_(NanosAfter(at - absl::Now())) {}

Deadline Deadline::After(absl::Duration duration) {
  return Deadline(NanosAfter(duration));
}

absl::Duration Deadline::Left() const {
  if (nanos_ == kNever) return absl::InfiniteDuration();
  return absl::Nanoseconds(std::max<int64_t>(nanos_ - NowNanos(), 0));
}

int Deadline::PollMillis() const {
  const absl::Duration left = std::min(Left(), absl::Hours(1));
  return static_cast<int>(
      absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
}

absl::StatusOr<bool> WaitReady(int fd, int16_t events,
                               const Deadline& deadline) {
  while (true) {
    pollfd one = {fd, events, 0};
    const int ready = poll(&one, 1, deadline.PollMillis());
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, "cannot wait for a descriptor");
    }
    if (deadline.Expired()) return false;
  }
}

}  // namespace tessera::collectives
