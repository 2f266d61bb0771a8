// The engines that can be measured, and how their ranks are created.
//
//   BenchEngine gloo("cpu", "gloo");
//   TESSERA_RETURN_IF_ERROR(gloo.Check());
//   TESSERA_ASSIGN_OR_RETURN(std::vector<RankParts> parts, gloo.Make(local));
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_ENGINES_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_ENGINES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
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

// The engine over which the processes of a job agree on the course of the
// measurements, apart from those under test: shared memory, and gloo between
// hosts.
absl::StatusOr<std::unique_ptr<collectives::Engine>> MakeControlEngine(
    collectives::Store& store);

// The parts of a rank: the engine of the host, and the device, which ranks may
// share, if operations run on one.
struct RankParts {
  std::unique_ptr<collectives::Engine> engine;
  std::shared_ptr<Device> device = nullptr;
};

// For memory of "cpu": in_process, shared_memory, and those whose registration
// is linked (collectives/engine/engine_registry.h), such as auto for several
// hosts; mpi_blocking is mpi with
// its option `blocking`. For "cuda": cuda, whose ranks are threads that take
// the GPUs in turn, and nccl, a process for each GPU. For "emulated": cuda,
// with one emulated device for all ranks.
struct BenchEngine {
  std::string device;
  std::string name;

  // InvalidArgument with the known names if there is no such engine.
  absl::Status Check() const;
  // Ranks are threads of one process.
  bool IsThreads() const;
  // Processes have to be started by mpirun.
  bool IsMpi() const { return name == "mpi" || name == "mpi_blocking"; }

  // The local ranks, in their order. A collective of all processes with ranks.
  absl::StatusOr<std::vector<RankParts>> Make(const LocalRanks& local) const;
  // A collective over the ranks of `host`.
  absl::StatusOr<std::unique_ptr<collectives::Communicator>> OnDevice(
      std::unique_ptr<collectives::Communicator> host, Device& on_device) const;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_ENGINES_H_
