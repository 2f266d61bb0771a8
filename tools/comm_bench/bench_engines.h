// BenchEngine: an engine that can be measured, and how its ranks are started.
//
//   TESSERA_ASSIGN_OR_RETURN(const BenchEngine gloo,
//                            FindBenchEngine("cpu", "gloo"));
//
// The benchmark and its workers are the same binary with the same engines.
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_ENGINES_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_ENGINES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/bootstrap/store.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine.h"

namespace tessera::tools {

enum class LaunchMethod {
  kThreads,    // Ranks are threads of one process.
  kProcesses,  // Processes with a store over inherited sockets.
  kMpirun,     // Started by the MPI of this build.
};

// The ranks [first, first + count) of `world`, which are in this process: all
// of kThreads, otherwise one.
struct LocalRanks {
  int64_t first = 0;
  int64_t count = 1;
  int64_t world = 1;
  collectives::Store* store = nullptr;  // Only with kProcesses.
};

struct BenchEngine {
  LaunchMethod launch = LaunchMethod::kProcesses;
  // The engines of the ranks, in their order.
  std::function<absl::StatusOr<
      std::vector<std::unique_ptr<collectives::Engine>>>(const LocalRanks&)>
      make;
  // Set if operations are a device's; then `make` gives the host's engines. The
  // devices of the ranks, which may share one.
  std::function<absl::StatusOr<std::vector<std::shared_ptr<Device>>>(
      const LocalRanks&)>
      devices = nullptr;
  // A collective over the ranks of `host`.
  std::function<absl::StatusOr<std::unique_ptr<collectives::Communicator>>(
      std::unique_ptr<collectives::Communicator> host, Device& device)>
      on_device = nullptr;
};

// InvalidArgument with the known names if there is no such engine.
//
// For memory of "cpu": in_process, shared_memory, and those whose registration
// is linked (collectives/engine/engine_registry.h). mpi is started by mpirun,
// all others as processes with a store; mpi_blocking is mpi with its option
// `blocking`. For "cuda": cuda, whose ranks are threads that take the GPUs in
// turn, and nccl, a process for each GPU. For "emulated": cuda, with one
// emulated device for all ranks.
absl::StatusOr<BenchEngine> FindBenchEngine(std::string_view device,
                                            std::string_view name);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_ENGINES_H_
