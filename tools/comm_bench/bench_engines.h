// BenchEngine: an engine that can be measured, and how its ranks are started.
//
//   TESSERA_ASSIGN_OR_RETURN(const BenchEngine gloo,
//                            FindBenchEngine("cpu", "gloo"));
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
#include "topology/rank.h"

namespace tessera::tools {

// The ranks of an engine that are in this process: all if ranks are threads,
// otherwise one.
struct LocalRanks {
  std::vector<topology::Rank> ranks;
  int64_t world = 1;
  collectives::Store* store = nullptr;  // Of all processes of the job.
};

struct BenchEngine {
  bool is_threads = false;  // Ranks are threads of one process.
  bool is_mpi = false;      // Processes have to be started by mpirun.
  // The engines of local ranks, in their order.
  std::function<absl::StatusOr<
      std::vector<std::unique_ptr<collectives::Engine>>>(const LocalRanks&)>
      make;
  // Set if operations are a device's; then `make` gives the host's engines. The
  // devices of local ranks, which may share one.
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
// is linked (collectives/engine/engine_registry.h); mpi_blocking is mpi with
// its option `blocking`. For "cuda": cuda, whose ranks are threads that take
// the GPUs in turn, and nccl, a process for each GPU. For "emulated": cuda,
// with one emulated device for all ranks.
absl::StatusOr<BenchEngine> FindBenchEngine(std::string_view device,
                                            std::string_view name);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_ENGINES_H_
