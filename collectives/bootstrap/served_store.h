// ServedStore: rank 0's Store, whose process keeps the table and serves it.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_SERVED_STORE_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_SERVED_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/internal/store_server.h"
#include "collectives/bootstrap/store.h"
#include "collectives/bootstrap/table_seat.h"

namespace tessera::collectives {

// When it dies, it waits up to ServerOptions::linger until every value that was
// set for a number of reads is read, so that rank 0 does not pull the table
// away from under the others' last all-gather. What is called on it after that,
// and on their stores, fails.
class ServedStore final : public Store {
 public:
  ServedStore(std::unique_ptr<bootstrap::TableSeat> seat,
              std::unique_ptr<bootstrap::StoreServer> server, int port)
      : server_(std::move(server)), seat_(std::move(seat)), port_(port) {}

  Rank rank() const override { return seat_->rank(); }
  int64_t size() const override { return seat_->size(); }
  absl::Status SetFor(int64_t reads, std::string_view key,
                      std::string_view value, absl::Time deadline) override {
    return seat_->SetFor(reads, key, value, deadline);
  }
  absl::StatusOr<std::string> GetFrom(Rank owner, std::string_view key,
                                      absl::Time deadline) override {
    return seat_->GetFrom(owner, key, deadline);
  }
  absl::Status Erase(std::string_view prefix, std::span<const Rank> ranks,
                     absl::Time deadline) override {
    return seat_->Erase(prefix, ranks, deadline);
  }
  absl::StatusOr<Absence> AwaitAll(std::string_view prefix,
                                   std::span<const Rank> ranks,
                                   absl::Time deadline) override {
    return seat_->AwaitAll(prefix, ranks, deadline);
  }

  // The TCP port that it listens at; 0 where it listens at none.
  int port() const { return port_; }
  // How many connections were refused.
  int64_t refusals() const { return server_->refusals(); }

 private:
  // The seat is left first; then the server takes leave.
  std::unique_ptr<bootstrap::StoreServer> server_;
  std::unique_ptr<bootstrap::TableSeat> seat_;
  int port_;
};

namespace bootstrap {

// Takes rank 0's seat of a new table of `size` and serves the table by what
// `start` gives.
absl::StatusOr<std::unique_ptr<ServedStore>> ServeTable(
    int64_t size, int port,
    const std::function<absl::StatusOr<std::unique_ptr<StoreServer>>(
        std::shared_ptr<StoreTable>)>& start);

}  // namespace bootstrap
}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_SERVED_STORE_H_
