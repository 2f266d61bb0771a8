// Registers "in_process": a world of one rank, for programs without a launcher.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/in_process/in_process.h"

namespace tessera::collectives {
namespace {

absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineSetup& setup) {
  TESSERA_RETURN_IF_ERROR(OptionReader("in_process", setup.options).Finish());
  if (setup.size != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "engine in_process: this process is one of ", setup.size,
        " ranks, but the ranks of in_process are the threads of one process: "
        "use shared_memory, mpi or gloo, or CreateInProcessEngines"));
  }
  TESSERA_ASSIGN_OR_RETURN(auto engines, CreateInProcessEngines(1));
  return std::move(engines.front());
}

[[maybe_unused]] const bool registered = RegisterEngine("in_process", Create);

}  // namespace
}  // namespace tessera::collectives
