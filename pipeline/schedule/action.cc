#include "pipeline/schedule/action.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";

constexpr std::array<std::string_view, kActionKinds.size()> kNames = {
    "F",      "B",      "I",       "W",       "SEND_F",      "RECV_F",
    "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD",
};

absl::Status NotAnAction(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text.substr(0, 64), "\" is no action of a schedule: ", why,
      "; such as 0F0, 1I3, 0SEND_F0 or 3UNSHARD"));
}

bool IsDigit(char c) { return absl::ascii_isdigit(c); }

// At most kMostIndex; nothing else is in the text.
bool ParseIndex(std::string_view digits, int32_t* index) {
  constexpr size_t kMostDigits = 8;
  return !digits.empty() && digits.size() <= kMostDigits &&
         std::all_of(digits.begin(), digits.end(), IsDigit) &&
         absl::SimpleAtoi(digits, index) && *index <= kMostIndex;
}

bool IsOverlap(const Action& first, const Action& second) {
  return first.kind == ActionKind::kForward && GivesInputGradient(second.kind);
}

bool IsExchange(const Action& first, const Action& second) {
  return (Sends(first.kind) && Receives(second.kind)) ||
         (Receives(first.kind) && Sends(second.kind));
}

absl::StatusOr<std::vector<Action>> ParsePair(std::string_view text) {
  std::string_view inner = text;
  const bool overlap = absl::ConsumeSuffix(&inner, kOverlap);
  if (!absl::ConsumePrefix(&inner, "(") || !absl::ConsumeSuffix(&inner, ")")) {
    return NotAnAction(text,
                       "a pair is (0F8;7B4)OVERLAP_F_B or (1SEND_F3;1RECV_B0)");
  }
  const std::vector<std::string_view> parts = absl::StrSplit(inner, ';');
  if (parts.size() != 2) return NotAnAction(text, "a pair has two actions");
  std::vector<Action> pair;
  for (std::string_view part : parts) {
    TESSERA_ASSIGN_OR_RETURN(pair.emplace_back(), ParseAction(part));
  }
  if (overlap && !IsOverlap(pair[0], pair[1])) {
    return NotAnAction(text, "a pair is a forward and a backward");
  }
  if (!overlap && !IsExchange(pair[0], pair[1])) {
    return NotAnAction(text,
                       "a pair without OVERLAP_F_B is a send and a receive");
  }
  pair[0].with_next = true;
  return pair;
}

}  // namespace

std::string_view ActionKindName(ActionKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "?";
}

std::string Action::ToString() const {
  return microbatch == kNoMicroBatch
             ? absl::StrCat(stage, ActionKindName(kind))
             : absl::StrCat(stage, ActionKindName(kind), microbatch);
}

std::ostream& operator<<(std::ostream& os, const Action& action) {
  return os << action.ToString();
}

absl::StatusOr<Action> ParseAction(std::string_view text) {
  const auto kind_at = std::find_if_not(text.begin(), text.end(), IsDigit);
  const auto number_at = std::find_if(kind_at, text.end(), IsDigit);
  const auto size_to = [&](auto at) {
    return static_cast<size_t>(at - text.begin());
  };
  const std::string_view stage = text.substr(0, size_to(kind_at));
  const std::string_view kind =
      text.substr(size_to(kind_at), static_cast<size_t>(number_at - kind_at));
  const std::string_view microbatch = text.substr(size_to(number_at));

  Action action;
  if (!ParseIndex(stage, &action.stage)) {
    return NotAnAction(text, "it begins with the number of a stage");
  }
  const auto name = std::find(kNames.begin(), kNames.end(), kind);
  if (name == kNames.end()) return NotAnAction(text, "there is no such kind");
  action.kind = kActionKinds[static_cast<size_t>(name - kNames.begin())];
  if (!HasMicroBatch(action.kind)) {
    if (microbatch.empty()) return action;
    return NotAnAction(text, "this kind has no micro-batch");
  }
  if (!ParseIndex(microbatch, &action.microbatch)) {
    return NotAnAction(text, "it ends with the number of a micro-batch");
  }
  return action;
}

absl::StatusOr<std::vector<Action>> ParseCell(std::string_view text) {
  const std::string_view cell = absl::StripAsciiWhitespace(text);
  if (cell.empty()) return std::vector<Action>();
  if (cell.front() == '(') return ParsePair(cell);
  TESSERA_ASSIGN_OR_RETURN(const Action action, ParseAction(cell));
  return std::vector<Action>{action};
}

}  // namespace tessera::pipeline
