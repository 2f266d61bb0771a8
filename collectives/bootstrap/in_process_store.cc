#include "collectives/bootstrap/in_process_store.h"

#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/bootstrap/store_table.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kMaxRanks = int64_t{1} << 18;

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Store>>> MakeInProcessStores(
    int64_t size) {
  if (size < 1 || size > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job has ", size, " ranks; use 1 to ", kMaxRanks));
  }
  const auto table = std::make_shared<StoreTable>(size);
  const std::string where = DescribePlace(HostName(), getpid());
  std::vector<std::unique_ptr<Store>> stores;
  for (int64_t rank = 0; rank < size; ++rank) {
    TESSERA_ASSIGN_OR_RETURN(stores.emplace_back(),
                             TableStore::Take(table, Rank(rank), where));
  }
  return stores;
}

}  // namespace tessera::collectives
