// Deadline: a time on the monotonic clock, so that changes of the wall clock do
// not affect it. WaitReady: waits for a descriptor until a deadline.
//
//   const Deadline deadline(absl::Now() + absl::Seconds(5));
//   TESSERA_ASSIGN_OR_RETURN(const bool ready,
//                            WaitReady(fd, POLLIN, deadline));
#ifndef TESSERA_COLLECTIVES_CHANNEL_DEADLINE_H_
#define TESSERA_COLLECTIVES_CHANNEL_DEADLINE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::collectives {

class Deadline {
 public:
  explicit Deadline(absl::Time at);
  static Deadline After(absl::Duration duration);

  bool Expired() const { return Left() <= absl::ZeroDuration(); }
  // Never negative.
  absl::Duration Left() const;
  // The timeout for poll(2): rounded up, so that 0 means expired; at most an
  // hour.
  int PollMillis() const;

  friend bool operator<(const Deadline& a, const Deadline& b) {
    return a.nanos_ < b.nanos_;
  }

 private:
  explicit Deadline(int64_t nanos) : nanos_(nanos) {}
  int64_t nanos_;
};

// Waits until `fd` has one of `events` (POLLIN, POLLOUT) or an error. Returns
// false at the deadline. Signals do not interrupt it.
absl::StatusOr<bool> WaitReady(int fd, int16_t events,
                               const Deadline& deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_DEADLINE_H_
