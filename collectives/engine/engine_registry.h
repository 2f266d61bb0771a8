// The engine registry: creates engines by name, so that the user of a program
// can choose one. Engines parse their options with OptionReader.
//
//   EngineSetup setup{.rank = job.rank,
//                     .size = job.world_size.value(),
//                     .store = job.store.get()};
//   TESSERA_ASSIGN_OR_RETURN(auto engine, CreateEngine("gloo", setup));
//
// An engine is available if its registration is linked: depend on
// //collectives/mpi:register, //collectives/gloo:register, ..., or on a target
// of your own with alwayslink = True and a line like
//
//   const bool registered = RegisterEngine("mine", CreateMine);
//
// (see collectives/examples). The registry is the only global state in this
// module: it describes what is linked into the program.
#ifndef TESSERA_COLLECTIVES_ENGINE_ENGINE_REGISTRY_H_
#define TESSERA_COLLECTIVES_ENGINE_ENGINE_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/engine.h"
#include "topology/rank.h"

namespace tessera::collectives {

// Parses an engine's options from the text that a user gave.
//
//   OptionReader reader("gloo", setup.options);
//   GlooOptions options;
//   reader.Read("interface", options.interface);
//   reader.Read("timeout", options.timeout);
//   TESSERA_RETURN_IF_ERROR(reader.Finish());
class OptionReader {
 public:
  // `options` outlives the reader.
  OptionReader(std::string_view engine,
               const std::map<std::string, std::string>& options)
      : engine_(engine), options_(options) {}

  // Sets `value` if the option is given: any text; "true" or "false"; an
  // integer; a duration ("500ms", "1m30s").
  void Read(std::string_view name, std::string& value);
  void Read(std::string_view name, bool& value);
  void Read(std::string_view name, int& value);
  void Read(std::string_view name, absl::Duration& value);

  // InvalidArgument if a value was malformed, or if an option was given but not
  // read; lists the known options.
  absl::Status Finish() const;

 private:
  const std::string* Find(std::string_view name);
  void Refuse(std::string_view name, std::string_view allowed);

  const std::string engine_;
  const std::map<std::string, std::string>& options_;
  std::vector<std::string> known_;
  absl::Status status_;
};

// The arguments for creating an engine.
struct EngineSetup {
  topology::Rank rank = {};
  int64_t size = 1;

  // The store through which the ranks meet; must outlive the engine. Null for a
  // single rank, or if the engine does not need one (mpi).
  Store* store = nullptr;

  // The engine's own options by name, as the user gave them (see OptionReader).
  // Unknown options are rejected.
  std::map<std::string, std::string> options = {};
};

using EngineFactory =
    std::function<absl::StatusOr<std::unique_ptr<Engine>>(const EngineSetup&)>;

// Adds an engine. Returns false without a change if the name is taken or empty.
// All functions are thread-safe.
bool RegisterEngine(std::string_view name, EngineFactory factory);

// Records why an engine is not built into this program, for example "no MPI
// library was found".
bool RegisterMissingEngine(std::string_view name, std::string_view reason);

// The names that CreateEngine accepts, sorted.
std::vector<std::string> RegisteredEngines();

// InvalidArgument if there is no such engine (the message lists the engines) or
// the setup is invalid; FailedPrecondition if the engine was not built in or
// detects a different rank or size than `setup`; or an error of the engine
// itself.
absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(std::string_view name,
                                                     const EngineSetup& setup);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_ENGINE_REGISTRY_H_
