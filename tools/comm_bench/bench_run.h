// RunSchedule: measures every case with one number of ranks. Rank 0 takes all
// decisions; the other processes of the job execute the tasks that it sends.
//
// All engines are created once and live in the same processes. Within a case
// the variants take turns in short rounds, forwards and backwards, so that
// disturbances of the machine affect all alike. Processes without a rank of the
// engine under test sleep in a collective of a group of their own, over which
// tasks and times are exchanged.
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/operation/operation.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/comm_bench/bench_options.h"

namespace tessera::tools {

// For memory of "cpu": in_process, shared_memory, and those whose registration
// is linked (collectives/engine/engine_registry.h), such as auto for several
// hosts; mpi_blocking is mpi with its option `blocking`. For "cuda": cuda,
// whose ranks are threads that take the GPUs in turn, and nccl, a process for
// each GPU. For "emulated": emulated, whose ranks are threads with one device.
struct BenchEngine {
  std::string device;
  std::string name;

  // InvalidArgument with the known names if there is no such engine.
  absl::Status Check() const;
  // Ranks are threads of one process.
  bool IsThreads() const;
  // Processes have to be started by mpirun.
  bool IsMpi() const { return name == "mpi" || name == "mpi_blocking"; }
};

// One way to execute an operation, which a case compares with others. Without
// an algorithm the communicator chooses: its default, or the adaptive choice.
struct Variant {
  std::optional<collectives::Algorithm> algorithm = std::nullopt;
  bool adaptive = false;
  bool prepared = false;  // By Communicator::Prepare.

  // "ring", "engine", "adaptive", "prepared".
  std::string Name() const;
  friend bool operator==(const Variant&, const Variant&) = default;
};

// The variants of `algorithms` for `op` of an engine that implements it or not,
// and has messages or not, in that order. "all" is the engine's own, if it has
// one, then every algorithm.
std::vector<Variant> VariantsFor(const std::vector<std::string>& algorithms,
                                 collectives::OpKind op, bool is_implemented,
                                 bool has_transport);

// The operations of a batch if one takes `seconds`: enough for 40 us, at least
// 1 and at most 64. On a device enough for 2 ms, at most 1024, so that the time
// is not that of launching and waiting.
int64_t BatchFor(double seconds, bool on_device);

// For each of `count` iterations the time of the slowest rank; 0 without ranks.
std::vector<double> SlowestOf(const std::vector<std::vector<double>>& by_rank,
                              size_t count);

// Receives what a run reports: {"row": columns}, from RowToJson, of a finished
// case, or {"progress": text}, the current measurement.
using Report = std::function<void(const nlohmann::ordered_json& line)>;

// `job` has a process for each of the `world` ranks, or one for all if all
// engines have threads. `fail` is called, on any thread, with the error of a
// rank, which names engine and rank: Internal for a wrong result. It must end
// the process, because other ranks wait for this one. Calls `report` on rank 0.
absl::Status RunSchedule(const BenchOptions& options, int64_t world,
                         const collectives::Job& job, const Report& report,
                         const std::function<void(const absl::Status&)>& fail);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_
