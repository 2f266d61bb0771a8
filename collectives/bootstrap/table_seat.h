// TableSeat: the Store of a rank whose process has the table.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_TABLE_SEAT_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_TABLE_SEAT_H_

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/bootstrap/store_table.h"

namespace tessera::collectives::bootstrap {

class TableSeat final : public Store {
 public:
  // Takes the seat of `rank`; left when this object dies. Errors as
  // StoreTable::TakeSeat.
  static absl::StatusOr<std::unique_ptr<TableSeat>> Take(
      std::shared_ptr<StoreTable> table, Rank rank, std::string where);
  ~TableSeat() override;

  Rank rank() const override { return rank_; }
  int64_t size() const override { return table_->size(); }
  absl::Status SetFor(int64_t reads, std::string_view key,
                      std::string_view value, absl::Time deadline) override;
  absl::StatusOr<std::string> GetFrom(Rank owner, std::string_view key,
                                      absl::Time deadline) override;
  absl::Status Erase(std::string_view prefix, std::span<const Rank> ranks,
                     absl::Time deadline) override;
  absl::StatusOr<Absence> AwaitAll(std::string_view prefix,
                                   std::span<const Rank> ranks,
                                   absl::Time deadline) override;

 private:
  TableSeat(std::shared_ptr<StoreTable> table, Rank rank)
      : table_(std::move(table)), rank_(rank) {}

  absl::Status CheckProcess() const;

  const std::shared_ptr<StoreTable> table_;
  const Rank rank_;
  const pid_t pid_ = getpid();
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_TABLE_SEAT_H_
