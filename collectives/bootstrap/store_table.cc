#include "collectives/bootstrap/store_table.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/entry_check.h"
#include "collectives/bootstrap/store.h"

namespace tessera::collectives::bootstrap {
namespace {

absl::Status GoneError(const Seat& seat, std::string_view key) {
  return absl::UnavailableError(
      absl::StrCat(DescribeSeat(seat), ", and it has not set ", ShowKey(key)));
}

void RunAll(std::vector<std::function<void()>>& calls) {
  for (auto& call : calls) call();
}

}  // namespace

StoreTable::StoreTable(int64_t size, TableLimits limits)
    : size_(size), limits_(limits) {
  absl::MutexLock lock(&mutex_);
  for (int64_t i = 0; i < size; ++i) seats_.push_back({.rank = Rank(i)});
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
    if (!closed_.ok()) return closed_;
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
  if (!closed_.ok()) return closed_;
  const auto waits = static_cast<int64_t>(getters_.size() + watches_.size());
  if (waits < limits_.waits) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the job's store has ", waits, " waits, as many as it may"));
}

absl::Status StoreTable::CheckGet(Rank owner, std::string_view key) const {
  TESSERA_RETURN_IF_ERROR(CheckWait());
  if (owner == Store::kAnyRank) return absl::OkStatus();
  if (owner < Rank(0) || owner.value() >= size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", owner.value(), ", who is to set ", ShowKey(key),
                     ", is not below the job's ", size_, " ranks"));
  }
  const Seat& seat = seats_[owner.value()];
  return seat.IsGone() ? GoneError(seat, key) : absl::OkStatus();
}

StoreTable::Ticket StoreTable::Get(Rank owner, std::string_view key,
                                   GetDone done) {
  absl::StatusOr<std::string> result = std::string();
  if (absl::Status status = CheckKey(key); !status.ok()) {
    result = std::move(status);
  } else {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok() && entries_.contains(key)) {
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
    if (!entries_.contains(key)) {  // Its reads are used up.
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
  for (const Ticket ticket : complete) EndWatch(ticket, Absence(), calls);
}

void StoreTable::EndWatch(Ticket ticket, absl::StatusOr<Absence> result,
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
  if (prefix.empty()) return seats_[rank.value()].state == SeatState::kPresent;
  return entries_.contains(absl::StrCat(prefix, rank.value()));
}

Absence StoreTable::Absent(std::string_view prefix,
                           std::span<const Rank> ranks) const {
  Absence absence;
  std::vector<Seat> there;
  for (const Rank rank : ranks) {
    if (IsThere(prefix, rank)) continue;
    ++absence.count;
    const Seat& seat = seats_[rank.value()];
    std::vector<Seat>& list = seat.IsGone() ? absence.named : there;
    if (list.size() < Absence::kMaxNamed) list.push_back(seat);
  }
  for (Seat& seat : there) {
    if (absence.named.size() == Absence::kMaxNamed) break;
    absence.named.push_back(std::move(seat));
  }
  return absence;
}

absl::StatusOr<Absence> StoreTable::FindAbsent(std::string_view prefix,
                                               std::span<const Rank> ranks) {
  TESSERA_RETURN_IF_ERROR(CheckRankList(prefix, ranks, size_));
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  return Absent(prefix, ranks);
}

StoreTable::Ticket StoreTable::AwaitAll(std::string_view prefix,
                                        std::span<const Rank> ranks,
                                        AwaitDone done) {
  absl::StatusOr<Absence> absent = FindAbsent(prefix, ranks);
  if (absent.ok() && absent->count > 0 && !absent->AnyGone()) {
    absl::MutexLock lock(&mutex_);
    // Again, and now for as long as it takes to say what to wait for.
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

absl::Status StoreTable::TakeSeat(Rank rank, std::string where) {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return closed_;
    if (rank < Rank(0) || rank.value() >= size_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank.value(), " is not below the job's ", size_, " ranks"));
    }
    Seat& seat = seats_[rank.value()];
    if (seat.state != SeatState::kNeverCame) {
      return absl::AlreadyExistsError(absl::StrCat(
          "the seat of rank ", rank.value(), " is taken: ", DescribeSeat(seat),
          "; start every rank of a job once, and a new job under a new name"));
    }
    seat.state = SeatState::kPresent;
    seat.where = std::move(where);
    SeatChanged(rank, &calls);
  }
  RunAll(calls);
  return absl::OkStatus();
}

void StoreTable::LeaveSeat(Rank rank, SeatState state) {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    seats_[rank.value()].state = state;
    SeatChanged(rank, &calls);
  }
  RunAll(calls);
}

void StoreTable::SeatChanged(Rank rank, Calls* calls) {
  const bool gone = seats_[rank.value()].IsGone();
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
        GoneError(seats_[rank.value()], getters_.find(ticket)->second.key),
        calls);
  }
}

Seat StoreTable::seat(Rank rank) const {
  absl::MutexLock lock(&mutex_);
  return seats_[rank.value()];
}

bool StoreTable::HasUnread() const {
  absl::MutexLock lock(&mutex_);
  return unread_ > 0;
}

void StoreTable::Close(absl::Status reason) {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = reason;
    while (!getters_.empty()) {
      FailGetter(getters_.begin()->first, reason, &calls);
    }
    while (!watches_.empty()) {
      EndWatch(watches_.begin()->first, reason, &calls);
    }
  }
  RunAll(calls);
}

}  // namespace tessera::collectives::bootstrap
