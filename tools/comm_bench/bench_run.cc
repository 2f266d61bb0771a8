#include "tools/comm_bench/bench_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/arithmetic.h"
#include "base/byte_size.h"
#include "base/device/cuda_device.h"
#include "base/device/emulated_device.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/adaptive/create_adaptive.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/bootstrap/network_options.h"
#include "collectives/bootstrap/store.h"
#include "collectives/communicator.h"
#include "collectives/cuda/cuda_communicator.h"
#include "collectives/emulated/emulated_communicator.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/engine/operation_context.h"
#include "collectives/in_process/in_process.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/shared_memory/shared_memory.h"
#include "nlohmann/json.hpp"
#include "tools/comm_bench/operands.h"
#include "tools/comm_bench/report.h"
#include "topology/rank.h"

namespace tessera::tools {
namespace {

using collectives::Algorithm;
using collectives::Communicator;
using collectives::Engine;
using collectives::MonotonicNanos;
using collectives::OpKind;
using collectives::PreparedOperation;
using collectives::ReduceOp;
using collectives::Store;
using topology::Rank;

using Seconds = std::vector<double>;

constexpr absl::Duration kJoinTimeout = absl::Seconds(30);
constexpr int64_t kRounds = 5;
constexpr int64_t kCalibrations = 3;
// Time of a turn of a case if the number of iterations is not given.
constexpr double kCaseSeconds = 0.15;
constexpr int64_t kFewestIterations = 10;
constexpr int64_t kMostIterations = 400;

std::vector<std::string> NamesFor(std::string_view device) {
  if (device == "cuda") return {"cuda", "nccl"};
  if (device == "emulated") return {"emulated"};
  std::vector<std::string> names = collectives::RegisteredEngines();
  const auto has = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (has("mpi")) names.push_back("mpi_blocking");
  if (has("gloo")) {
    names.insert(names.end(), {"auto_encrypted", "gloo_encrypted"});
  }
  names.insert(names.end(), {"in_process", "shared_memory"});
  return names;
}

// The engine of this process's only rank by its name in --engine, without a
// device. `group` is its name if there is another engine of the same kind.
absl::StatusOr<std::unique_ptr<Engine>> MakeProcessEngine(
    const std::string& name, Store& store, const std::string& group = "") {
  if (name == "shared_memory" || name == "nccl") {
    return collectives::CreateSharedMemoryEngine(store);
  }
  collectives::EngineSetup setup = {
      .rank = store.rank(), .size = store.size(), .store = &store};
  const bool encrypts = absl::EndsWith(name, "_encrypted");
  const std::string engine = encrypts ? name.substr(0, name.find('_')) : name;
  if (engine == "gloo" || engine == "auto") {
    TESSERA_ASSIGN_OR_RETURN(
        setup.options, collectives::NetworkOptions(
                           collectives::ProcessEnvironment(), kJoinTimeout));
    setup.options["name"] = name;
    if (encrypts) setup.options["encrypt"] = "true";
  }
  if (!group.empty()) setup.options["name"] = group;
  if (name != "mpi_blocking") return collectives::CreateEngine(engine, setup);
  setup.options["blocking"] = "true";
  return collectives::CreateEngine("mpi", setup);
}

// The engines of the ranks of this process, all of `world` if they are threads,
// otherwise the store's. A collective of all processes with ranks.
absl::StatusOr<std::vector<std::unique_ptr<Engine>>> MakeEngines(
    const BenchEngine& engine, int64_t world, Store& store) {
  if (engine.IsThreads()) return collectives::CreateInProcessEngines(world);
  std::vector<std::unique_ptr<Engine>> engines(1);
  TESSERA_ASSIGN_OR_RETURN(engines[0], MakeProcessEngine(engine.name, store));
  return engines;
}

// The devices of `count` ranks, which may share one; null for memory of the
// host. GPUs are assigned in turn; NCCL refuses two ranks on one GPU.
absl::StatusOr<std::vector<std::shared_ptr<Device>>> MakeDevices(
    const BenchEngine& engine, size_t first_rank, size_t count) {
  std::vector<std::shared_ptr<Device>> devices(count);
  if (engine.device == "emulated") {
    TESSERA_ASSIGN_OR_RETURN(devices[0], EmulatedDevice::Create());
    std::fill(devices.begin(), devices.end(), devices[0]);
  }
  if (engine.device != "cuda") return devices;
  TESSERA_ASSIGN_OR_RETURN(std::vector<CudaDeviceInfo> gpus, FindCudaDevices());
  const absl::Status first_usable = gpus[0].usable;
  std::erase_if(gpus, [](const auto& gpu) { return !gpu.usable.ok(); });
  if (gpus.empty()) return first_usable;
  std::map<int, std::shared_ptr<Device>> by_ordinal;
  for (size_t i = 0; i < count; ++i) {
    const size_t rank = first_rank + i;
    if (rank >= gpus.size() && engine.name == "nccl") {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " has no GPU: ", gpus.size(),
          " are usable and nccl needs one for each rank; use --np=",
          gpus.size(), ", or --engine=cuda, whose ranks share"));
    }
    const int ordinal = gpus[rank % gpus.size()].ordinal;
    std::shared_ptr<Device>& device = by_ordinal[ordinal];
    if (device == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(device,
                               CudaDevice::Create({.ordinal = ordinal}));
    }
    devices[i] = device;
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<Communicator>> OnDevice(
    const BenchEngine& engine, std::unique_ptr<Communicator> host,
    Device& device) {
  if (engine.name == "nccl") {
    return collectives::CreateNcclCommunicator(std::move(host), device);
  }
  return engine.device == "cuda"
             ? collectives::native::CreateCudaCommunicator(std::move(host),
                                                           device)
             : collectives::CreateEmulatedCommunicator(std::move(host), device);
}

// The iterations of one measurement. Rank 0 sends it to the other processes.
struct Task {
  int64_t engine = -1;  // Its index among the engines; -1: no more tasks.
  Variant variant = {};
  OpKind op = OpKind::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp reduction = ReduceOp::kSum;
  int64_t bytes = 0;  // As for MakeOperation.
  bool in_place = false;
  int64_t batch = 1;  // Operations of an iteration.
  int64_t first_iteration = 0;
  int64_t warmup = 0;  // Iterations that are not timed.
  int64_t iterations = 0;
};

// One rank of an engine, which times operations. All ranks of an engine make
// the same calls in the same order. Before each iteration the buffers are
// rewritten and a barrier of the engine under test, or of the host beside a
// device, aligns the ranks; neither is timed. An iteration is a batch of
// operations back to back, on a device enqueued and waited for once; its time,
// on this rank's CLOCK_MONOTONIC, is divided by the batch. The results of the
// first and the last iteration are checked.
class BenchRank {
 public:
  // A collective call. `options` outlives the rank.
  static absl::StatusOr<std::unique_ptr<BenchRank>> Create(
      const BenchOptions& options, const BenchEngine& engine,
      std::unique_ptr<Engine> of_host, std::shared_ptr<Device> device) {
    std::unique_ptr<BenchRank> rank(new BenchRank(options));
    rank->engine_ = of_host.get();
    TESSERA_ASSIGN_OR_RETURN(rank->plain_,
                             Communicator::Create(std::move(of_host), {}));
    if (device == nullptr) return rank;
    rank->device_ = std::move(device);
    TESSERA_ASSIGN_OR_RETURN(rank->queue_,
                             rank->device_->CreateQueue("operands"));
    TESSERA_ASSIGN_OR_RETURN(
        rank->plain_,
        OnDevice(engine, std::move(rank->plain_), *rank->device_));
    return rank;
  }

  // The engine itself implements the operation.
  bool Implements(OpKind kind) const {
    return device_ != nullptr || engine_->Implements(kind);
  }
  // Algorithms run over the engine's messages.
  bool has_transport() const {
    return device_ == nullptr && engine_->transport() != nullptr;
  }

  // Seconds of one operation for each of task.iterations.
  absl::StatusOr<Seconds> Time(const Task& task) {
    TESSERA_RETURN_IF_ERROR(Prepare(task));
    Seconds seconds;
    const int64_t total = task.warmup + task.iterations;
    for (int64_t i = 0; i < total; ++i) {
      const int64_t iteration = task.first_iteration + i;
      TESSERA_RETURN_IF_ERROR(operands_->Rewrite(iteration));
      TESSERA_RETURN_IF_ERROR(communicator_->host().Barrier());
      const int64_t begin = MonotonicNanos();
      TESSERA_RETURN_IF_ERROR(RunBatch(task.batch));
      const int64_t end = MonotonicNanos();
      // If ranks share processors, the next work of this rank would delay the
      // others.
      TESSERA_RETURN_IF_ERROR(communicator_->host().Barrier());
      if (i >= task.warmup) {
        seconds.push_back(1e-9 * static_cast<double>(end - begin) /
                          static_cast<double>(task.batch));
      }
      if (options_.check && (i == 0 || i == total - 1)) {
        TESSERA_RETURN_IF_ERROR(operands_->Check(iteration));
      }
    }
    return seconds;
  }

 private:
  explicit BenchRank(const BenchOptions& options) : options_(options) {}

  // Prepares communicator_, call_ and operands_.
  absl::Status Prepare(const Task& task) {
    communicator_ = plain_.get();
    if (task.variant.adaptive) {
      constexpr uint32_t kGroup = 1000;  // Above the group numbers of plain_.
      if (adaptive_ == nullptr) {
        TESSERA_ASSIGN_OR_RETURN(
            std::unique_ptr<Engine> engine,
            collectives::Duplicate(*engine_, kGroup, absl::Minutes(1)));
        TESSERA_ASSIGN_OR_RETURN(
            adaptive_,
            collectives::CreateAdaptiveCommunicator(std::move(engine), {}));
      }
      communicator_ = adaptive_.get();
    }
    call_.algorithm = task.variant.algorithm;
    // Registered memory belongs to a communicator.
    Communicator& owner = options_.registered ? *communicator_ : *plain_;
    const OperandShape shape = {
        .operation = MakeOperation(
            task.op, task.dtype, ReductionFor(task.reduction, task.dtype),
            task.bytes, owner.rank(), owner.size(), Rank(options_.root)),
        .in_place = task.in_place,
        .registered = options_.registered,
        // In place every operation of a batch needs its own buffers.
        .slots = task.in_place ? task.batch : 1};
    const std::string key = absl::StrCat(
        OpKindName(task.op), DTypeName(task.dtype),
        ReduceOpName(task.reduction), task.bytes, " ", shape.in_place,
        shape.slots, " ", reinterpret_cast<uintptr_t>(&owner));
    if (!operands_.has_value() || key != operands_key_) {
      prepared_.clear();
      operands_.reset();
      operands_key_ = key;
      TESSERA_ASSIGN_OR_RETURN(operands_,
                               Operands::Allocate(owner, shape, queue_.get()));
    }
    is_prepared_ = task.variant.prepared;
    for (int64_t slot = std::ssize(prepared_);
         is_prepared_ && slot < operands_->slots(); ++slot) {
      TESSERA_ASSIGN_OR_RETURN(
          PreparedOperation prepared,
          communicator_->Prepare(operands_->operation(slot)));
      prepared_.push_back(std::move(prepared));
    }
    return absl::OkStatus();
  }

  // On a device, enqueues all operations and waits for the last: they run in
  // the order of the calls.
  absl::Status RunBatch(int64_t batch) {
    std::optional<collectives::Work> last;
    if (is_prepared_) {
      size_t slot = 0;
      for (int64_t i = 0; i < batch; ++i) {
        TESSERA_RETURN_IF_ERROR(prepared_[slot].Run());
        if (++slot == prepared_.size()) slot = 0;
      }
      return absl::OkStatus();
    }
    for (int64_t i = 0; i < batch; ++i) {
      const auto& operation = operands_->operation(i % operands_->slots());
      if (device_ != nullptr) {
        TESSERA_ASSIGN_OR_RETURN(last, communicator_->Start(operation, call_));
      } else {
        TESSERA_RETURN_IF_ERROR(communicator_->Run(operation, call_));
      }
    }
    return last.has_value() ? last->Wait() : absl::OkStatus();
  }

  const BenchOptions& options_;
  // Members refer to earlier ones.
  std::shared_ptr<Device> device_;  // Null for memory of the host.
  std::unique_ptr<Queue> queue_;    // Copies operands.
  Engine* engine_ = nullptr;        // Owned by plain_.
  std::unique_ptr<Communicator> plain_;
  // Another group of all ranks; created on first use.
  std::unique_ptr<Communicator> adaptive_;
  // The communicator and options of the current task.
  Communicator* communicator_ = nullptr;
  collectives::CallOptions call_;
  // Destroyed before the communicator whose memory they may hold.
  std::optional<Operands> operands_;
  std::string operands_key_;
  std::vector<PreparedOperation> prepared_;  // One for each slot, or none.
  bool is_prepared_ = false;                 // The current task's variant.
};

// An engine under test, and its ranks in this process.
struct Subject {
  BenchEngine engine;
  std::vector<std::unique_ptr<BenchRank>> local = {};
};

// A process of the job with its ranks of every engine.
class Process {
 public:
  Process(const BenchOptions& options, int64_t world,
          const collectives::Job& job, const Report& report,
          const std::function<void(const absl::Status&)>& fail)
      : options_(options),
        world_(world),
        job_(job),
        report_(report),
        fail_(fail) {}

  bool decides() const { return job_.rank == Rank(0); }
  const std::vector<Subject>& subjects() const { return subjects_; }

  absl::Status Start() {
    TESSERA_ASSIGN_OR_RETURN(
        auto engine, MakeProcessEngine("auto", *job_.store, "comm_bench"));
    collectives::CommunicatorOptions options;
    options.name = "processes";
    options.timeout = absl::InfiniteDuration();
    TESSERA_ASSIGN_OR_RETURN(processes_,
                             Communicator::Create(std::move(engine), options));
    for (const std::string& name : options_.engines) {
      Subject& subject =
          subjects_.emplace_back(Subject{.engine = {options_.device, name}});
      TESSERA_RETURN_IF_ERROR(StartRanks(subject));
    }
    return absl::OkStatus();
  }

  // On rank 0. All processes execute the task; returns the slowest rank's time
  // of each iteration. Without an engine it ends Serve.
  absl::StatusOr<Seconds> Measure(Task task) {
    TESSERA_RETURN_IF_ERROR(Share(task));
    if (task.engine < 0) return Seconds();
    return Execute(task);
  }

  // On the other ranks: executes rank 0's tasks.
  absl::Status Serve() {
    for (Task task;;) {
      TESSERA_RETURN_IF_ERROR(Share(task));
      if (task.engine < 0) return absl::OkStatus();
      TESSERA_RETURN_IF_ERROR(Execute(task).status());
    }
  }

 private:
  absl::Status Share(Task& task) {
    static_assert(std::is_trivially_copyable_v<Task>);
    const collectives::Buffer bytes(&task, sizeof(task), DType::kU8);
    return processes_->Broadcast(bytes, Rank(0));
  }

  void Announce(const Subject& subject, std::string_view what) {
    where_ = absl::StrCat("engine ", subject.engine.name, " with ", world_,
                          " ranks", what);
    if (decides()) report_({{"progress", where_}});
  }

  // Calls `run` for each local rank, on its processors. An error ends the
  // process.
  void ForEachRank(Subject& subject,
                   absl::FunctionRef<absl::Status(size_t)> run) {
    const topology::LauncherEnvironment& here = job_.environment;
    const bool threads = subject.engine.IsThreads();
    const auto run_rank = [&](size_t i) {
      const auto thread = static_cast<int64_t>(i);
      if (options_.bind) {
        // Without permission the rank stays unbound.
        static_cast<void>(BindThisThread(ShareOfProcessors(
            processors_, threads ? thread : here.local_rank,
            threads ? world_ : here.local_world_size.value_or(world_))));
      }
      const absl::Status status = run(i);
      if (status.ok()) return;
      fail_(
          Annotate(status, absl::StrCat(where_, ": rank ",
                                        threads ? thread : job_.rank.value())));
    };
    if (!threads) return run_rank(0);
    std::vector<std::thread> running;
    for (size_t i = 0; i < subject.local.size(); ++i) {
      running.emplace_back(run_rank, i);
    }
    for (std::thread& thread : running) thread.join();
  }

  // Engines are created with the processors of all ranks; afterwards each rank
  // is bound to its share.
  absl::Status StartRanks(Subject& subject) {
    Announce(subject, "");
    static_cast<void>(BindThisThread(processors_));
    if (subject.engine.IsThreads() && !decides()) return absl::OkStatus();
    const auto first =
        static_cast<size_t>(subject.engine.IsThreads() ? 0 : job_.rank.value());
    const auto annotate = [&](const absl::Status& status) {
      return Annotate(status,
                      absl::StrCat(where_, ": rank ", job_.rank.value()));
    };
    TESSERA_ASSIGN_OR_RETURN(auto engines,
                             MakeEngines(subject.engine, world_, *job_.store),
                             annotate(_));
    TESSERA_ASSIGN_OR_RETURN(auto devices,
                             MakeDevices(subject.engine, first, engines.size()),
                             annotate(_));
    subject.local.resize(engines.size());
    ForEachRank(subject, [&](size_t i) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(
          subject.local[i],
          BenchRank::Create(options_, subject.engine, std::move(engines[i]),
                            devices[i]));
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  absl::StatusOr<Seconds> Execute(const Task& task) {
    Subject& subject = subjects_[static_cast<size_t>(task.engine)];
    Announce(subject,
             absl::StrCat(", ", OpKindName(task.op), " of ",
                          ByteSize(task.bytes).ToString(), " ",
                          DTypeName(task.dtype), ", ", task.variant.Name()));
    std::vector<Seconds> by_rank(subject.local.size());
    ForEachRank(subject, [&](size_t i) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(by_rank[i], subject.local[i]->Time(task));
      return absl::OkStatus();
    });
    Seconds slowest = SlowestOf(by_rank, static_cast<size_t>(task.iterations));
    TESSERA_RETURN_IF_ERROR(
        processes_->AllReduce(collectives::Buffer(std::span(slowest)),
                              collectives::Reduction::Max()));
    return slowest;
  }

  const BenchOptions& options_;
  const int64_t world_;
  const collectives::Job& job_;
  const Report& report_;
  const std::function<void(const absl::Status&)>& fail_;
  const std::vector<int> processors_ = AllowedProcessors();
  std::unique_ptr<Communicator> processes_;
  std::vector<Subject> subjects_;
  std::string where_;  // The current measurement, for errors.
};

// The measurement of one variant on an engine, in place or not.
struct Turn {
  Task task;
  double single = 0;  // Seconds of one operation, as calibrated,
  double wall = 0;    // and of a whole iteration around it.
  int64_t per_round = 1;
  Seconds seconds = {};  // Of the slowest rank, for each iteration.
};

// Rank 0's decisions.
class Schedule {
 public:
  Schedule(const BenchOptions& options, int64_t world, Process& process,
           const Report& report)
      : options_(options), world_(world), process_(process), report_(report) {}

  absl::Status Run() {
    for (const OpKind op : options_.ops) {
      for (const DType dtype : options_.dtypes) {
        for (const ReduceOp reduction : options_.reductions) {
          if (!collectives::Reduces(op)) {
            TESSERA_RETURN_IF_ERROR(RunSizes(op, dtype, reduction));
            break;  // Without a reduction once is enough.
          }
          if (Validate(ReductionFor(reduction, dtype), dtype).ok()) {
            TESSERA_RETURN_IF_ERROR(RunSizes(op, dtype, reduction));
          }
        }
      }
    }
    return process_.Measure({}).status();
  }

 private:
  absl::Status RunSizes(OpKind op, DType dtype, ReduceOp reduction) {
    int64_t last = -1;
    for (const int64_t size : options_.sizes) {
      const collectives::Operation operation =
          MakeOperation(op, dtype, ReductionFor(reduction, dtype), size,
                        Rank(options_.root), world_, Rank(options_.root));
      const int64_t bytes =
          MessageCount(operation, world_) * SizeInBytes(dtype);
      // Small sizes may round to the same count.
      if (std::exchange(last, bytes) == bytes) continue;
      TESSERA_RETURN_IF_ERROR(RunCase(
          {.op = op, .dtype = dtype, .reduction = reduction, .bytes = bytes}));
    }
    return absl::OkStatus();
  }

  // Measures all variants in turns; a row for each, in their order.
  absl::Status RunCase(const Task& common) {
    std::vector<Turn> turns = TurnsOf(common);
    if (turns.empty()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(RunTurns(turns));
    const double first = std::max(Median(turns[0].seconds), 1e-12);
    for (size_t i = 0; i < turns.size(); ++i) {
      const Turn& turn = turns[i];
      const double seconds = Median(turn.seconds);
      Row row = {
          .engine = options_.engines[static_cast<size_t>(turn.task.engine)],
          .algorithm = turn.task.variant.Name(),
          .op = common.op,
          .dtype = common.dtype,
          .reduction = common.reduction,
          .root = options_.root,
          .world = world_,
          .bytes = common.bytes,
          .iterations = static_cast<int64_t>(turn.seconds.size()),
          .seconds = seconds,
          .ratio = seconds / first,
          .checked = options_.check};
      if (common.op != OpKind::kBarrier) {
        row.in_place_seconds = Median(turns[++i].seconds);
      }
      report_({{"row", RowToJson(row)}});
    }
    return absl::OkStatus();
  }

  // Each variant of each engine, out of place, then in place.
  std::vector<Turn> TurnsOf(const Task& common) const {
    std::vector<Turn> turns;
    for (size_t i = 0; i < process_.subjects().size(); ++i) {
      const BenchRank& rank = *process_.subjects()[i].local[0];
      for (const Variant& variant :
           VariantsFor(options_.algorithms, common.op,
                       rank.Implements(common.op), rank.has_transport())) {
        for (const bool in_place : {false, true}) {
          if (in_place && common.op == OpKind::kBarrier) continue;
          Task& task = turns.emplace_back(Turn{common}).task;
          task.engine = static_cast<int64_t>(i);
          task.variant = variant;
          task.in_place = in_place;
        }
      }
    }
    return turns;
  }

  absl::Status RunTurns(std::vector<Turn>& turns) {
    for (Turn& turn : turns) {
      TESSERA_RETURN_IF_ERROR(Calibrate(turn, 1));
      if (!on_device_ || options_.blocking) continue;
      // A single operation takes mostly the host's launch and wait.
      TESSERA_RETURN_IF_ERROR(Calibrate(turn, BatchFor(turn.single, true)));
    }
    PlanRounds(turns);
    for (int64_t round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < turns.size(); ++i) {
        TESSERA_RETURN_IF_ERROR(
            RunRound(turns[round % 2 == 0 ? i : turns.size() - 1 - i]));
      }
    }
    return absl::OkStatus();
  }

  // Runs warm-up and a few batches of `batch` operations.
  absl::Status Calibrate(Turn& turn, int64_t batch) {
    Task task = turn.task;
    task.batch = batch;
    task.warmup = options_.warmup;
    task.iterations = kCalibrations;
    const int64_t begin = MonotonicNanos();
    TESSERA_ASSIGN_OR_RETURN(const Seconds seconds, process_.Measure(task));
    const double wall = static_cast<double>(MonotonicNanos() - begin) * 1e-9;
    turn.single = Median(seconds);
    turn.wall = wall / static_cast<double>(kCalibrations + options_.warmup) -
                turn.single * static_cast<double>(batch - 1);
    return absl::OkStatus();
  }

  // All use the same batch, so that costs of an iteration weigh alike.
  void PlanRounds(std::vector<Turn>& turns) const {
    double fastest = std::numeric_limits<double>::infinity();
    for (const Turn& turn : turns) fastest = std::min(fastest, turn.single);
    const int64_t batch = options_.blocking ? 1 : BatchFor(fastest, on_device_);
    for (Turn& turn : turns) {
      turn.task.batch = batch;
      turn.task.warmup = 1;  // The ranks were asleep.
      turn.task.first_iteration = options_.warmup + kCalibrations;
      const double iteration =
          turn.wall + turn.single * static_cast<double>(batch - 1);
      int64_t iterations = options_.iterations;
      if (iterations == 0) {
        iterations = std::clamp(
            static_cast<int64_t>(kCaseSeconds / std::max(iteration, 1e-7)),
            kFewestIterations, kMostIterations);
      }
      turn.per_round = (iterations + kRounds - 1) / kRounds;
    }
  }

  absl::Status RunRound(Turn& turn) {
    const auto done = static_cast<int64_t>(turn.seconds.size());
    Task& task = turn.task;
    task.iterations = turn.per_round;
    if (options_.iterations > 0) {
      task.iterations = std::min(task.iterations, options_.iterations - done);
    }
    if (task.iterations <= 0) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const Seconds seconds, process_.Measure(task));
    turn.seconds.insert(turn.seconds.end(), seconds.begin(), seconds.end());
    task.first_iteration += task.warmup + task.iterations;
    return absl::OkStatus();
  }

  const BenchOptions& options_;
  const bool on_device_ = options_.device != "cpu";
  const int64_t world_;
  Process& process_;
  const Report& report_;
};

}  // namespace

absl::Status BenchEngine::Check() const {
  std::string known;
  for (const std::string_view place : {"cpu", "cuda", "emulated"}) {
    const std::vector<std::string> names = NamesFor(place);
    if (place == device &&
        std::find(names.begin(), names.end(), name) != names.end()) {
      return absl::OkStatus();
    }
    absl::StrAppend(&known, known.empty() ? "" : "; ", "--device=", place, ": ",
                    absl::StrJoin(names, " "));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown engine \"", name, "\" with --device=", device,
                   " in this binary; the engines are: ", known));
}

bool BenchEngine::IsThreads() const {
  return name == (device == "cpu" ? "in_process" : device);
}

std::string Variant::Name() const {
  if (prepared) return "prepared";
  return std::string(
      adaptive ? "adaptive"
               : AlgorithmName(algorithm.value_or(Algorithm::kEngine)));
}

std::vector<Variant> VariantsFor(const std::vector<std::string>& algorithms,
                                 OpKind op, bool is_implemented,
                                 bool has_transport) {
  std::vector<Variant> variants;
  const auto add = [&](const Variant& variant) {
    if (std::ranges::find(variants, variant) == variants.end()) {
      variants.push_back(variant);
    }
  };
  for (const std::string& name : algorithms) {
    if (name == "adaptive") add({.adaptive = true});
    if (name == "prepared") add({.prepared = true});
    // Default algorithms execute operations that the engine does not implement.
    if (name == "engine" || (name == "all" && is_implemented)) add({});
    if (!has_transport) continue;
    for (const Algorithm algorithm :
         collectives::AlgorithmsFor(op, /*uneven=*/false)) {
      if (name == "all" || name == AlgorithmName(algorithm)) {
        add({.algorithm = algorithm});
      }
    }
  }
  return variants;
}

int64_t BatchFor(double seconds, bool on_device) {
  const double least = on_device ? 2e-3 : 40e-6;
  const double most = on_device ? 1024 : 64;
  return static_cast<int64_t>(
      std::clamp(std::ceil(least / std::max(seconds, 1e-9)), 1.0, most));
}

Seconds SlowestOf(const std::vector<Seconds>& by_rank, size_t count) {
  Seconds slowest(count);
  for (const Seconds& rank : by_rank) {
    for (size_t i = 0; i < count; ++i) {
      slowest[i] = std::max(slowest[i], rank[i]);
    }
  }
  return slowest;
}

absl::Status RunSchedule(const BenchOptions& options, int64_t world,
                         const collectives::Job& job, const Report& report,
                         const std::function<void(const absl::Status&)>& fail) {
  Process process(options, world, job, report, fail);
  TESSERA_RETURN_IF_ERROR(process.Start());
  if (!process.decides()) return process.Serve();
  return Schedule(options, world, process, report).Run();
}

}  // namespace tessera::tools
