// OrdinaryMemory: what engines that know no better memory allocate.
#ifndef TESSERA_COLLECTIVES_ENGINE_ORDINARY_MEMORY_H_
#define TESSERA_COLLECTIVES_ENGINE_ORDINARY_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

// `bytes` zeroed bytes, aligned to 64. InvalidArgument where `bytes` is
// negative, ResourceExhausted where the machine has none.
absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateOrdinary(int64_t bytes);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_ORDINARY_MEMORY_H_
