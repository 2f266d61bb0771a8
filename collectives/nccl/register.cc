// Registers the engine "nccl".
#include "collectives/engine/engine_registry.h"

#if TESSERA_NCCL_LINKED
#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/nccl/nccl_engine.h"
#endif

namespace tessera::collectives {
namespace {

#if TESSERA_NCCL_LINKED
absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineSetup& setup) {
  NcclOptions options;
  int device = -1;
  OptionReader reader("nccl", setup.options);
  reader.Read("device", device);
  reader.Read("name", options.name);
  reader.Read("check_signatures", options.check_signatures);
  reader.Read("timeout", options.timeout);
  TESSERA_RETURN_IF_ERROR(reader.Finish());
  if (device >= 0) options.device = device;
  if (setup.store == nullptr) {
    return absl::InvalidArgumentError(
        "engine nccl needs a store through which its ranks meet; use JoinJob");
  }
  return CreateNcclEngine(*setup.store, options);
}

[[maybe_unused]] const bool registered = RegisterEngine("nccl", Create);
#else
[[maybe_unused]] const bool registered = RegisterMissingEngine(
    "nccl",
    "no CUDA toolkit with NCCL was found when this program was built; set "
    "CUDA_HOME to one and build again");
#endif

}  // namespace
}  // namespace tessera::collectives
