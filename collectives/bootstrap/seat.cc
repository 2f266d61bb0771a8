#include "collectives/bootstrap/seat.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::collectives {
namespace {

std::string_view DescribeState(SeatState state) {
  switch (state) {
    case SeatState::kNeverCame:
      return " never joined the job";
    case SeatState::kPresent:
      return " has not come";
    case SeatState::kLeft:
      return " has left the job";
    case SeatState::kLost:
      break;
  }
  return " is lost: its connection broke, most likely because it died";
}

}  // namespace

std::string DescribePlace(const std::string& host, int64_t pid) {
  return absl::StrCat("host ", host, ", pid ", pid);
}

std::string DescribeSeat(const Seat& seat) {
  return absl::StrCat("rank ", seat.rank.value(),
                      seat.where.empty() ? "" : " (", seat.where,
                      seat.where.empty() ? "" : ")", DescribeState(seat.state));
}

std::string DescribeAbsence(const Absence& absence) {
  std::vector<std::string> texts;
  for (const Seat& seat : absence.named) {
    if (seat.IsGone() || !absence.AnyGone()) {
      texts.push_back(DescribeSeat(seat));
    }
  }
  const int64_t more =
      absence.AnyGone()
          ? 0
          : absence.count - static_cast<int64_t>(absence.named.size());
  if (more > 0) {
    texts.push_back(
        absl::StrCat(more, more == 1 ? " more rank" : " more ranks"));
  }
  if (texts.empty()) return "nobody";
  const std::string last = texts.back();
  texts.pop_back();
  if (texts.empty()) return last;
  return absl::StrCat(absl::StrJoin(texts, ", "), " and ", last);
}

}  // namespace tessera::collectives
