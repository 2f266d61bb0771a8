// The values of messages that have parts: greetings, lists of ranks, and who is
// absent.
#ifndef TESSERA_COLLECTIVES_CHANNEL_PAYLOAD_H_
#define TESSERA_COLLECTIVES_CHANNEL_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/bootstrap/seat.h"
#include "topology/rank.h"

namespace tessera::collectives::bootstrap {

// What each side says of itself in kHello and kWelcome, next to its host.
struct HelloBody {
  int64_t world_size = 0;
  int64_t pid = 0;

  friend bool operator==(const HelloBody&, const HelloBody&) = default;
};
std::string FormatHello(const HelloBody& hello);
// InvalidArgument where it is none, the size is below 1 or the pid negative.
absl::StatusOr<HelloBody> ParseHello(std::string_view value);

// A list of at most kMaxListedRanks ranks below 2^32.
inline constexpr size_t kMaxListedRanks = size_t{1} << 18;
std::string FormatRanks(std::span<const topology::Rank> ranks);
// InvalidArgument where the value is no whole number of ranks.
absl::StatusOr<std::vector<topology::Rank>> ParseRanks(std::string_view value);

// Who is absent. InvalidArgument where the value is none: a count below the
// ranks that are named, more named than there may be, an unknown state.
std::string FormatAbsence(const Absence& absence);
absl::StatusOr<Absence> ParseAbsence(std::string_view value);

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_PAYLOAD_H_
