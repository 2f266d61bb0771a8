// Deadline: a moment of the monotonic clock, and waiting for a descriptor until
// then. A step of the wall clock after it was made does not move it.
//
//   const Deadline deadline(absl::Now() + absl::Seconds(5));
//   TESSERA_ASSIGN_OR_RETURN(const bool ready,
//                            WaitReady(fd, POLLIN, deadline));
#ifndef TESSERA_COLLECTIVES_CHANNEL_DEADLINE_H_
#define TESSERA_COLLECTIVES_CHANNEL_DEADLINE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::collectives::bootstrap {

class Deadline {
 public:
  explicit Deadline(absl::Time at);
  static Deadline After(absl::Duration duration);

  bool Expired() const { return Left() <= absl::ZeroDuration(); }
  // Never negative.
  absl::Duration Left() const;
  // For poll(2): rounded up, so that 0 means expired; an hour at the most.
  int PollMillis() const;
  // The same moment as the wall clock stands now.
  absl::Time AsTime() const;

  friend bool operator<(const Deadline& a, const Deadline& b) {
    return a.nanos_ < b.nanos_;
  }

 private:
  explicit Deadline(int64_t nanos) : nanos_(nanos) {}
  int64_t nanos_;
};

// Waits until `fd` has one of `events` (POLLIN, POLLOUT) or an error to read.
// False where the deadline comes first. Signals do not end it.
absl::StatusOr<bool> WaitReady(int fd, int16_t events,
                               const Deadline& deadline);

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_DEADLINE_H_
