// Registers the engine "auto": shared_memory on one host, two_level on several.
// Its options are "network", the name of the engine between hosts (gloo if it
// is not given), and those of that engine.
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/two_level/two_level_engine.h"

namespace tessera::collectives {
namespace {

absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineSetup& setup) {
  std::string name = "gloo";
  TwoLevelOptions options;
  EngineSetup network = setup;
  auto own = network.options;
  std::erase_if(own, [](const auto& option) {
    return option.first != "network" && option.first != "name" &&
           option.first != "timeout";
  });
  network.options.erase("network");
  OptionReader reader("auto", own);
  reader.Read("network", name);
  reader.Read("name", options.shared_memory.name);
  reader.Read("timeout", options.shared_memory.timeout);
  TESSERA_RETURN_IF_ERROR(reader.Finish());
  if (setup.store == nullptr) {
    return absl::InvalidArgumentError(
        "engine auto needs a store through which its ranks meet; use "
        "JoinJob");
  }
  return CreateTwoLevelEngine(*setup.store, options,
                              [&] { return CreateEngine(name, network); });
}

[[maybe_unused]] const bool registered = RegisterEngine("auto", Create);

}  // namespace
}  // namespace tessera::collectives
