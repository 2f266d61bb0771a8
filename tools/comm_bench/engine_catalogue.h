// EngineCatalogue: the engines that a benchmark can measure, and how their
// ranks are started.
//
//   EngineCatalogue catalogue;
//   catalogue.AddThreads("in_process", [](int64_t world) {
//     return CreateInProcessEngines(world);
//   });
//   catalogue.AddProcesses("mine", LaunchMethod::kProcesses,
//                          [](const EngineRank& rank) { return Make(rank); });
//
// The benchmark and its workers are the same binary with the same catalogue.
#ifndef TESSERA_TOOLS_COMM_BENCH_ENGINE_CATALOGUE_H_
#define TESSERA_TOOLS_COMM_BENCH_ENGINE_CATALOGUE_H_

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

namespace tessera::tools {

enum class LaunchMethod {
  kThreads,    // Ranks are threads of one process.
  kProcesses,  // Processes with a store over inherited sockets.
  kMpirun,     // Started by the MPI of this build.
};

// The arguments for the engine of a rank in a separate process.
struct EngineRank {
  topology::Rank rank;
  int64_t world = 1;
  collectives::Store* store = nullptr;  // Null under mpirun.
};

struct EngineEntry {
  using MakeOne =
      std::function<absl::StatusOr<std::unique_ptr<collectives::Engine>>(
          const EngineRank& rank)>;
  using MakeAll = std::function<absl::StatusOr<
      std::vector<std::unique_ptr<collectives::Engine>>>(int64_t world)>;

  LaunchMethod launch = LaunchMethod::kProcesses;
  MakeOne make_one;  // For kProcesses and kMpirun.
  MakeAll make_all;  // For kThreads.
};

class EngineCatalogue {
 public:
  // Replaces an existing entry of the same name.
  void AddThreads(std::string_view name, EngineEntry::MakeAll make);
  void AddProcesses(std::string_view name, LaunchMethod launch,
                    EngineEntry::MakeOne make);

  // InvalidArgument with the known names if `name` is unknown.
  absl::StatusOr<EngineEntry> Find(std::string_view name) const;

 private:
  std::map<std::string, EngineEntry, std::less<>> entries_;
};

// The engines of this binary: in_process, shared_memory, and those whose
// registration is linked (collectives/engine/engine_registry.h).
// mpi is started by mpirun, all others as processes with a store; mpi_blocking
// is mpi with its option `blocking`. nccl is refused with Unimplemented: its
// buffers are device memory, which the benchmark does not write yet.
EngineCatalogue BuiltInEngines();

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_ENGINE_CATALOGUE_H_
