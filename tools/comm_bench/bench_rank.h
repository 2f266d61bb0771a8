// BenchEngine: an engine under test; BenchRank: one rank of it, which times
// operations.
//
// All ranks of an engine make the same calls in the same order. Before each
// iteration the buffers are rewritten and a barrier of the engine under test,
// or of the host beside a device, aligns the ranks; neither is timed. An
// iteration is a batch of operations back to back, on a device enqueued and
// waited for once; its time, on this rank's CLOCK_MONOTONIC, is divided by the
// batch. The results of the first and the last iteration are checked.
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_RANK_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_RANK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/bootstrap/store.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/operands.h"

namespace tessera::tools {

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

  // The ranks of this process, all of `world` if they are threads, otherwise
  // the store's. A collective of all processes with ranks.
  absl::StatusOr<std::vector<RankParts>> Make(int64_t world,
                                              collectives::Store& store) const;
  // A collective over the ranks of `host`.
  absl::StatusOr<std::unique_ptr<collectives::Communicator>> OnDevice(
      std::unique_ptr<collectives::Communicator> host, Device& on_device) const;
};

// One way to execute an operation, which a case compares with others. Without
// an algorithm the communicator chooses: its default, or the adaptive choice.
struct Variant {
  std::optional<collectives::Algorithm> algorithm = std::nullopt;
  bool adaptive = false;

  // "ring", "engine", "adaptive".
  std::string Name() const;
  friend bool operator==(const Variant&, const Variant&) = default;
};

// The iterations of one measurement.
struct Task {
  Variant variant = {};
  collectives::OpKind op = collectives::OpKind::kAllReduce;
  DType dtype = DType::kF32;
  collectives::ReduceOp reduction = collectives::ReduceOp::kSum;
  int64_t bytes = 0;  // As for MakeOperation.
  bool in_place = false;
  int64_t batch = 1;  // Operations of an iteration.
  int64_t first_iteration = 0;
  int64_t warmup = 0;  // Iterations that are not timed.
  int64_t iterations = 0;
};

// The capabilities of an engine, from which its variants follow.
struct Capabilities {
  uint32_t kinds = 0;          // Bit k: the engine implements the OpKind k.
  bool has_transport = false;  // Algorithms run over the engine's messages.

  bool Implements(collectives::OpKind kind) const {
    return (kinds >> static_cast<int>(kind) & 1) != 0;
  }
};

class BenchRank {
 public:
  // A collective call. `options` outlives the rank.
  static absl::StatusOr<std::unique_ptr<BenchRank>> Create(
      const BenchOptions& options, const BenchEngine& engine, RankParts parts);

  Capabilities capabilities() const;

  // Seconds of one operation for each of task.iterations.
  absl::StatusOr<std::vector<double>> Time(const Task& task);

 private:
  explicit BenchRank(const BenchOptions& options) : options_(options) {}

  // Prepares communicator_, call_ and operands_.
  absl::Status Prepare(const Task& task);
  absl::Status RunBatch(int64_t batch);

  const BenchOptions& options_;
  // Members refer to earlier ones.
  std::shared_ptr<Device> device_;         // Null for memory of the host.
  std::unique_ptr<Queue> queue_;           // Copies operands.
  collectives::Engine* engine_ = nullptr;  // Owned by plain_.
  std::unique_ptr<collectives::Communicator> plain_;
  // Another group of all ranks; created on first use.
  std::unique_ptr<collectives::Communicator> adaptive_;
  // The communicator and options of the current task.
  collectives::Communicator* communicator_ = nullptr;
  collectives::CallOptions call_;
  // Destroyed before the communicator whose memory they may hold.
  std::optional<Operands> operands_;
  std::string operands_key_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_RANK_H_
