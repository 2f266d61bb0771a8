// The engine registry: engines by name, so that a program's user chooses one.
//
//   EngineSetup setup{.rank = job.rank, .size = job.world_size.value(),
//                     .store = job.store.get()};
//   TESSERA_ASSIGN_OR_RETURN(auto engine, CreateEngine("gloo", setup));
//
// An engine is there when its registration is linked: depend on
// //collectives/mpi:register, //collectives/gloo:register, ..., or on a target
// of your own with alwayslink = True and a line like
//
//   const bool registered = RegisterEngine("mine", CreateMine);
//
// (collectives/examples). The registry is the one piece of global
// state in this module: what is linked in is a property of the program, known
// before main, and no caller could pass it.
#ifndef TESSERA_COLLECTIVES_ENGINE_ENGINE_REGISTRY_H_
#define TESSERA_COLLECTIVES_ENGINE_ENGINE_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/engine.h"
#include "topology/rank.h"

namespace tessera::collectives {

// What an engine is made of.
struct EngineSetup {
  topology::Rank rank = {};
  int64_t size = 1;

  // Where the ranks meet; outlives the engine. Null where there is one rank, or
  // the engine brings its own (mpi).
  Store* store = nullptr;

  // The engine's own options by name, as a user gives them
  // (collectives/engine/option_reader.h). Unknown ones are refused.
  std::map<std::string, std::string> options = {};
};

using EngineFactory =
    std::function<absl::StatusOr<std::unique_ptr<Engine>>(const EngineSetup&)>;

// Adds an engine; false, and nothing is changed, where the name is taken or
// empty. Thread-safe, as all of these.
bool RegisterEngine(std::string_view name, EngineFactory factory);

// Notes that an engine could not be built into this program, and why
// ("no MPI library was found").
bool RegisterMissingEngine(std::string_view name, std::string_view reason);

// The names that CreateEngine takes, in order.
std::vector<std::string> RegisteredEngines();

// InvalidArgument where there is no such engine, listing those there are, or
// the setup cannot be; FailedPrecondition where the engine was not built in, or
// finds another rank or size than the setup says; and the engine's own errors.
absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(std::string_view name,
                                                     const EngineSetup& setup);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_ENGINE_REGISTRY_H_
