// Seat: what a job knows of one of its ranks, for messages.
//
//   DescribeSeat({Rank(3), SeatState::kLost, "host a, pid 12"});
//   // "rank 3 (host a, pid 12) is lost"
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_SEAT_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_SEAT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "topology/rank.h"

namespace tessera::collectives {

using topology::Rank;

// The values travel: they are stable.
enum class SeatState : uint8_t {
  kNeverCame = 0,
  kPresent = 1,
  kLeft = 2,  // It closed its store.
  kLost = 3,  // Its connection broke, most likely with its process.
};

struct Seat {
  Rank rank;
  SeatState state = SeatState::kNeverCame;
  std::string where = {};  // "host a, pid 12"; empty where not known.

  bool IsGone() const {
    return state == SeatState::kLeft || state == SeatState::kLost;
  }
  friend bool operator==(const Seat&, const Seat&) = default;
};

// "rank 3 (host a, pid 12) is lost", "rank 2 never joined the job",
// "rank 1 (host a, pid 9) has not come", "rank 4 (host a, pid 7) has left".
std::string DescribeSeat(const Seat& seat);

// "host a, pid 12".
std::string DescribePlace(const std::string& host, int64_t pid);

// The ranks that somebody waits for in vain.
struct Absence {
  static constexpr size_t kMaxNamed = 16;
  int64_t count = 0;
  std::vector<Seat> named;  // kMaxNamed of them, those that are gone first.

  // Whether one of them can never come.
  bool AnyGone() const { return !named.empty() && named.front().IsGone(); }
  friend bool operator==(const Absence&, const Absence&) = default;
};

// "rank 3 (host a, pid 12) is lost and rank 5 never joined the job", "..., ...
// and 12 more ranks". Only those that are gone where there are any.
std::string DescribeAbsence(const Absence& absence);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_SEAT_H_
