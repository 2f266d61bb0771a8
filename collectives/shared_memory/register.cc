// Registers the engine "shared_memory".
#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/shared_memory/shared_memory.h"

namespace tessera::collectives {
namespace {

absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineSetup& setup) {
  SharedMemoryOptions options;
  OptionReader reader("shared_memory", setup.options);
  reader.Read("name", options.name);
  reader.Read("timeout", options.timeout);
  TESSERA_RETURN_IF_ERROR(reader.Finish());
  if (setup.store == nullptr) {
    return absl::InvalidArgumentError(
        "engine shared_memory needs a store through which its ranks meet; use "
        "JoinJob");
  }
  return CreateSharedMemoryEngine(*setup.store, options);
}

[[maybe_unused]] const bool registered =
    RegisterEngine("shared_memory", Create);

}  // namespace
}  // namespace tessera::collectives
