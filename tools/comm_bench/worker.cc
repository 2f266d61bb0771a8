#include "tools/comm_bench/worker.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/adaptive/create_adaptive.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "collectives/engine/operation_context.h"
#include "tools/comm_bench/engine_catalogue.h"
#include "tools/comm_bench/task.h"

namespace tessera::tools {

namespace {

using collectives::Buffer;
using collectives::CallOptions;
using collectives::Communicator;
using collectives::MonotonicNanos;
using collectives::Reduction;
using collectives::Work;

// Seconds of `body` after a barrier. The barriers are the host's.
absl::StatusOr<double> TimeOnce(Communicator& communicator,
                                absl::FunctionRef<absl::Status()> body) {
  TESSERA_RETURN_IF_ERROR(communicator.host().Barrier());
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(body());
  const int64_t end = MonotonicNanos();
  // If ranks share processors, the next work of this rank would delay the
  // others.
  TESSERA_RETURN_IF_ERROR(communicator.host().Barrier());
  return static_cast<double>(end - begin) * 1e-9;
}

// On a device, enqueues all operations and waits for the last: they run in the
// order of the calls.
absl::Status RunBatch(Communicator& communicator, const CallOptions& call,
                      int64_t batch, const Operands& operands) {
  if (&communicator.host() != &communicator) {
    std::optional<Work> last;
    for (int64_t i = 0; i < batch; ++i) {
      TESSERA_ASSIGN_OR_RETURN(
          last,
          communicator.Start(operands.operation(i % operands.slots()), call));
    }
    return last->Wait();
  }
  for (int64_t i = 0; i < batch; ++i) {
    TESSERA_RETURN_IF_ERROR(
        communicator.Run(operands.operation(i % operands.slots()), call));
  }
  return absl::OkStatus();
}

// Arithmetic in registers and the first cache, about a microsecond a unit.
// Returns its result, so that the compiler keeps it.
double Compute(int64_t units) {
  std::array<double, 64> x;
  x.fill(1.0);
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int step = 0; step < 40; ++step) {
      for (double& value : x) value = value * 0.999999 + 1e-6;
    }
  }
  double sum = 0;
  for (double value : x) sum += value;
  return sum;
}

absl::Status CheckComputed(double result) {
  if (std::isfinite(result)) return absl::OkStatus();
  return absl::InternalError("the overlapped computation has a wrong result");
}

// The units that take as long as an operation on the slowest rank; the same on
// all ranks.
absl::StatusOr<int64_t> CalibrateUnits(Communicator& communicator,
                                       const CallOptions& call,
                                       Operands& operands) {
  constexpr int kRuns = 5;
  constexpr int64_t kUnits = 200;
  std::array<double, 2> fastest = {1e9, 1e9};
  for (int run = 0; run < kRuns; ++run) {
    TESSERA_RETURN_IF_ERROR(operands.Rewrite(run));
    TESSERA_ASSIGN_OR_RETURN(
        const double operation, TimeOnce(communicator, [&] {
          return communicator.Run(operands.operation(0), call);
        }));
    TESSERA_ASSIGN_OR_RETURN(const double compute, TimeOnce(communicator, [&] {
                               return CheckComputed(Compute(kUnits));
                             }));
    fastest = {std::min(fastest[0], operation), std::min(fastest[1], compute)};
  }
  TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
      Buffer(fastest.data(), 2, DType::kF64), Reduction::Max()));
  return std::max<int64_t>(
      1, std::llround(static_cast<double>(kUnits) * fastest[0] / fastest[1]));
}

// Seconds of one operation for each of task.iterations. `operands` have
// task.batch slots, or one that serves all.
absl::StatusOr<std::vector<double>> TimeOperation(Communicator& communicator,
                                                  const CallOptions& call,
                                                  const Task& task,
                                                  Operands& operands) {
  std::vector<double> seconds;
  const int64_t total = task.warmup + task.iterations;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t iteration = task.first_iteration + i;
    TESSERA_RETURN_IF_ERROR(operands.Rewrite(iteration));
    TESSERA_ASSIGN_OR_RETURN(const double elapsed, TimeOnce(communicator, [&] {
                               return RunBatch(communicator, call, task.batch,
                                               operands);
                             }));
    if (i >= task.warmup) {
      seconds.push_back(elapsed / static_cast<double>(task.batch));
    }
    if (task.check && (i == 0 || i == total - 1)) {
      TESSERA_RETURN_IF_ERROR(operands.Check(iteration));
    }
  }
  return seconds;
}

// Three times for each iteration: of a computation that takes about as long as
// the operation, of the operation, and of both with the operation started
// first.
absl::StatusOr<std::vector<double>> TimeOverlap(Communicator& communicator,
                                                const CallOptions& call,
                                                const Task& task,
                                                Operands& operands) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t units,
                           CalibrateUnits(communicator, call, operands));
  std::vector<double> seconds;
  for (int64_t i = 0; i < task.iterations; ++i) {
    const int64_t iteration = task.first_iteration + i;
    TESSERA_RETURN_IF_ERROR(operands.Rewrite(iteration));
    TESSERA_ASSIGN_OR_RETURN(const double compute, TimeOnce(communicator, [&] {
                               return CheckComputed(Compute(units));
                             }));
    TESSERA_ASSIGN_OR_RETURN(
        const double operation, TimeOnce(communicator, [&] {
          return communicator.Run(operands.operation(0), call);
        }));
    TESSERA_RETURN_IF_ERROR(operands.Rewrite(iteration + 1));
    TESSERA_ASSIGN_OR_RETURN(
        const double both, TimeOnce(communicator, [&]() -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(
              const Work work, communicator.Start(operands.operation(0), call));
          TESSERA_RETURN_IF_ERROR(CheckComputed(Compute(units)));
          return work.Wait();
        }));
    seconds.insert(seconds.end(), {compute, operation, both});
    if (task.check && (i == 0 || i == task.iterations - 1)) {
      TESSERA_RETURN_IF_ERROR(operands.Check(iteration + 1));
    }
  }
  return seconds;
}

using collectives::Engine;
using topology::Rank;

Capabilities CapabilitiesOf(Engine& engine) {
  Capabilities capabilities;
  capabilities.has_transport = engine.transport() != nullptr;
  for (const collectives::OpKind kind : collectives::kCollectiveKinds) {
    if (engine.Implements(kind)) {
      capabilities.kinds |= uint32_t{1} << static_cast<int>(kind);
    }
  }
  return capabilities;
}

// In place every operation of a batch needs its own buffers.
int64_t SlotsOf(const Task& task) { return task.in_place ? task.batch : 1; }

bool HaveSameOperands(const Task& a, const Task& b) {
  return a.op == b.op && a.dtype == b.dtype && a.in_place == b.in_place &&
         a.registered == b.registered && a.reduction == b.reduction &&
         a.count == b.count && SlotsOf(a) == SlotsOf(b);
}

CallOptions CallOf(const Task& task) {
  CallOptions call;
  if (task.source == AlgorithmSource::kAlgorithm)
    call.algorithm = task.algorithm;
  return call;
}

}  // namespace

Capabilities Capabilities::Unpack(double packed) {
  const auto bits = static_cast<uint64_t>(packed);
  return {static_cast<uint32_t>(bits >> 1), (bits & 1) != 0};
}

absl::StatusOr<std::unique_ptr<RankSession>> RankSession::CreateOnDevice(
    std::shared_ptr<Device> device,
    std::unique_ptr<Communicator> communicator) {
  std::unique_ptr<RankSession> session(new RankSession());
  session->device_ = std::move(device);
  TESSERA_ASSIGN_OR_RETURN(session->queue_,
                           session->device_->CreateQueue("operands"));
  for (const collectives::OpKind kind : collectives::kCollectiveKinds) {
    session->capabilities_.kinds |= uint32_t{1} << static_cast<int>(kind);
  }
  session->plain_ = std::move(communicator);
  return session;
}

absl::StatusOr<std::unique_ptr<RankSession>> RankSession::Create(
    std::unique_ptr<Engine> engine, int64_t group_size) {
  std::unique_ptr<RankSession> session(new RankSession());
  session->engine_ = engine.get();
  session->capabilities_ = CapabilitiesOf(*engine);
  if (group_size > 0) {
    std::vector<int64_t> labels;
    for (int64_t r = 0; r < engine->size(); ++r) {
      labels.push_back(r / group_size);
    }
    TESSERA_ASSIGN_OR_RETURN(
        collectives::Hierarchy hierarchy,
        collectives::Hierarchy::FromLabels(std::span(&labels, 1)));
    session->options_.hierarchy =
        std::make_shared<collectives::Hierarchy>(std::move(hierarchy));
  }
  TESSERA_ASSIGN_OR_RETURN(
      session->plain_,
      Communicator::Create(std::move(engine), session->options_));
  return session;
}

// A second group of all ranks on the same engine.
absl::StatusOr<std::unique_ptr<Communicator>> RankSession::MakeCommunicator(
    const Task& task) {
  std::vector<Rank> everyone;
  for (int64_t r = 0; r < plain_->size(); ++r) everyone.push_back(Rank(r));
  constexpr int64_t kTimeout = 60'000'000'000;
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Engine> engine,
      engine_->CreateSubgroup(everyone, ++groups_,
                              MonotonicNanos() + kTimeout));
  collectives::CommunicatorOptions options = options_;
  options.reproducible = task.reproducible;
  if (task.source != AlgorithmSource::kAdaptive) {
    return Communicator::Create(std::move(engine), std::move(options));
  }
  return collectives::CreateAdaptiveCommunicator(std::move(engine),
                                                 std::move(options));
}

absl::StatusOr<Communicator*> RankSession::CommunicatorFor(const Task& task) {
  const bool adaptive = task.source == AlgorithmSource::kAdaptive;
  if (!adaptive && !task.reproducible) return plain_.get();
  if (engine_ == nullptr) {
    return absl::UnimplementedError(
        "a device has no adaptive algorithm and no reproducible mode here");
  }
  std::unique_ptr<Communicator>& place = others_[task.reproducible][adaptive];
  if (place == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(place, MakeCommunicator(task));
  }
  return place.get();
}

absl::StatusOr<Operands*> RankSession::OperandsFor(const Task& task,
                                                   Communicator* owner) {
  if (operands_.has_value() && operands_owner_ == owner &&
      HaveSameOperands(task, operands_task_)) {
    return &*operands_;
  }
  operands_.reset();
  OperandShape shape;
  shape.kind = task.op;
  shape.dtype = task.dtype;
  shape.reduction = task.reduction;
  shape.count = task.count;
  shape.in_place = task.in_place;
  shape.registered = task.registered;
  shape.slots = SlotsOf(task);
  TESSERA_ASSIGN_OR_RETURN(Operands operands,
                           Operands::Allocate(*owner, shape, queue_.get()));
  operands_.emplace(std::move(operands));
  operands_task_ = task;
  operands_owner_ = owner;
  return &*operands_;
}

absl::Status RankSession::RunTask(const Task& task, Answer* answer) {
  TESSERA_ASSIGN_OR_RETURN(Communicator* const communicator,
                           CommunicatorFor(task));
  // Registered memory belongs to a communicator.
  Communicator* const owner = task.registered ? communicator : plain_.get();
  TESSERA_ASSIGN_OR_RETURN(Operands* const operands, OperandsFor(task, owner));
  if (task.kind == TaskKind::kChoose) {
    TESSERA_ASSIGN_OR_RETURN(
        const collectives::Algorithm algorithm,
        communicator->AlgorithmFor(operands->operation(0)));
    answer->text =
        absl::StrCat(AlgorithmName(algorithm), "\n",
                     communicator->ExplainAlgorithm(operands->operation(0)));
    return absl::OkStatus();
  }
  const auto time =
      task.kind == TaskKind::kOverlap ? TimeOverlap : TimeOperation;
  TESSERA_ASSIGN_OR_RETURN(answer->seconds,
                           time(*communicator, CallOf(task), task, *operands));
  return absl::OkStatus();
}

Answer RankSession::Execute(const Task& task) {
  Answer answer;
  answer.status = RunTask(task, &answer);
  return answer;
}

namespace {

using collectives::CheckSameUser;
using collectives::Connect;
using collectives::Deadline;
using collectives::ReceiveAll;
using collectives::SocketAddress;

constexpr std::string_view kWorkerArgument = "--comm_bench_worker";

// Limit for steps that the parent takes immediately.
constexpr absl::Duration kSoon = absl::Seconds(30);

Deadline Soon() { return Deadline::After(kSoon); }
Deadline Never() { return Deadline::After(absl::Hours(10'000)); }

absl::StatusOr<UniqueFd> Greet(const std::string& name, int64_t rank) {
  TESSERA_ASSIGN_OR_RETURN(const SocketAddress address,
                           SocketAddress::Abstract(name));
  TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, Connect(address, Soon()));
  TESSERA_RETURN_IF_ERROR(CheckSameUser(socket));
  Greeting greeting;
  greeting.rank = rank;
  greeting.pid = getpid();
  TESSERA_RETURN_IF_ERROR(SendGreeting(socket, greeting, Soon()));
  return socket;
}

absl::StatusOr<WorkerSetup> ReceiveSetup(const UniqueFd& socket) {
  WorkerSetup setup;
  TESSERA_RETURN_IF_ERROR(ReceiveAll(
      socket, {reinterpret_cast<char*>(&setup), sizeof(setup)}, Never()));
  setup.device[sizeof(setup.device) - 1] = '\0';
  setup.engine[sizeof(setup.engine) - 1] = '\0';
  return setup;
}

// The rank's engine, and its device, if it has one.
struct RankParts {
  std::unique_ptr<Engine> engine;
  std::shared_ptr<Device> device;
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      std::unique_ptr<Communicator>, Device&)>
      communicator;
};

absl::StatusOr<std::unique_ptr<RankSession>> StartSession(
    absl::StatusOr<RankParts> parts, const WorkerSetup& setup) {
  if (!parts.ok()) return parts.status();
  if (parts->device == nullptr) {
    return RankSession::Create(std::move(parts->engine), setup.group_size);
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> host,
                           Communicator::Create(std::move(parts->engine)));
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> communicator,
      parts->communicator(std::move(host), *parts->device));
  return RankSession::CreateOnDevice(std::move(parts->device),
                                     std::move(communicator));
}

// Executes tasks until the parent sends kQuit or closes the socket.
void Serve(const UniqueFd& socket, RankSession& session) {
  while (true) {
    const absl::StatusOr<Task> task = ReceiveTask(socket, Never());
    if (!task.ok() || task->kind == TaskKind::kQuit) return;
    if (!SendAnswer(socket, session.Execute(*task), Soon()).ok()) return;
  }
}

// Reports the start of the session, then serves. The engine was created with
// the processors of all ranks; afterwards this rank is bound to its share.
void RunRank(const UniqueFd& socket, absl::StatusOr<RankParts> parts, Rank rank,
             const WorkerSetup& setup) {
  if (setup.bind) {
    // Without permission the rank stays unbound.
    static_cast<void>(BindThisThread(
        ShareOfProcessors(AllowedProcessors(), rank.value(), setup.world)));
  }
  const auto session = StartSession(std::move(parts), setup);
  Answer answer;
  answer.status = session.status();
  if (session.ok()) {
    answer.seconds.push_back((*session)->capabilities().Pack());
  }
  if (!SendAnswer(socket, answer, Soon()).ok() || !session.ok()) return;
  Serve(socket, **session);
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

absl::StatusOr<RankParts> MakeOne(
    const EngineCatalogue& catalogue, const WorkerSetup& setup,
    const absl::StatusOr<std::unique_ptr<collectives::Store>>& store,
    Rank rank) {
  if (!store.ok()) return store.status();
  TESSERA_ASSIGN_OR_RETURN(const EngineEntry entry,
                           catalogue.Find(setup.device, setup.engine));
  EngineRank arguments;
  arguments.rank = rank;
  arguments.world = setup.world;
  arguments.store = store->get();
  RankParts parts;
  TESSERA_ASSIGN_OR_RETURN(parts.engine, entry.make_one(arguments));
  if (!entry.on_device.has_value()) return parts;
  TESSERA_ASSIGN_OR_RETURN(const auto devices,
                           entry.on_device->devices(rank.value(), 1));
  parts.device = devices[0];
  parts.communicator = entry.on_device->communicator;
  return parts;
}

absl::Status RunProcess(const std::string& name,
                        const EngineCatalogue& catalogue) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t rank, RankOfProcess());
  TESSERA_ASSIGN_OR_RETURN(const UniqueFd socket, Greet(name, rank));
  TESSERA_ASSIGN_OR_RETURN(const WorkerSetup setup, ReceiveSetup(socket));
  const auto store = OpenStore(Rank(rank), setup.world);
  RunRank(socket, MakeOne(catalogue, setup, store, Rank(rank)), Rank(rank),
          setup);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RankParts>> MakeAll(const EngineCatalogue& catalogue,
                                               const WorkerSetup& setup) {
  TESSERA_ASSIGN_OR_RETURN(const EngineEntry entry,
                           catalogue.Find(setup.device, setup.engine));
  TESSERA_ASSIGN_OR_RETURN(auto engines, entry.make_all(setup.world));
  std::vector<RankParts> all(engines.size());
  for (size_t r = 0; r < all.size(); ++r) {
    all[r].engine = std::move(engines[r]);
  }
  if (!entry.on_device.has_value()) return all;
  TESSERA_ASSIGN_OR_RETURN(const auto devices,
                           entry.on_device->devices(0, setup.world));
  for (size_t r = 0; r < all.size(); ++r) {
    all[r].device = devices[r];
    all[r].communicator = entry.on_device->communicator;
  }
  return all;
}

absl::Status RunThreads(const std::string& name, int64_t threads,
                        const EngineCatalogue& catalogue) {
  std::vector<UniqueFd> sockets;
  for (int64_t rank = 0; rank < threads; ++rank) {
    TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, Greet(name, rank));
    sockets.push_back(std::move(socket));
  }
  WorkerSetup setup;
  for (const UniqueFd& socket : sockets) {
    TESSERA_ASSIGN_OR_RETURN(setup, ReceiveSetup(socket));
  }
  auto parts = MakeAll(catalogue, setup);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < sockets.size(); ++r) {
    ranks.emplace_back([&, r] {
      const Rank rank(static_cast<int64_t>(r));
      if (parts.ok()) {
        RunRank(sockets[r], std::move((*parts)[r]), rank, setup);
      } else {
        RunRank(sockets[r], parts.status(), rank, setup);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> WorkerArguments(const std::string& socket,
                                         int64_t threads) {
  return {std::string(kWorkerArgument), socket, absl::StrCat(threads)};
}

bool IsWorker(int argc, char** argv) {
  return argc == 4 && argv[1] == kWorkerArgument;
}

int RunWorker(int argc, char** argv, const EngineCatalogue& catalogue) {
  // Under mpirun the parent's parent is mpirun, which dies with the benchmark.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  int64_t threads = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[3], &threads)) return 2;
  const absl::Status status = threads > 0
                                  ? RunThreads(argv[2], threads, catalogue)
                                  : RunProcess(argv[2], catalogue);
  // The socket has reported the cause, if the parent is still there.
  return status.ok() ? 0 : 1;
}

}  // namespace tessera::tools
