#include "collectives/bootstrap/store.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/little_endian.h"
#include "base/status_macros.h"
#include "collectives/channel/message.h"

namespace tessera::collectives {

namespace {

std::string_view DescribeState(MemberState state) {
  switch (state) {
    case MemberState::kNeverJoined:
      return " never joined the job";
    case MemberState::kPresent:
      return " has not joined";
    case MemberState::kLeft:
      return " has left the job";
    case MemberState::kLost:
      break;
  }
  return " is lost: its connection broke, most likely because it died";
}

}  // namespace

std::string DescribePlace(const std::string& host, int64_t pid) {
  return absl::StrCat("host ", host, ", pid ", pid);
}

std::string DescribeMember(const JobMember& member) {
  return absl::StrCat("rank ", member.rank.value(),
                      member.where.empty() ? "" : " (", member.where,
                      member.where.empty() ? "" : ")",
                      DescribeState(member.state));
}

std::string DescribeMissing(const MissingMembers& absence) {
  std::vector<std::string> texts;
  for (const JobMember& member : absence.named) {
    if (member.IsGone() || !absence.AnyGone()) {
      texts.push_back(DescribeMember(member));
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
  if (texts.empty()) return "no rank";
  const std::string last = texts.back();
  texts.pop_back();
  if (texts.empty()) return last;
  return absl::StrCat(absl::StrJoin(texts, ", "), " and ", last);
}

namespace {

constexpr size_t kMaxNameBytes = 200;
constexpr size_t kPieceBytes = kMaxStoreValueBytes - sizeof(uint32_t);
constexpr absl::Duration kGrace = absl::Milliseconds(200);

// One rank's part in an all-gather. The first member is the root. Each member
// sets PREFIX/RANK; the root waits for all, sets the result or the error in
// pieces, PREFIX/all/PIECE, and erases the keys that it has read.
class Gather {
 public:
  Gather(Store& store, std::span<const Rank> members, std::string_view name,
         absl::Time deadline)
      : store_(store),
        members_(members),
        name_(name),
        prefix_(absl::StrCat("tessera/gather/", name, "/")),
        deadline_(deadline) {}

  absl::Status Check(std::string_view mine) const;
  absl::StatusOr<std::vector<std::string>> Run(std::string_view mine);

 private:
  Rank root() const { return members_.front(); }
  std::string PieceKey(size_t piece) const {
    return absl::StrCat(prefix_, "all/", piece);
  }
  absl::Status Fail(absl::StatusCode code, std::string_view text) const {
    return absl::Status(code,
                        absl::StrCat("all-gather \"", name_, "\" on rank ",
                                     store_.rank().value(), ": ", text));
  }
  absl::Status Missing(const MissingMembers& absence) const;
  // The deadline of requests that wait for rank 0 only.
  absl::Time Shortly() const {
    return std::max(deadline_, absl::Now() + kGrace);
  }

  absl::StatusOr<std::vector<std::string>> Collect();
  absl::Status Publish(const absl::StatusOr<std::vector<std::string>>& values);
  absl::StatusOr<std::string> ReadPublished(absl::Time deadline);
  absl::StatusOr<std::string> AwaitPublished();
  absl::StatusOr<std::vector<std::string>> RunAsRoot();

  Store& store_;
  std::span<const Rank> members_;
  std::string_view name_;
  std::string prefix_;
  absl::Time deadline_;
};

// The result: a status code, then an error message or one text per member.
std::string Pack(const absl::StatusOr<std::vector<std::string>>& values) {
  std::string text;
  AppendLittleEndian(static_cast<uint8_t>(values.status().code()), &text);
  if (!values.ok()) {
    text.append(values.status().message());
    return text;
  }
  for (const std::string& value : *values) PutText(value, &text);
  return text;
}

absl::StatusOr<std::vector<std::string>> Unpack(std::string_view text,
                                                size_t members) {
  uint8_t code = 0;
  if (!TakeLittleEndian(&text, &code)) {
    return absl::InternalError("the result is empty");
  }
  if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), text);
  std::vector<std::string> values(members);
  for (std::string& value : values) {
    if (!TakeText(&text, kMaxStoreValueBytes, &value)) {
      return absl::InternalError("the result has too few texts");
    }
  }
  return values;
}

absl::Status Gather::Check(std::string_view mine) const {
  if (name_.empty() || name_.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name of an all-gather has ", name_.size(),
                     " bytes; use 1 to ", kMaxNameBytes));
  }
  if (mine.size() > kMaxStoreValueBytes) {
    return Fail(absl::StatusCode::kInvalidArgument,
                absl::StrCat("the text has ", mine.size(),
                             " bytes; use at most ", kMaxStoreValueBytes));
  }
  absl::flat_hash_set<Rank> seen;
  for (const Rank member : members_) {
    const bool in_job = member >= Rank(0) && member.value() < store_.size();
    if (!in_job || !seen.insert(member).second) {
      return Fail(
          absl::StatusCode::kInvalidArgument,
          absl::StrCat("member ", member.value(),
                       in_job ? " is listed twice"
                              : absl::StrCat(" is out of range; the job has ",
                                             store_.size(), " ranks")));
    }
  }
  if (seen.contains(store_.rank())) return absl::OkStatus();
  return Fail(absl::StatusCode::kInvalidArgument,
              "this rank is not among the members");
}

absl::Status Gather::Missing(const MissingMembers& absence) const {
  return Fail(absence.AnyGone() ? absl::StatusCode::kUnavailable
                                : absl::StatusCode::kDeadlineExceeded,
              absl::StrCat(absence.AnyGone() ? "cannot complete: "
                                             : "the deadline passed: ",
                           DescribeMissing(absence)));
}

absl::StatusOr<std::vector<std::string>> Gather::Collect() {
  TESSERA_ASSIGN_OR_RETURN(const MissingMembers absence,
                           store_.AwaitAll(prefix_, members_, deadline_));
  if (absence.count > 0) return Missing(absence);
  std::vector<std::string> values;
  for (const Rank member : members_) {
    // All keys are set, so this waits for rank 0 only.
    TESSERA_ASSIGN_OR_RETURN(
        values.emplace_back(),
        store_.GetFrom(member, absl::StrCat(prefix_, member.value()),
                       Shortly()));
  }
  return values;
}

// The first piece, which holds the number of pieces, is set last. Every other
// member reads it once, also if it is an error, so rank 0 does not leave before
// all have read it.
absl::Status Gather::Publish(
    const absl::StatusOr<std::vector<std::string>>& values) {
  const std::string text = Pack(values);
  const size_t pieces =
      std::max<size_t>((text.size() + kPieceBytes - 1) / kPieceBytes, 1);
  const auto others = static_cast<int64_t>(members_.size() - 1);
  for (size_t piece = pieces; piece-- > 0;) {
    std::string value;
    if (piece == 0) AppendLittleEndian(static_cast<uint32_t>(pieces), &value);
    value.append(text, piece * kPieceBytes, kPieceBytes);
    TESSERA_RETURN_IF_ERROR(
        store_.SetFor(others, PieceKey(piece), value, Shortly()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Gather::RunAsRoot() {
  absl::StatusOr<std::vector<std::string>> values = Collect();
  if (absl::Status status = Publish(values); !status.ok()) {
    // Publish the error to the others if possible.
    if (values.ok()) Publish(status).IgnoreError();
    values = values.ok() ? status : values.status();
  }
  store_.Erase(prefix_, members_, Shortly()).IgnoreError();
  return values;
}

absl::StatusOr<std::string> Gather::ReadPublished(absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(const std::string first,
                           store_.GetFrom(root(), PieceKey(0), deadline));
  std::string_view rest = first;
  uint32_t pieces = 0;
  if (!TakeLittleEndian(&rest, &pieces)) {
    return absl::InternalError("the result is empty");
  }
  std::string text(rest);
  for (uint32_t piece = 1; piece < pieces; ++piece) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::string more,
        store_.GetFrom(root(), PieceKey(piece),
                       std::max(deadline, absl::Now() + kGrace)));
    text.append(more);
  }
  return text;
}

absl::StatusOr<std::string> Gather::AwaitPublished() {
  absl::StatusOr<std::string> text = ReadPublished(deadline_);
  if (text.status().code() != absl::StatusCode::kDeadlineExceeded) {
    if (text.ok()) return text;
    return Fail(text.status().code(), text.status().message());
  }
  const absl::StatusOr<MissingMembers> absence =
      store_.AwaitAll(prefix_, members_, absl::InfinitePast());
  // The root may have published an error in the meantime.
  text = ReadPublished(absl::InfinitePast());
  if (text.ok()) return text;
  if (!absence.ok()) {
    return Fail(absence.status().code(), absence.status().message());
  }
  if (absence->count > 0) return Missing(*absence);
  return Fail(absl::StatusCode::kDeadlineExceeded,
              absl::StrCat("the deadline passed: all members called, but rank ",
                           root().value(), " has not published the result"));
}

absl::StatusOr<std::vector<std::string>> Gather::Run(std::string_view mine) {
  if (members_.size() == 1) return std::vector<std::string>{std::string(mine)};
  TESSERA_RETURN_IF_ERROR(
      store_.SetFor(0, absl::StrCat(prefix_, store_.rank().value()), mine,
                    Shortly()),
      Fail(_.code(), _.message()));
  if (store_.rank() == root()) return RunAsRoot();
  TESSERA_ASSIGN_OR_RETURN(const std::string text, AwaitPublished());
  return Unpack(text, members_.size());
}

}  // namespace

absl::StatusOr<std::vector<std::string>> AllGather(
    Store& store, std::span<const Rank> members, std::string_view name,
    std::string_view mine, absl::Time deadline) {
  Gather gather(store, members, name, deadline);
  TESSERA_RETURN_IF_ERROR(gather.Check(mine));
  return gather.Run(mine);
}

absl::StatusOr<std::vector<std::string>> AllGather(Store& store,
                                                   std::string_view name,
                                                   std::string_view mine,
                                                   absl::Time deadline) {
  std::vector<Rank> everybody(static_cast<size_t>(store.size()));
  for (size_t i = 0; i < everybody.size(); ++i) {
    everybody[i] = Rank(static_cast<int64_t>(i));
  }
  return AllGather(store, everybody, name, mine, deadline);
}

absl::Status Barrier(Store& store, std::string_view name, absl::Time deadline) {
  return AllGather(store, absl::StrCat("barrier/", name), "", deadline)
      .status();
}

}  // namespace tessera::collectives
