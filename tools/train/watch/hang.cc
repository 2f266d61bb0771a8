#include "tools/train/watch/hang.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"

namespace tessera::train {
namespace {

constexpr absl::Duration kFloor = absl::Minutes(1);
constexpr int64_t kSteps = 10;
constexpr int64_t kPauseNs = 5'000'000'000;

// The place of a group on another rank.
const GroupPlace* FindGroup(const LivePlace& place, uint32_t id) {
  const auto found =
      std::find_if(place.groups.begin(), place.groups.end(),
                   [&](const GroupPlace& group) { return group.id == id; });
  return found == place.groups.end() ? nullptr : &*found;
}

// The ranks that have not begun the group's collective of this rank.
std::vector<int64_t> RanksBehind(const GroupPlace& group,
                                 std::span<const LivePlace> places) {
  std::vector<int64_t> behind;
  for (const LivePlace& other : places) {
    const GroupPlace* const theirs = FindGroup(other, group.id);
    if (theirs != nullptr && theirs->begun < group.begun) {
      behind.push_back(other.rank);
    }
  }
  return behind;
}

// The other rank of the group's last message.
std::vector<int64_t> PeerOf(const GroupPlace& group,
                            std::span<const LivePlace> places) {
  for (const LivePlace& other : places) {
    const GroupPlace* const theirs = FindGroup(other, group.id);
    if (theirs != nullptr && theirs->rank == group.peer) return {other.rank};
  }
  return {};
}

std::string SecondsText(int64_t ns) {
  return absl::StrFormat("%.1f s", static_cast<double>(ns) * 1e-9);
}

std::string RanksText(std::span<const int64_t> ranks) {
  constexpr size_t kMost = 8;
  const auto some = ranks.first(std::min(ranks.size(), kMost));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(some, ", "),
                      ranks.size() > kMost ? ", ..." : "");
}

// True if another rank has begun a collective that this one has not.
bool IsBehind(const LivePlace& place, std::span<const LivePlace> places,
              bool only_waiting) {
  return std::any_of(places.begin(), places.end(), [&](const LivePlace& other) {
    return std::any_of(other.groups.begin(), other.groups.end(),
                       [&](const GroupPlace& theirs) {
                         const GroupPlace* const own =
                             FindGroup(place, theirs.id);
                         return own != nullptr && own->begun < theirs.begun &&
                                (theirs.runs() || !only_waiting);
                       });
  });
}

// True if the rank is in a collective that all others have left. Ranks of other
// hosts, whose places are unknown, may still be in it.
bool IsLeftBehind(const LivePlace& place, std::span<const LivePlace> places) {
  return std::any_of(
      place.groups.begin(), place.groups.end(), [&](const GroupPlace& own) {
        const int64_t left = std::count_if(
            places.begin(), places.end(), [&](const LivePlace& other) {
              const GroupPlace* const theirs = FindGroup(other, own.id);
              return theirs != nullptr && other.rank != place.rank &&
                     theirs->ended >= own.begun;
            });
        return own.runs() && own.ranks > 1 && left == own.ranks - 1;
      });
}

bool MerelyWaits(const LivePlace& place, std::span<const LivePlace> places) {
  if (place.action == RankAction::kJoin) return true;
  const std::optional<RankWait> wait = WaitOf(place, places);
  // Checkpoints are written by another thread, for which the rank waits.
  if (place.action == RankAction::kCheckpoint && wait && !wait->ranks.empty()) {
    return true;
  }
  if (place.waiting_ns == 0) {
    // The host of a device waits for its work without a mark.
    return place.on_device && places.size() > 1 &&
           !IsBehind(place, places, /*only_waiting=*/false);
  }
  return !(IsLeftBehind(place, places) &&
           IsBehind(place, places, /*only_waiting=*/true));
}

bool UsesFiles(RankAction action) {
  return action == RankAction::kLoadData || action == RankAction::kRestore ||
         action == RankAction::kCheckpoint ||
         action == RankAction::kCreateModel;
}

int64_t Counter(const std::string& path, std::string_view key) {
  const std::string text = ReadFile(path, 4096).value_or("");
  for (const std::string_view line : absl::StrSplit(text, '\n')) {
    int64_t value = 0;
    if (line.substr(0, key.size()) == key &&
        absl::SimpleAtoi(line.substr(key.size()), &value)) {
      return value;
    }
  }
  return 0;
}

// The bytes that the process has written and the rank's thread has read.
int64_t FileBytes(const LivePlace& place) {
  const std::string process = absl::StrCat("/proc/", place.pid);
  return Counter(process + "/io", "wchar: ") +
         Counter(absl::StrCat(process, "/task/", place.thread, "/io"),
                 "rchar: ");
}

}  // namespace

std::optional<RankWait> WaitOf(const LivePlace& place,
                               std::span<const LivePlace> places) {
  std::optional<RankWait> found;
  for (const GroupPlace& group : place.groups) {
    if (!group.runs()) continue;
    std::vector<int64_t> behind = RanksBehind(group, places);
    // The operation that others miss, and of these the oldest.
    if (found && (behind.empty() || (!found->ranks.empty() &&
                                     found->since_ns <= group.begin_ns))) {
      continue;
    }
    found = {
        std::move(behind),
        absl::StrCat(collectives::OpKindName(group.kind), " #", group.begun,
                     " of ", group.name, ", ", group.bytes, " bytes"),
        group.begin_ns};
  }
  if (place.waiting_ns == 0 || (found && !found->ranks.empty())) return found;
  for (const GroupPlace& group : place.groups) {
    if (group.messages == 0 || group.peer < 0) continue;
    return RankWait{PeerOf(group, places),
                    absl::StrCat("a message ", group.receives ? "from " : "to ",
                                 "rank ", group.peer, " of ", group.name),
                    place.waiting_ns};
  }
  return found;
}

std::string DescribePlace(const LivePlace& place,
                          std::span<const LivePlace> places, int64_t now_ns) {
  std::string text = absl::StrCat("rank ", place.rank, ": ");
  if (place.pid == 0) return text + "has not begun";
  absl::StrAppend(&text, ActionName(place.action));
  if (place.step >= 0) absl::StrAppend(&text, ", step ", place.step + 1);
  if (place.microbatch >= 0) {
    absl::StrAppend(&text, ", micro-batch ", place.microbatch);
  }
  absl::StrAppend(&text, ", for ", SecondsText(now_ns - place.since_ns));
  if (!place.file.empty()) {
    absl::StrAppend(&text, ", at ",
                    place.file.substr(place.file.rfind('/') + 1), ":",
                    place.line);
  }
  const std::optional<RankWait> wait = WaitOf(place, places);
  if (wait) {
    absl::StrAppend(&text, "; in ", wait->operation, " for ",
                    SecondsText(now_ns - wait->since_ns));
    if (!wait->ranks.empty()) {
      absl::StrAppend(&text, ", which waits for ", RanksText(wait->ranks));
    }
    return text;
  }
  const auto last = std::max_element(
      place.groups.begin(), place.groups.end(),
      [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  if (last == place.groups.end() || last->begun == 0) return text;
  return absl::StrCat(text, "; last ", collectives::OpKindName(last->kind),
                      " #", last->begun, " of ", last->name);
}

std::string DescribePlaces(std::span<const LivePlace> places,
                           std::span<const int64_t> hung, int64_t now_ns) {
  std::vector<std::string> first, rest;
  for (const LivePlace& place : places) {
    const bool is_hung =
        std::find(hung.begin(), hung.end(), place.rank) != hung.end();
    std::vector<std::string>& lines = is_hung ? first : rest;
    lines.push_back("  " + DescribePlace(place, places, now_ns));
    if (!is_hung) continue;
    for (const std::string& frame : place.stack) {
      lines.push_back("    " + frame);
    }
  }
  first.insert(first.end(), rest.begin(), rest.end());
  return absl::StrJoin(first, "\n");
}

std::string HungText(std::span<const LivePlace> places,
                     std::span<const int64_t> hung,
                     const HangDetector& detector) {
  absl::Duration limit;
  for (const LivePlace& place : places) {
    if (place.rank == hung.front()) limit = detector.LimitOf(place);
  }
  return absl::StrCat(
      RanksText(hung), hung.size() == 1 ? " hangs" : " hang",
      ": no progress for ",
      absl::FormatDuration(absl::Trunc(limit, absl::Seconds(1))),
      " (--hang_timeout)");
}

absl::Duration HangDetector::LimitOf(const LivePlace& place) const {
  if (timeout_) return *timeout_;
  if (place.longest_step_ns == 0) return absl::InfiniteDuration();
  return std::max(kFloor, kSteps * absl::Nanoseconds(place.longest_step_ns));
}

bool HangDetector::IsStalled(const LivePlace& place, int64_t now_ns) {
  if (place.pid == 0 || place.thread == 0) return false;
  int64_t moved = std::max(place.moved_ns, paused_ns_);
  if (UsesFiles(place.action)) {
    FileTraffic& traffic = traffic_[place.rank];
    const int64_t bytes = FileBytes(place);
    if (bytes != traffic.bytes) traffic = {bytes, now_ns};
    moved = std::max(moved, traffic.moved_ns);
  }
  return absl::Nanoseconds(now_ns - moved) > LimitOf(place);
}

std::vector<int64_t> HangDetector::Find(std::span<const LivePlace> places,
                                        int64_t now_ns) {
  if (now_ns - called_ns_ > kPauseNs) paused_ns_ = now_ns;
  called_ns_ = now_ns;
  std::vector<int64_t> hung;
  for (const LivePlace& place : places) {
    if (IsStalled(place, now_ns) && !MerelyWaits(place, places)) {
      hung.push_back(place.rank);
    }
  }
  return hung;
}

}  // namespace tessera::train
