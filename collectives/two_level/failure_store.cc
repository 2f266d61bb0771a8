#include "collectives/two_level/failure_store.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "collectives/engine/library_engine.h"

namespace tessera::collectives {
namespace {

// A host notices the end of a process after 20 ms, and the store answers within
// a few milliseconds.
constexpr absl::Duration kPatience = absl::Milliseconds(300);
constexpr size_t kMaxReasonBytes = 2000;
constexpr char kCause[] = "cause";
constexpr char kNetwork[] = "network";
constexpr char kHeard[] = "heard/";  // And a rank that knows the reason.

}  // namespace

std::shared_ptr<FailureStore> FailureStore::Subgroup(
    std::span<const Rank> members, uint32_t group) const {
  std::vector<Rank> ranks;
  for (const Rank member : members) {
    ranks.push_back(members_[static_cast<size_t>(member.value())]);
  }
  return std::make_shared<FailureStore>(store_, SubgroupId(id_, members, group),
                                        std::move(ranks));
}

FailureStore::~FailureStore() {
  if (failed_at_.load() == 0 || store_.rank() != Rank(0)) return;
  constexpr int64_t kSecond = 1'000'000'000;
  static_cast<void>(store_.AwaitAll(KeyOf(kHeard), members_,
                                    TimeOfDeadline(failed_at_ + kSecond)));
}

std::string FailureStore::KeyOf(std::string_view kind) const {
  return absl::StrCat(id_, "/", kind);
}

// Another rank may have been first, and the store may be gone.
void FailureStore::Report(std::string_view kind, const absl::Status& reason) {
  int64_t never = 0;
  failed_at_.compare_exchange_strong(never, MonotonicNanos());
  const absl::Time deadline = absl::Now() + kPatience;
  static_cast<void>(
      store_.SetFor(0, KeyOf(kind),
                    absl::StrCat(static_cast<int>(reason.code()), " ",
                                 reason.message().substr(0, kMaxReasonBytes)),
                    deadline));
}

absl::Status FailureStore::Find(std::string_view kind,
                                absl::Duration patience) {
  const absl::StatusOr<std::string> text =
      store_.Get(KeyOf(kind), absl::Now() + patience);
  if (!text.ok()) return absl::OkStatus();
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(*text, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code)) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
}

void FailureStore::Abort(const absl::Status& reason) {
  if (!explained_.load()) Report(kCause, reason);
  static_cast<void>(
      store_.SetFor(0, absl::StrCat(KeyOf(kHeard), store_.rank().value()), "",
                    absl::Now() + kPatience));
}

absl::Status FailureStore::Explain(const absl::Status& error) {
  explained_ = true;
  const bool is_cause =
      !absl::IsUnavailable(error) && !absl::IsDeadlineExceeded(error);
  Report(is_cause ? kCause : kNetwork, error);
  const absl::Status cause =
      Find(kCause, is_cause ? absl::ZeroDuration() : kPatience);
  if (!cause.ok()) return cause;
  const absl::Status first = Find(kNetwork, absl::ZeroDuration());
  return first.ok() ? error : first;
}

}  // namespace tessera::collectives
