#include "collectives/bootstrap/served_store.h"

#include <unistd.h>

#include "base/status_macros.h"
#include "collectives/bootstrap/host_id.h"
#include "collectives/bootstrap/seat.h"
#include "collectives/bootstrap/store_table.h"

namespace tessera::collectives::bootstrap {

absl::StatusOr<std::unique_ptr<ServedStore>> ServeTable(
    int64_t size, int port,
    const std::function<absl::StatusOr<std::unique_ptr<StoreServer>>(
        std::shared_ptr<StoreTable>)>& start) {
  const auto table = std::make_shared<StoreTable>(size);
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<TableSeat> seat,
      TableSeat::Take(table, Rank(0), DescribePlace(HostName(), getpid())));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<StoreServer> server, start(table));
  return std::make_unique<ServedStore>(std::move(seat), std::move(server),
                                       port);
}

}  // namespace tessera::collectives::bootstrap
