#include "collectives/bootstrap/table_seat.h"

#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/one_shot.h"

namespace tessera::collectives::bootstrap {
namespace {

// Waits for what `start` begins, which gives a ticket; nothing where the
// deadline comes first and the wait is cancelled.
template <typename T, typename Start>
std::optional<T> WaitFor(StoreTable& table, absl::Time deadline, Start start) {
  const auto shot = std::make_shared<OneShot<T>>();
  const StoreTable::Ticket ticket =
      start([shot](T value) { shot->Put(std::move(value)); });
  std::optional<T> value = shot->Take(deadline);
  if (value || table.Cancel(ticket)) return value;
  // It is being called at this moment.
  return shot->Take(absl::InfiniteFuture());
}

}  // namespace

absl::StatusOr<std::unique_ptr<TableSeat>> TableSeat::Take(
    std::shared_ptr<StoreTable> table, Rank rank, std::string where) {
  TESSERA_RETURN_IF_ERROR(table->TakeSeat(rank, std::move(where)));
  return std::unique_ptr<TableSeat>(new TableSeat(std::move(table), rank));
}

TableSeat::~TableSeat() {
  if (pid_ == getpid()) table_->LeaveSeat(rank_, SeatState::kLeft);
}

absl::Status TableSeat::CheckProcess() const {
  if (pid_ == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the store of rank ", rank_.value(), " belongs to pid ",
                   pid_, ", not to its child ", getpid(),
                   "; join the job after fork, not before"));
}

absl::Status TableSeat::SetFor(int64_t reads, std::string_view key,
                               std::string_view value, absl::Time) {
  TESSERA_RETURN_IF_ERROR(CheckProcess());
  return table_->Set(reads, key, value);
}

absl::StatusOr<std::string> TableSeat::GetFrom(Rank owner, std::string_view key,
                                               absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckProcess());
  auto value = WaitFor<absl::StatusOr<std::string>>(
      *table_, deadline, [&](StoreTable::GetDone done) {
        return table_->Get(owner, key, std::move(done));
      });
  if (value) return *std::move(value);
  return absl::DeadlineExceededError(absl::StrCat(
      "nobody has set \"", absl::CHexEscape(key.substr(0, 80)), "\" in time"));
}

absl::Status TableSeat::Erase(std::string_view prefix,
                              std::span<const Rank> ranks, absl::Time) {
  TESSERA_RETURN_IF_ERROR(CheckProcess());
  table_->Erase(prefix, ranks);
  return absl::OkStatus();
}

absl::StatusOr<Absence> TableSeat::AwaitAll(std::string_view prefix,
                                            std::span<const Rank> ranks,
                                            absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckProcess());
  auto absence = WaitFor<absl::StatusOr<Absence>>(
      *table_, deadline, [&](StoreTable::AwaitDone done) {
        return table_->AwaitAll(prefix, ranks, std::move(done));
      });
  if (absence) return *std::move(absence);
  return table_->FindAbsent(prefix, ranks);
}

}  // namespace tessera::collectives::bootstrap
