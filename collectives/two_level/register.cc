// Registers the engine "two_level", with the options of the engine between
// hosts and "network", the name of that engine (default: gloo).
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
  OptionReader reader("two_level", own);
  reader.Read("network", name);
  reader.Read("name", options.shared_memory.name);
  reader.Read("timeout", options.shared_memory.timeout);
  TESSERA_RETURN_IF_ERROR(reader.Finish());
  if (setup.store == nullptr) {
    return absl::InvalidArgumentError(
        "engine two_level needs a store through which its ranks meet; use "
        "JoinJob");
  }
  return CreateTwoLevelEngine(*setup.store, options,
                              [&] { return CreateEngine(name, network); });
}

[[maybe_unused]] const bool registered = RegisterEngine("two_level", Create);

}  // namespace
}  // namespace tessera::collectives
