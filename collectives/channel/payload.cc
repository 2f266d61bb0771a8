#include "collectives/channel/payload.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/channel/byte_codec.h"

namespace tessera::collectives::bootstrap {
namespace {

constexpr size_t kMaxPlaceBytes = 512;

bool TakeSeat(std::string_view* value, Seat* seat) {
  uint32_t rank = 0;
  uint8_t state = 0;
  if (!TakeInt(value, &rank) || !TakeInt(value, &state) ||
      state > static_cast<uint8_t>(SeatState::kLost)) {
    return false;
  }
  seat->rank = Rank(rank);
  seat->state = static_cast<SeatState>(state);
  return TakeText(value, kMaxPlaceBytes, &seat->where);
}

}  // namespace

std::string FormatHello(const HelloBody& hello) {
  std::string value;
  PutInt(hello.world_size, &value);
  PutInt(hello.pid, &value);
  return value;
}

absl::StatusOr<HelloBody> ParseHello(std::string_view value) {
  HelloBody hello;
  if (TakeInt(&value, &hello.world_size) && TakeInt(&value, &hello.pid) &&
      value.empty() && hello.world_size >= 1 && hello.pid >= 0) {
    return hello;
  }
  return absl::InvalidArgumentError(
      "a greeting needs a world size from 1 and a pid from 0");
}

std::string FormatRanks(std::span<const Rank> ranks) {
  std::string value;
  for (const Rank rank : ranks) {
    PutInt(static_cast<uint32_t>(rank.value()), &value);
  }
  return value;
}

absl::StatusOr<std::vector<Rank>> ParseRanks(std::string_view value) {
  if (value.size() % sizeof(uint32_t) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a list of ranks has ", value.size(), " bytes, no multiple of 4"));
  }
  std::vector<Rank> ranks;
  ranks.reserve(value.size() / sizeof(uint32_t));
  for (uint32_t rank = 0; TakeInt(&value, &rank);) ranks.emplace_back(rank);
  return ranks;
}

std::string FormatAbsence(const Absence& absence) {
  std::string value;
  PutInt(absence.count, &value);
  for (const Seat& seat : absence.named) {
    PutInt(static_cast<uint32_t>(seat.rank.value()), &value);
    PutInt(static_cast<uint8_t>(seat.state), &value);
    PutText(std::string_view(seat.where).substr(0, kMaxPlaceBytes), &value);
  }
  return value;
}

absl::StatusOr<Absence> ParseAbsence(std::string_view value) {
  const auto wrong = [] {
    return absl::InvalidArgumentError("this is no list of absent ranks");
  };
  Absence absence;
  if (!TakeInt(&value, &absence.count)) return wrong();
  while (!value.empty()) {
    Seat seat;
    if (absence.named.size() == Absence::kMaxNamed ||
        !TakeSeat(&value, &seat)) {
      return wrong();
    }
    absence.named.push_back(std::move(seat));
  }
  if (absence.count < static_cast<int64_t>(absence.named.size())) {
    return wrong();
  }
  return absence;
}

}  // namespace tessera::collectives::bootstrap
