// Registers the engine "gloo".
#include "collectives/engine/engine_registry.h"

#if TESSERA_HAVE_GLOO
#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/gloo/gloo_engine.h"
#endif

namespace tessera::collectives {
namespace {

#if TESSERA_HAVE_GLOO
absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineSetup& setup) {
  GlooOptions options;
  OptionReader reader("gloo", setup.options);
  reader.Read("interface", options.interface);
  reader.Read("hostname", options.hostname);
  reader.Read("name", options.name);
  reader.Read("check_signatures", options.check_signatures);
  reader.Read("encrypt", options.encrypt);
  reader.Read("timeout", options.timeout);
  TESSERA_RETURN_IF_ERROR(reader.Finish());
  if (setup.store == nullptr) {
    return absl::InvalidArgumentError(
        "engine gloo needs a store through which its ranks meet; use JoinJob");
  }
  return CreateGlooEngine(*setup.store, options);
}

[[maybe_unused]] const bool registered = RegisterEngine("gloo", Create);
#else
[[maybe_unused]] const bool registered = RegisterMissingEngine(
    "gloo",
    "no Gloo was found when this program was built; install it with its "
    "headers (libgloo-dev) and build again");
#endif

}  // namespace
}  // namespace tessera::collectives
