// Registers the engine "mpi".
#include "collectives/engine/engine_registry.h"

#if TESSERA_HAVE_MPI
#include "base/status_macros.h"
#include "collectives/mpi/mpi_engine.h"
#endif

namespace tessera::collectives {
namespace {

#if TESSERA_HAVE_MPI
absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineSetup& setup) {
  MpiOptions options;
  OptionReader reader("mpi", setup.options);
  reader.Read("check_signatures", options.check_signatures);
  reader.Read("blocking", options.blocking);
  reader.Read("timeout", options.timeout);
  TESSERA_RETURN_IF_ERROR(reader.Finish());
  return CreateMpiEngine(options);
}

[[maybe_unused]] const bool registered = RegisterEngine("mpi", Create);
#else
[[maybe_unused]] const bool registered = RegisterMissingEngine(
    "mpi",
    "no MPI was found when this program was built; install Open MPI or MPICH "
    "with its headers (libopenmpi-dev, libmpich-dev) and build again");
#endif

}  // namespace
}  // namespace tessera::collectives
