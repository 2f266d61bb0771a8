// Stores for a job whose ranks are threads of one process. For tests and
// embedding.
//
//   TESSERA_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Store>> stores,
//                            MakeInProcessStores(4));
//   // Thread i uses *stores[i].
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_IN_PROCESS_STORE_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_IN_PROCESS_STORE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/bootstrap/store.h"

namespace tessera::collectives {

// Creates the stores of ranks 0 to size - 1. A rank leaves when its store is
// destroyed; the table lives until the last one is. InvalidArgument unless 1 <=
// size <= 2^18.
absl::StatusOr<std::vector<std::unique_ptr<Store>>> MakeInProcessStores(
    int64_t size);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_IN_PROCESS_STORE_H_
