// EngineCatalogue: the engines that a benchmark can measure, and how their
// ranks are started.
//
//   EngineCatalogue catalogue;
//   catalogue.AddThreads("in_process", [](int64_t world) {
//     return CreateInProcessEngines(world);
//   });
//   catalogue.AddProcesses("mine", Launch::kProcesses,
//                          [](const RankSeat& seat) { return Make(seat); });
//
// The benchmark and its workers are the same binary and have the same one.
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

enum class Launch {
  kThreads,    // Of one process.
  kProcesses,  // With a store over inherited sockets.
  kMpirun,     // By the MPI that this binary was built with.
};

// What a rank's engine is made of in a process of its own.
struct RankSeat {
  topology::Rank rank;
  int64_t world = 1;
  collectives::Store* store = nullptr;  // Null under mpirun.
};

struct EngineEntry {
  using MakeOne =
      std::function<absl::StatusOr<std::unique_ptr<collectives::Engine>>(
          const RankSeat& seat)>;
  using MakeAll = std::function<absl::StatusOr<
      std::vector<std::unique_ptr<collectives::Engine>>>(int64_t world)>;

  Launch launch = Launch::kProcesses;
  MakeOne make_one;  // Of kProcesses and kMpirun.
  MakeAll make_all;  // Of kThreads.
};

class EngineCatalogue {
 public:
  // A name that is there already is replaced.
  void AddThreads(std::string_view name, EngineEntry::MakeAll make);
  void AddProcesses(std::string_view name, Launch launch,
                    EngineEntry::MakeOne make);

  // InvalidArgument, listing the names, where there is none of this one.
  absl::StatusOr<EngineEntry> Find(std::string_view name) const;

 private:
  std::map<std::string, EngineEntry, std::less<>> entries_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_ENGINE_CATALOGUE_H_
