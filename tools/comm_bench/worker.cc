#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/device/device.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/adaptive/create_adaptive.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "collectives/communicator.h"
#include "collectives/engine/operation_context.h"
#include "tools/comm_bench/bench_engines.h"
#include "tools/comm_bench/job.h"
#include "tools/comm_bench/operands.h"
#include "tools/comm_bench/task.h"

namespace tessera::tools {
namespace {

using collectives::Buffer;
using collectives::CallOptions;
using collectives::Communicator;
using collectives::Deadline;
using collectives::Engine;
using collectives::MonotonicNanos;
using collectives::Reduction;
using collectives::Work;
using topology::Rank;

// Arithmetic in registers and the first cache, about a microsecond a unit.
absl::Status Compute(int64_t units) {
  std::array<double, 64> x;
  x.fill(1.0);
  for (int64_t step = 0; step < 40 * units; ++step) {
    for (double& value : x) value = value * 0.999999 + 1e-6;
  }
  double sum = 0;
  for (const double value : x) sum += value;
  // Uses the result, so that the compiler keeps the loop.
  if (std::isfinite(sum)) return absl::OkStatus();
  return absl::InternalError("the overlapped computation has a wrong result");
}

// Times the operation of a task on this rank. The operands have task.batch
// slots, or one that serves all.
class OperationTimer {
 public:
  OperationTimer(Communicator& communicator, const Task& task,
                 Operands& operands)
      : communicator_(communicator), task_(task), operands_(operands) {
    call_.algorithm = task.variant.algorithm;
  }

  // Seconds of one operation for each of task.iterations.
  absl::StatusOr<std::vector<double>> TimeBatches();

  // Three times for each iteration: of a computation that takes about as long
  // as the operation, of the operation, and of both with the operation started
  // first.
  absl::StatusOr<std::vector<double>> TimeOverlap();

 private:
  // Seconds of `body` after a barrier. The barriers are the host's.
  absl::StatusOr<double> Time(absl::FunctionRef<absl::Status()> body);
  absl::StatusOr<double> TimeCompute(int64_t units) {
    return Time([&] { return Compute(units); });
  }
  absl::StatusOr<double> TimeOperation() {
    return Time(
        [&] { return communicator_.Run(operands_.operation(0), call_); });
  }
  absl::Status RunBatch();
  absl::Status RunBoth(int64_t units);
  absl::StatusOr<int64_t> CalibrateUnits();

  Communicator& communicator_;
  const Task& task_;
  Operands& operands_;
  CallOptions call_;
};

absl::StatusOr<double> OperationTimer::Time(
    absl::FunctionRef<absl::Status()> body) {
  TESSERA_RETURN_IF_ERROR(communicator_.host().Barrier());
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(body());
  const int64_t end = MonotonicNanos();
  // If ranks share processors, the next work of this rank would delay the
  // others.
  TESSERA_RETURN_IF_ERROR(communicator_.host().Barrier());
  return static_cast<double>(end - begin) * 1e-9;
}

// On a device, enqueues all operations and waits for the last: they run in the
// order of the calls.
absl::Status OperationTimer::RunBatch() {
  const bool on_device = &communicator_.host() != &communicator_;
  std::optional<Work> last;
  for (int64_t i = 0; i < task_.batch; ++i) {
    const auto& operation = operands_.operation(i % operands_.slots());
    if (on_device) {
      TESSERA_ASSIGN_OR_RETURN(last, communicator_.Start(operation, call_));
    } else {
      TESSERA_RETURN_IF_ERROR(communicator_.Run(operation, call_));
    }
  }
  return on_device ? last->Wait() : absl::OkStatus();
}

absl::StatusOr<std::vector<double>> OperationTimer::TimeBatches() {
  std::vector<double> seconds;
  const int64_t total = task_.warmup + task_.iterations;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t iteration = task_.first_iteration + i;
    TESSERA_RETURN_IF_ERROR(operands_.Rewrite(iteration));
    TESSERA_ASSIGN_OR_RETURN(const double elapsed,
                             Time([&] { return RunBatch(); }));
    if (i >= task_.warmup) {
      seconds.push_back(elapsed / static_cast<double>(task_.batch));
    }
    if (task_.check && (i == 0 || i == total - 1)) {
      TESSERA_RETURN_IF_ERROR(operands_.Check(iteration));
    }
  }
  return seconds;
}

// The units that take as long as an operation on the slowest rank; the same on
// all ranks.
absl::StatusOr<int64_t> OperationTimer::CalibrateUnits() {
  constexpr int kRuns = 5;
  constexpr int64_t kUnits = 200;
  std::array<double, 2> fastest = {1e9, 1e9};
  for (int run = 0; run < kRuns; ++run) {
    TESSERA_RETURN_IF_ERROR(operands_.Rewrite(run));
    TESSERA_ASSIGN_OR_RETURN(const double operation, TimeOperation());
    TESSERA_ASSIGN_OR_RETURN(const double compute, TimeCompute(kUnits));
    fastest = {std::min(fastest[0], operation), std::min(fastest[1], compute)};
  }
  TESSERA_RETURN_IF_ERROR(communicator_.AllReduce(
      Buffer(fastest.data(), 2, DType::kF64), Reduction::Max()));
  return std::max<int64_t>(
      1, std::llround(static_cast<double>(kUnits) * fastest[0] / fastest[1]));
}

absl::Status OperationTimer::RunBoth(int64_t units) {
  TESSERA_ASSIGN_OR_RETURN(const Work work,
                           communicator_.Start(operands_.operation(0), call_));
  TESSERA_RETURN_IF_ERROR(Compute(units));
  return work.Wait();
}

absl::StatusOr<std::vector<double>> OperationTimer::TimeOverlap() {
  TESSERA_ASSIGN_OR_RETURN(const int64_t units, CalibrateUnits());
  std::vector<double> seconds;
  for (int64_t i = 0; i < task_.iterations; ++i) {
    const int64_t iteration = task_.first_iteration + i;
    TESSERA_RETURN_IF_ERROR(operands_.Rewrite(iteration));
    TESSERA_ASSIGN_OR_RETURN(const double compute, TimeCompute(units));
    TESSERA_ASSIGN_OR_RETURN(const double operation, TimeOperation());
    TESSERA_RETURN_IF_ERROR(operands_.Rewrite(iteration + 1));
    TESSERA_ASSIGN_OR_RETURN(const double both,
                             Time([&] { return RunBoth(units); }));
    seconds.insert(seconds.end(), {compute, operation, both});
    if (task_.check && (i == 0 || i == task_.iterations - 1)) {
      TESSERA_RETURN_IF_ERROR(operands_.Check(iteration + 1));
    }
  }
  return seconds;
}

Capabilities CapabilitiesOf(Engine& engine, bool on_device) {
  Capabilities capabilities;
  capabilities.has_transport = !on_device && engine.transport() != nullptr;
  for (const collectives::OpKind kind : collectives::kCollectiveKinds) {
    if (on_device || engine.Implements(kind)) {
      capabilities.kinds |= uint32_t{1} << static_cast<int>(kind);
    }
  }
  return capabilities;
}

absl::StatusOr<collectives::CommunicatorOptions> OptionsFor(
    int64_t world, int64_t group_size) {
  collectives::CommunicatorOptions options;
  if (group_size == 0) return options;
  std::vector<int64_t> labels;
  for (int64_t r = 0; r < world; ++r) labels.push_back(r / group_size);
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Hierarchy hierarchy,
      collectives::Hierarchy::FromLabels(std::span(&labels, 1)));
  options.hierarchy =
      std::make_shared<collectives::Hierarchy>(std::move(hierarchy));
  return options;
}

// A rank's engine, and its device, if it has one.
struct RankParts {
  std::unique_ptr<Engine> engine;
  std::shared_ptr<Device> device;
};

// One rank of a job under test. Keeps the buffers of the last task and the
// communicators that tasks have used.
class RankSession {
 public:
  // A collective call. Returns the error of `made`, if any.
  static absl::StatusOr<std::unique_ptr<RankSession>> Create(
      absl::StatusOr<RankParts> made, const BenchEngine& kind,
      const JobSpec& spec);

  const Capabilities& capabilities() const { return capabilities_; }

  // The answer's status holds an error of the task.
  Answer Execute(const Task& task) {
    Answer answer;
    answer.status = RunTask(task, &answer);
    return answer;
  }

 private:
  absl::StatusOr<Communicator*> CommunicatorFor(const Variant& variant);
  absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(
      const Variant& variant);
  absl::StatusOr<Operands*> OperandsFor(const OperandShape& shape,
                                        Communicator* owner);
  absl::Status RunTask(const Task& task, Answer* answer);

  // Members refer to earlier ones.
  std::shared_ptr<Device> device_;  // Null for memory of the host.
  std::unique_ptr<Queue> queue_;    // Copies operands.
  Engine* engine_ = nullptr;        // Owned by plain_.
  Capabilities capabilities_;
  collectives::CommunicatorOptions options_;
  uint32_t groups_ = 1000;  // Above the group numbers of plain_.
  std::unique_ptr<Communicator> plain_;
  // [reproducible][adaptive]; created on first use.
  std::unique_ptr<Communicator> others_[2][2];
  // The operands of the last task; destroyed before the communicator, whose
  // memory they may hold.
  std::optional<Operands> operands_;
  OperandShape operands_shape_;
  const Communicator* operands_owner_ = nullptr;
};

absl::StatusOr<std::unique_ptr<RankSession>> RankSession::Create(
    absl::StatusOr<RankParts> made, const BenchEngine& kind,
    const JobSpec& spec) {
  TESSERA_ASSIGN_OR_RETURN(RankParts parts, std::move(made));
  auto session = std::make_unique<RankSession>();
  session->engine_ = parts.engine.get();
  session->capabilities_ =
      CapabilitiesOf(*parts.engine, parts.device != nullptr);
  TESSERA_ASSIGN_OR_RETURN(session->options_,
                           OptionsFor(spec.world, spec.group_size));
  TESSERA_ASSIGN_OR_RETURN(
      session->plain_,
      Communicator::Create(std::move(parts.engine), session->options_));
  if (parts.device == nullptr) return session;
  session->device_ = std::move(parts.device);
  TESSERA_ASSIGN_OR_RETURN(session->queue_,
                           session->device_->CreateQueue("operands"));
  TESSERA_ASSIGN_OR_RETURN(
      session->plain_,
      kind.on_device(std::move(session->plain_), *session->device_));
  return session;
}

// A second group of all ranks on the same engine.
absl::StatusOr<std::unique_ptr<Communicator>> RankSession::MakeCommunicator(
    const Variant& variant) {
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Engine> engine,
      collectives::Duplicate(*engine_, ++groups_, absl::Minutes(1)));
  collectives::CommunicatorOptions options = options_;
  options.reproducible = variant.reproducible;
  return variant.adaptive
             ? collectives::CreateAdaptiveCommunicator(std::move(engine),
                                                       std::move(options))
             : Communicator::Create(std::move(engine), std::move(options));
}

absl::StatusOr<Communicator*> RankSession::CommunicatorFor(
    const Variant& variant) {
  if (!variant.adaptive && !variant.reproducible) return plain_.get();
  std::unique_ptr<Communicator>& place =
      others_[variant.reproducible][variant.adaptive];
  if (place == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(place, MakeCommunicator(variant));
  }
  return place.get();
}

absl::StatusOr<Operands*> RankSession::OperandsFor(const OperandShape& shape,
                                                   Communicator* owner) {
  if (!operands_.has_value() || operands_owner_ != owner ||
      operands_shape_ != shape) {
    operands_.reset();
    TESSERA_ASSIGN_OR_RETURN(operands_,
                             Operands::Allocate(*owner, shape, queue_.get()));
    operands_shape_ = shape;
    operands_owner_ = owner;
  }
  return &*operands_;
}

absl::Status RankSession::RunTask(const Task& task, Answer* answer) {
  TESSERA_ASSIGN_OR_RETURN(Communicator* const communicator,
                           CommunicatorFor(task.variant));
  // Registered memory belongs to a communicator.
  Communicator* const owner =
      task.shape.registered ? communicator : plain_.get();
  TESSERA_ASSIGN_OR_RETURN(Operands* const operands,
                           OperandsFor(task.shape, owner));
  if (task.kind == TaskKind::kChoose) {
    TESSERA_ASSIGN_OR_RETURN(
        const collectives::Algorithm algorithm,
        communicator->AlgorithmFor(operands->operation(0)));
    answer->text =
        absl::StrCat(AlgorithmName(algorithm), "\n",
                     communicator->ExplainAlgorithm(operands->operation(0)));
    return absl::OkStatus();
  }
  OperationTimer timer(*communicator, task, *operands);
  TESSERA_ASSIGN_OR_RETURN(answer->seconds, task.kind == TaskKind::kOverlap
                                                ? timer.TimeOverlap()
                                                : timer.TimeBatches());
  return absl::OkStatus();
}

// Limit for steps that the parent takes immediately.
constexpr absl::Duration kSoon = absl::Seconds(30);

Deadline Soon() { return Deadline::After(kSoon); }
Deadline Never() { return Deadline::After(absl::Hours(10'000)); }

absl::StatusOr<UniqueFd> Greet(const std::string& name, int64_t rank) {
  TESSERA_ASSIGN_OR_RETURN(const auto address,
                           collectives::SocketAddress::Abstract(name));
  TESSERA_ASSIGN_OR_RETURN(UniqueFd socket,
                           collectives::Connect(address, Soon()));
  TESSERA_RETURN_IF_ERROR(collectives::CheckSameUser(socket));
  TESSERA_RETURN_IF_ERROR(
      SendStruct(socket, Greeting{.rank = rank, .pid = getpid()}, Soon()));
  return socket;
}

// Reports the start of the session, then executes tasks until the parent sends
// kQuit or closes the socket. The engine was created with the processors of all
// ranks; from now on this rank is bound to its share.
void RunRank(const UniqueFd& socket, absl::StatusOr<RankParts> parts,
             int64_t rank, const BenchEngine& kind, const JobSpec& spec) {
  if (spec.bind) {
    // Without permission the rank stays unbound.
    static_cast<void>(BindThisThread(
        ShareOfProcessors(AllowedProcessors(), rank, spec.world)));
  }
  const auto session = RankSession::Create(std::move(parts), kind, spec);
  Answer answer;
  answer.status = session.status();
  if (session.ok()) answer.capabilities = (*session)->capabilities();
  if (!SendAnswer(socket, answer, Soon()).ok() || !session.ok()) return;
  while (true) {
    const auto task = ReceiveStruct<Task>(socket, Never());
    if (!task.ok() || task->kind == TaskKind::kQuit) return;
    if (!SendAnswer(socket, (*session)->Execute(*task), Soon()).ok()) return;
  }
}

// The rank that the launcher gave this process: this tool, Open MPI, or a
// process manager that speaks PMI.
absl::StatusOr<int64_t> RankOfProcess() {
  for (const char* name :
       {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    const char* text = std::getenv(name);
    int64_t rank = -1;
    if (text != nullptr && absl::SimpleAtoi(text, &rank) && rank >= 0) {
      return rank;
    }
  }
  return absl::FailedPreconditionError(
      "the launcher has set no rank for this worker: RANK, "
      "OMPI_COMM_WORLD_RANK, PMIX_RANK or PMI_RANK");
}

// Null without inherited sockets.
absl::StatusOr<std::unique_ptr<collectives::Store>> OpenStore(Rank rank,
                                                              int64_t world) {
  const char* value = std::getenv(collectives::kInheritedSocketsVariable);
  if (value == nullptr) return nullptr;
  return collectives::OpenInheritedStore(value, rank, world,
                                         absl::Now() + kSoon);
}

// `store` outlives the engines.
absl::StatusOr<std::vector<RankParts>> MakeParts(
    const BenchEngine& kind, LocalRanks ranks,
    std::unique_ptr<collectives::Store>* store) {
  TESSERA_ASSIGN_OR_RETURN(*store, OpenStore(Rank(ranks.first), ranks.world));
  ranks.store = store->get();
  TESSERA_ASSIGN_OR_RETURN(auto engines, kind.make(ranks));
  std::vector<std::shared_ptr<Device>> devices(engines.size());
  if (kind.devices != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(devices, kind.devices(ranks));
  }
  std::vector<RankParts> parts;
  for (size_t i = 0; i < engines.size(); ++i) {
    parts.push_back({std::move(engines[i]), std::move(devices[i])});
  }
  return parts;
}

absl::Status ServeRanks(const std::string& socket_name, const JobSpec& spec) {
  TESSERA_ASSIGN_OR_RETURN(const BenchEngine kind,
                           FindBenchEngine(spec.device, spec.engine));
  LocalRanks ranks = {.world = spec.world};
  if (kind.launch == LaunchMethod::kThreads) {
    ranks.count = spec.world;
  } else {
    TESSERA_ASSIGN_OR_RETURN(ranks.first, RankOfProcess());
  }
  std::vector<UniqueFd> sockets;
  for (int64_t i = 0; i < ranks.count; ++i) {
    TESSERA_ASSIGN_OR_RETURN(sockets.emplace_back(),
                             Greet(socket_name, ranks.first + i));
  }
  // No worker can fail before the parent knows all of them.
  for (const UniqueFd& socket : sockets) {
    TESSERA_RETURN_IF_ERROR(ReceiveStruct<Greeting>(socket, Never()).status());
  }
  std::unique_ptr<collectives::Store> store;
  auto parts = MakeParts(kind, ranks, &store);
  const auto run = [&](size_t i) {
    const auto take = [&]() -> absl::StatusOr<RankParts> {
      if (!parts.ok()) return parts.status();
      return std::move((*parts)[i]);
    };
    RunRank(sockets[i], take(), ranks.first + static_cast<int64_t>(i), kind,
            spec);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < sockets.size(); ++i) others.emplace_back(run, i);
  run(0);
  for (std::thread& other : others) other.join();
  return absl::OkStatus();
}

}  // namespace

std::optional<int> RunWorker(int argc, char** argv) {
  JobSpec spec;
  std::string socket;
  if (!ReadWorkerArguments(argc, argv, &spec, &socket)) return std::nullopt;
  // Under mpirun the parent's parent is mpirun, which dies with the benchmark.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  // The socket has reported the cause, if the parent is still there.
  return ServeRanks(socket, spec).ok() ? 0 : 1;
}

}  // namespace tessera::tools
