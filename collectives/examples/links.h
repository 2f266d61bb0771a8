// Links: a TCP connection over loopback to every other rank, for every lane.
//
// Part of the example of a custom engine (engine.cc): shows how ranks find each
// other through a job's Store.
#ifndef TESSERA_COLLECTIVES_EXAMPLES_LINKS_H_
#define TESSERA_COLLECTIVES_EXAMPLES_LINKS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/transport.h"

namespace tessera::collectives::example {

// A file descriptor that closes itself.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

class Links {
 public:
  // Connects `members` (ranks of the job including this one), in this order.
  // `name` is unique in the job. DeadlineExceeded or Unavailable naming the
  // missing ranks.
  static absl::StatusOr<Links> Connect(Store& store,
                                       const std::vector<Rank>& members,
                                       std::string_view name,
                                       absl::Time deadline);

  Rank rank() const { return rank_; }
  int64_t size() const { return size_; }
  // Non-blocking; -1 for this rank itself.
  int fd(Rank peer, Lane lane) const { return at(peer, lane).fd(); }

 private:
  struct Meeting;

  Links(Rank rank, int64_t size)
      : rank_(rank),
        size_(size),
        sockets_(static_cast<size_t>(size * kLaneCount)) {}

  const Socket& at(Rank peer, Lane lane) const {
    return sockets_[static_cast<size_t>(peer.value() * kLaneCount +
                                        static_cast<int64_t>(lane))];
  }
  absl::Status ConnectTo(const Meeting& meeting, Rank peer, Lane lane);
  absl::Status Accept(const Meeting& meeting);

  Rank rank_;
  int64_t size_;
  std::vector<Socket> sockets_;
};

}  // namespace tessera::collectives::example

#endif  // TESSERA_COLLECTIVES_EXAMPLES_LINKS_H_
