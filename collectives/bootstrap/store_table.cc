#include "collectives/bootstrap/store_table.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/little_endian.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/message.h"

namespace tessera::collectives {

namespace {

constexpr size_t kMaxPlaceBytes = 512;

bool TakeMember(std::string_view* value, JobMember* member) {
  uint32_t rank = 0;
  uint8_t state = 0;
  if (!TakeLittleEndian(value, &rank) || !TakeLittleEndian(value, &state) ||
      state > static_cast<uint8_t>(MemberState::kLost)) {
    return false;
  }
  member->rank = Rank(rank);
  member->state = static_cast<MemberState>(state);
  return TakeText(value, kMaxPlaceBytes, &member->where);
}

absl::Status GoneError(const JobMember& member, std::string_view key) {
  return absl::UnavailableError(absl::StrCat(
      DescribeMember(member), ", and it has not set ", ShowKey(key)));
}

void RunAll(std::vector<std::function<void()>>& calls) {
  for (auto& call : calls) call();
}

// Waits for the operation that `start` begins and returns its result; nullopt
// at the deadline, after cancelling it.
template <typename T, typename Start>
std::optional<T> WaitFor(StoreTable& table, absl::Time deadline, Start start) {
  const auto shot = std::make_shared<OneShot<T>>();
  const StoreTable::Ticket ticket =
      start([shot](T value) { shot->Put(std::move(value)); });
  std::optional<T> value = shot->Take(deadline);
  if (value || table.Cancel(ticket)) return value;
  // The callback is running now.
  return shot->Take(absl::InfiniteFuture());
}

}  // namespace

std::string ShowKey(std::string_view key) {
  return absl::StrCat("\"", absl::CHexEscape(key.substr(0, 80)), "\"",
                      key.size() > 80 ? "..." : "");
}

absl::Status CheckOwner(Rank rank, pid_t owner) {
  if (owner == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the store of rank ", rank.value(), " belongs to pid ",
                   owner, ", not to its child ", getpid(),
                   "; join the job after fork, not before"));
}

absl::Status CheckKey(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxStoreKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the key ", ShowKey(key), " has ", key.size(),
                   " bytes; use 1 to ", kMaxStoreKeyBytes));
}

absl::Status CheckEntry(int64_t reads, std::string_view key,
                        std::string_view value) {
  TESSERA_RETURN_IF_ERROR(CheckKey(key));
  if (value.size() > kMaxStoreValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the value of ", ShowKey(key), " has ", value.size(),
                     " bytes; use at most ", kMaxStoreValueBytes));
  }
  if (reads >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ShowKey(key), " is set for ", reads,
                   " reads; use a positive number, or 0 for unlimited"));
}

absl::Status CheckRankList(std::string_view prefix, std::span<const Rank> ranks,
                           int64_t size) {
  if (prefix.size() > kMaxStoreKeyBytes || ranks.size() > kMaxListedRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot wait for ", ranks.size(), " ranks under the prefix ",
        ShowKey(prefix), " of ", prefix.size(), " bytes; use at most ",
        kMaxListedRanks, " and ", kMaxStoreKeyBytes));
  }
  for (const Rank rank : ranks) {
    if (rank >= Rank(0) && rank.value() < size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.value(), " is out of range; the job has ",
                     size, " ranks"));
  }
  return absl::OkStatus();
}

std::string FormatHello(const HelloBody& hello) {
  std::string value;
  AppendLittleEndian(hello.world_size, &value);
  AppendLittleEndian(hello.pid, &value);
  return value;
}

absl::StatusOr<HelloBody> ParseHello(std::string_view value) {
  HelloBody hello;
  if (TakeLittleEndian(&value, &hello.world_size) &&
      TakeLittleEndian(&value, &hello.pid) && value.empty() &&
      hello.world_size >= 1 && hello.pid >= 0) {
    return hello;
  }
  return absl::InvalidArgumentError(
      "a greeting needs a world size from 1 and a pid from 0");
}

std::string FormatRanks(std::span<const Rank> ranks) {
  std::string value;
  for (const Rank rank : ranks) {
    AppendLittleEndian(static_cast<uint32_t>(rank.value()), &value);
  }
  return value;
}

absl::StatusOr<std::vector<Rank>> ParseRanks(std::string_view value) {
  if (value.size() % sizeof(uint32_t) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a list of ranks has ", value.size(),
                     " bytes, which is not a multiple of 4"));
  }
  std::vector<Rank> ranks;
  ranks.reserve(value.size() / sizeof(uint32_t));
  for (uint32_t rank = 0; TakeLittleEndian(&value, &rank);) {
    ranks.emplace_back(rank);
  }
  return ranks;
}

std::string FormatMissingMembers(const MissingMembers& absence) {
  std::string value;
  AppendLittleEndian(absence.count, &value);
  for (const JobMember& member : absence.named) {
    AppendLittleEndian(static_cast<uint32_t>(member.rank.value()), &value);
    AppendLittleEndian(static_cast<uint8_t>(member.state), &value);
    PutText(std::string_view(member.where).substr(0, kMaxPlaceBytes), &value);
  }
  return value;
}

absl::StatusOr<MissingMembers> ParseMissingMembers(std::string_view value) {
  const auto wrong = [] {
    return absl::InvalidArgumentError("malformed list of missing ranks");
  };
  MissingMembers absence;
  if (!TakeLittleEndian(&value, &absence.count)) return wrong();
  while (!value.empty()) {
    JobMember member;
    if (absence.named.size() == MissingMembers::kMaxNamed ||
        !TakeMember(&value, &member)) {
      return wrong();
    }
    absence.named.push_back(std::move(member));
  }
  if (absence.count < static_cast<int64_t>(absence.named.size())) {
    return wrong();
  }
  return absence;
}

StoreTable::StoreTable(int64_t size, TableLimits limits)
    : size_(size), limits_(limits) {
  absl::MutexLock lock(&mutex_);
  for (int64_t i = 0; i < size; ++i) members_.push_back({.rank = Rank(i)});
}

absl::Status StoreTable::CheckRoom(std::string_view key, int64_t bytes) const {
  const auto count = static_cast<int64_t>(entries_.size());
  if (count < limits_.entries && bytes <= limits_.bytes - bytes_) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for ", ShowKey(key), ": the job's store holds ",
                   count, " of ", limits_.entries, " entries and ", bytes_,
                   " of ", limits_.bytes, " bytes"));
}

absl::Status StoreTable::Set(int64_t reads, std::string_view key,
                             std::string_view value) {
  TESSERA_RETURN_IF_ERROR(CheckEntry(reads, key, value));
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto it = entries_.find(key); it != entries_.end()) {
      if (it->second.value == value) return absl::OkStatus();
      return absl::AlreadyExistsError(absl::StrCat(
          ShowKey(key), " is set to another value; a key is set once"));
    }
    const auto bytes = static_cast<int64_t>(key.size() + value.size());
    TESSERA_RETURN_IF_ERROR(CheckRoom(key, bytes));
    bytes_ += bytes;
    unread_ += reads > 0 ? 1 : 0;
    entries_.emplace(key, Entry{std::string(value), reads});
    ServeGetters(key, &calls);
    ServeWatches(key, &calls);
  }
  RunAll(calls);
  return absl::OkStatus();
}

absl::Status StoreTable::CheckWait() const {
  const auto waits = static_cast<int64_t>(getters_.size() + watches_.size());
  if (waits < limits_.waits) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the job's store has ", waits, " waits, which is its limit"));
}

absl::Status StoreTable::CheckGet(Rank owner, std::string_view key) const {
  TESSERA_RETURN_IF_ERROR(CheckWait());
  if (owner == Store::kAnyRank) return absl::OkStatus();
  if (owner < Rank(0) || owner.value() >= size_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", owner.value(), ", which should set ", ShowKey(key),
        ", is out of range; the job has ", size_, " ranks"));
  }
  const JobMember& member = members_[owner.value()];
  return member.IsGone() ? GoneError(member, key) : absl::OkStatus();
}

StoreTable::Ticket StoreTable::Get(Rank owner, std::string_view key,
                                   GetDone done) {
  absl::StatusOr<std::string> result = std::string();
  if (absl::Status status = CheckKey(key); !status.ok()) {
    result = std::move(status);
  } else {
    absl::MutexLock lock(&mutex_);
    if (entries_.contains(key)) {
      result = Read(key);
    } else if (status = CheckGet(owner, key); !status.ok()) {
      result = std::move(status);
    } else {
      const Ticket ticket = next_ticket_++;
      getters_.emplace(ticket,
                       Getter{owner, std::string(key), std::move(done)});
      getters_of_[key].push_back(ticket);
      return ticket;
    }
  }
  done(std::move(result));
  return 0;
}

std::string StoreTable::Read(std::string_view key) {
  const auto it = entries_.find(key);
  Entry& entry = it->second;
  if (entry.reads_left == 0 || --entry.reads_left > 0) return entry.value;
  std::string value = std::move(entry.value);
  bytes_ -= static_cast<int64_t>(key.size() + value.size());
  --unread_;
  entries_.erase(it);
  return value;
}

void StoreTable::Remove(std::string_view key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  bytes_ -= static_cast<int64_t>(key.size() + it->second.value.size());
  unread_ -= it->second.reads_left > 0 ? 1 : 0;
  entries_.erase(it);
}

void StoreTable::ServeGetters(std::string_view key, Calls* calls) {
  const auto it = getters_of_.find(key);
  if (it == getters_of_.end()) return;
  std::vector<Ticket> tickets = std::move(it->second);
  getters_of_.erase(it);
  for (size_t i = 0; i < tickets.size(); ++i) {
    if (!entries_.contains(key)) {  // All reads are used up.
      getters_of_[key].assign(tickets.begin() + static_cast<int64_t>(i),
                              tickets.end());
      return;
    }
    const auto getter = getters_.find(tickets[i]);
    calls->push_back([done = std::move(getter->second.done),
                      value = Read(key)]() mutable { done(std::move(value)); });
    getters_.erase(getter);
  }
}

void StoreTable::FailGetter(Ticket ticket, const absl::Status& status,
                            Calls* calls) {
  const auto getter = getters_.find(ticket);
  const auto it = getters_of_.find(getter->second.key);
  std::erase(it->second, ticket);
  if (it->second.empty()) getters_of_.erase(it);
  calls->push_back(
      [done = std::move(getter->second.done), status] { done(status); });
  getters_.erase(getter);
}

void StoreTable::ServeWatches(std::string_view key, Calls* calls) {
  std::vector<Ticket> complete;
  for (auto& [ticket, watch] : watches_) {
    std::string_view number = key;
    int64_t rank = 0;
    if (!watch.prefix.empty() && absl::ConsumePrefix(&number, watch.prefix) &&
        absl::SimpleAtoi(number, &rank) && absl::StrCat(rank) == number &&
        watch.missing.erase(rank) > 0 && watch.missing.empty()) {
      complete.push_back(ticket);
    }
  }
  for (const Ticket ticket : complete)
    EndWatch(ticket, MissingMembers(), calls);
}

void StoreTable::EndWatch(Ticket ticket, absl::StatusOr<MissingMembers> result,
                          Calls* calls) {
  const auto it = watches_.find(ticket);
  calls->push_back(
      [done = std::move(it->second.done),
       result = std::move(result)]() mutable { done(std::move(result)); });
  watches_.erase(it);
}

void StoreTable::Erase(std::string_view prefix, std::span<const Rank> ranks) {
  absl::MutexLock lock(&mutex_);
  for (const Rank rank : ranks) Remove(absl::StrCat(prefix, rank.value()));
}

bool StoreTable::IsThere(std::string_view prefix, Rank rank) const {
  if (prefix.empty())
    return members_[rank.value()].state == MemberState::kPresent;
  return entries_.contains(absl::StrCat(prefix, rank.value()));
}

MissingMembers StoreTable::Absent(std::string_view prefix,
                                  std::span<const Rank> ranks) const {
  MissingMembers absence;
  std::vector<JobMember> there;
  for (const Rank rank : ranks) {
    if (IsThere(prefix, rank)) continue;
    ++absence.count;
    const JobMember& member = members_[rank.value()];
    std::vector<JobMember>& list = member.IsGone() ? absence.named : there;
    if (list.size() < MissingMembers::kMaxNamed) list.push_back(member);
  }
  for (JobMember& member : there) {
    if (absence.named.size() == MissingMembers::kMaxNamed) break;
    absence.named.push_back(std::move(member));
  }
  return absence;
}

absl::StatusOr<MissingMembers> StoreTable::FindAbsent(
    std::string_view prefix, std::span<const Rank> ranks) {
  TESSERA_RETURN_IF_ERROR(CheckRankList(prefix, ranks, size_));
  absl::MutexLock lock(&mutex_);
  return Absent(prefix, ranks);
}

StoreTable::Ticket StoreTable::AwaitAll(std::string_view prefix,
                                        std::span<const Rank> ranks,
                                        AwaitDone done) {
  absl::StatusOr<MissingMembers> absent = FindAbsent(prefix, ranks);
  if (absent.ok() && absent->count > 0 && !absent->AnyGone()) {
    absl::MutexLock lock(&mutex_);
    // Register the wait.
    absent = Absent(prefix, ranks);
    if (absl::Status status = CheckWait(); !status.ok()) {
      absent = std::move(status);
    } else if (absent->count > 0 && !absent->AnyGone()) {
      const Ticket ticket = next_ticket_++;
      Watch& watch = watches_[ticket];
      watch = {std::string(prefix), {ranks.begin(), ranks.end()}, {}, done};
      for (const Rank rank : ranks) {
        if (!IsThere(prefix, rank)) watch.missing.insert(rank.value());
      }
      return ticket;
    }
  }
  done(std::move(absent));
  return 0;
}

bool StoreTable::Cancel(Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  if (watches_.erase(ticket) > 0) return true;
  const auto getter = getters_.find(ticket);
  if (getter == getters_.end()) return false;
  Calls dropped;
  FailGetter(ticket, absl::CancelledError(), &dropped);
  return true;
}

absl::Status StoreTable::TakeMember(Rank rank, std::string where) {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    if (rank < Rank(0) || rank.value() >= size_) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank.value(), " is out of range; the job has ",
                       size_, " ranks"));
    }
    JobMember& member = members_[rank.value()];
    if (member.state != MemberState::kNeverJoined) {
      return absl::AlreadyExistsError(absl::StrCat(
          "rank ", rank.value(),
          " has already joined: ", DescribeMember(member),
          "; start every rank of a job once, and give a new job a new name"));
    }
    member.state = MemberState::kPresent;
    member.where = std::move(where);
    JobMemberChanged(rank, &calls);
  }
  RunAll(calls);
  return absl::OkStatus();
}

void StoreTable::LeaveSeat(Rank rank, MemberState state) {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    members_[rank.value()].state = state;
    JobMemberChanged(rank, &calls);
  }
  RunAll(calls);
}

void StoreTable::JobMemberChanged(Rank rank, Calls* calls) {
  const bool gone = members_[rank.value()].IsGone();
  std::vector<Ticket> ended;
  for (auto& [ticket, watch] : watches_) {
    if (!watch.missing.contains(rank.value())) continue;
    if (!gone && watch.prefix.empty()) watch.missing.erase(rank.value());
    if (gone || watch.missing.empty()) ended.push_back(ticket);
  }
  for (const Ticket ticket : ended) {
    const Watch& watch = watches_.find(ticket)->second;
    EndWatch(ticket, Absent(watch.prefix, watch.ranks), calls);
  }
  if (!gone) return;
  ended.clear();
  for (const auto& [ticket, getter] : getters_) {
    if (getter.owner == rank) ended.push_back(ticket);
  }
  for (const Ticket ticket : ended) {
    FailGetter(
        ticket,
        GoneError(members_[rank.value()], getters_.find(ticket)->second.key),
        calls);
  }
}

JobMember StoreTable::member(Rank rank) const {
  absl::MutexLock lock(&mutex_);
  return members_[rank.value()];
}

bool StoreTable::HasUnread() const {
  absl::MutexLock lock(&mutex_);
  return unread_ > 0;
}

absl::StatusOr<std::unique_ptr<TableStore>> TableStore::Take(
    std::shared_ptr<StoreTable> table, Rank rank, std::string where) {
  TESSERA_RETURN_IF_ERROR(table->TakeMember(rank, std::move(where)));
  return std::unique_ptr<TableStore>(new TableStore(std::move(table), rank));
}

TableStore::~TableStore() {
  if (pid_ == getpid()) table_->LeaveSeat(rank_, MemberState::kLeft);
}

absl::Status TableStore::SetFor(int64_t reads, std::string_view key,
                                std::string_view value, absl::Time) {
  TESSERA_RETURN_IF_ERROR(CheckOwner(rank_, pid_));
  return table_->Set(reads, key, value);
}

absl::StatusOr<std::string> TableStore::GetFrom(Rank owner,
                                                std::string_view key,
                                                absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckOwner(rank_, pid_));
  auto value = WaitFor<absl::StatusOr<std::string>>(
      *table_, deadline, [&](StoreTable::GetDone done) {
        return table_->Get(owner, key, std::move(done));
      });
  if (value) return *std::move(value);
  return absl::DeadlineExceededError(absl::StrCat(
      "no rank has set \"", absl::CHexEscape(key.substr(0, 80)), "\" in time"));
}

absl::Status TableStore::Erase(std::string_view prefix,
                               std::span<const Rank> ranks, absl::Time) {
  TESSERA_RETURN_IF_ERROR(CheckOwner(rank_, pid_));
  table_->Erase(prefix, ranks);
  return absl::OkStatus();
}

absl::StatusOr<MissingMembers> TableStore::AwaitAll(std::string_view prefix,
                                                    std::span<const Rank> ranks,
                                                    absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckOwner(rank_, pid_));
  auto absence = WaitFor<absl::StatusOr<MissingMembers>>(
      *table_, deadline, [&](StoreTable::AwaitDone done) {
        return table_->AwaitAll(prefix, ranks, std::move(done));
      });
  if (absence) return *std::move(absence);
  return table_->FindAbsent(prefix, ranks);
}

}  // namespace tessera::collectives
