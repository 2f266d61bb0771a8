// In-process stores: the ranks of a job are threads of one process. For tests
// and for embedding.
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

// The seats of ranks 0 to size - 1. A rank has left when its store dies; the
// table lives as long as one of them. InvalidArgument where size is below 1 or
// above 2^18.
absl::StatusOr<std::vector<std::unique_ptr<Store>>> MakeInProcessStores(
    int64_t size);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_IN_PROCESS_STORE_H_
