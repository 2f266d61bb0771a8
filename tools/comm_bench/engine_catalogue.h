// EngineCatalogue: the engines that a benchmark can measure, and how their
// ranks are started.
//
//   EngineCatalogue catalogue;
//   catalogue.AddThreads("in_process", [](int64_t world) {
//     return CreateInProcessEngines(world);
//   });
//   catalogue.AddProcesses("mine", LaunchMethod::kProcesses,
//                          [](const EngineRank& rank) { return Make(rank); });
//   TESSERA_ASSIGN_OR_RETURN(EngineEntry entry,
//                            catalogue.Find("cpu", "mine"));
//
// The benchmark and its workers are the same binary with the same catalogue.
#ifndef TESSERA_TOOLS_COMM_BENCH_ENGINE_CATALOGUE_H_
#define TESSERA_TOOLS_COMM_BENCH_ENGINE_CATALOGUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/bootstrap/store.h"
#include "collectives/communicator.h"
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

// How a rank with a communicator of the host gets one of its device.
struct DeviceRanks {
  // The devices of ranks [first, first + count), which are in this process, in
  // their order. Ranks may share one.
  std::function<absl::StatusOr<std::vector<std::shared_ptr<Device>>>(
      int64_t first, int64_t count)>
      devices;
  // A collective over the ranks of `host`.
  std::function<absl::StatusOr<std::unique_ptr<collectives::Communicator>>(
      std::unique_ptr<collectives::Communicator> host, Device& device)>
      communicator;
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
  // Set if operations are a device's; then the engines are the host's.
  std::optional<DeviceRanks> on_device;
};

class EngineCatalogue {
 public:
  // Each replaces an existing entry of the same name and device, which is "cpu"
  // for the first two.
  void AddThreads(std::string_view name, EngineEntry::MakeAll make);
  void AddProcesses(std::string_view name, LaunchMethod launch,
                    EngineEntry::MakeOne make);

  void AddOnDevice(std::string_view device, std::string_view name,
                   EngineEntry entry);

  // InvalidArgument with the known names if there is no such engine.
  absl::StatusOr<EngineEntry> Find(std::string_view device,
                                   std::string_view name) const;

 private:
  using Entries = std::map<std::string, EngineEntry, std::less<>>;

  std::map<std::string, Entries, std::less<>> entries_;  // By device.
};

// The engines of this binary: in_process, shared_memory, and those whose
// registration is linked (collectives/engine/engine_registry.h).
// mpi is started by mpirun, all others as processes with a store; mpi_blocking
// is mpi with its option `blocking`.
//
// On the device "cuda": cuda, whose ranks are threads that take the GPUs in
// turn, and nccl, a process for each GPU. On "emulated": cuda, with one
// emulated device for all ranks.
EngineCatalogue BuiltInEngines();

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_ENGINE_CATALOGUE_H_
