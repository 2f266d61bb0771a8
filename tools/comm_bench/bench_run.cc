#include "tools/comm_bench/bench_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/communicator.h"
#include "collectives/engine/operation_context.h"
#include "nlohmann/json.hpp"
#include "tools/comm_bench/report.h"
#include "topology/rank.h"

namespace tessera::tools {
namespace {

using collectives::Algorithm;
using collectives::Communicator;
using collectives::MonotonicNanos;
using collectives::OpKind;
using collectives::ReduceOp;
using topology::Rank;

using Seconds = std::vector<double>;

constexpr int64_t kRounds = 5;
constexpr int64_t kCalibrations = 3;
// Time of a turn of a case if the number of iterations is not given.
constexpr double kCaseSeconds = 0.15;
constexpr int64_t kFewestIterations = 10;
constexpr int64_t kMostIterations = 400;

std::vector<Variant> Named(const std::string& name, const Capabilities& engine,
                           OpKind op) {
  if (name == "adaptive") return {{.adaptive = true}};
  // Default algorithms execute operations that the engine does not implement.
  if (name == AlgorithmName(Algorithm::kEngine)) return {{}};
  std::vector<Variant> variants;
  if (name == "all" && engine.Implements(op)) variants.push_back({});
  if (!engine.has_transport) return variants;
  for (const Algorithm algorithm :
       collectives::AlgorithmsFor(op, /*uneven=*/false)) {
    if (name == "all" || name == AlgorithmName(algorithm)) {
      variants.push_back({.algorithm = algorithm});
    }
  }
  return variants;
}

// An engine under test, and its ranks in this process.
struct Subject {
  BenchEngine engine;
  Capabilities capabilities = {};
  std::vector<std::unique_ptr<BenchRank>> local = {};
};

// The measurement of one variant on an engine, in place or not.
struct Turn {
  Subject* subject = nullptr;
  Task task;
  double single = 0;  // Seconds of one operation, as calibrated,
  double wall = 0;    // and of a whole iteration around it.
  int64_t per_round = 1;
  Seconds seconds = {};  // Of the slowest rank, for each iteration.
};

class Schedule {
 public:
  Schedule(const BenchOptions& options, const BenchPlace& place,
           const BenchEvents& events,
           const std::function<void(const absl::Status&)>& fail)
      : options_(options),
        place_(place),
        world_(place.world),
        events_(events),
        fail_(fail) {}

  absl::Status Start(collectives::Store& store) {
    TESSERA_ASSIGN_OR_RETURN(auto engine, MakeControlEngine(store));
    collectives::CommunicatorOptions options;
    options.name = "processes";
    options.timeout = absl::InfiniteDuration();
    TESSERA_ASSIGN_OR_RETURN(processes_,
                             Communicator::Create(std::move(engine), options));
    for (const std::string& name : options_.engines) {
      subjects_.push_back({.engine = {options_.device, name}});
    }
    for (Subject& subject : subjects_) {
      Announce(subject, "");
      TESSERA_RETURN_IF_ERROR(StartRanks(subject, store));
    }
    return absl::OkStatus();
  }

  absl::Status Run() {
    for (const OpKind op : options_.ops) {
      for (const DType dtype : options_.dtypes) {
        TESSERA_RETURN_IF_ERROR(RunReductions(op, dtype));
      }
    }
    return absl::OkStatus();
  }

 private:
  void Announce(const Subject& subject, std::string_view what) {
    where_ = absl::StrCat("engine ", subject.engine.name, " with ", world_,
                          " ranks", what);
    events_.on_progress(where_);
  }

  // Calls `run` for each local rank, on its processors. An error ends the
  // process.
  void ForEachRank(Subject& subject,
                   absl::FunctionRef<absl::Status(size_t)> run) {
    const int64_t first =
        subject.engine.IsThreads() ? 0 : processes_->rank().value();
    const auto run_rank = [&](size_t i) {
      const int64_t rank = first + static_cast<int64_t>(i);
      if (options_.bind) {
        // Without permission the rank stays unbound.
        static_cast<void>(BindThisThread(ShareOfProcessors(
            processors_, subject.engine.IsThreads() ? rank : place_.local_rank,
            place_.local_world)));
      }
      const absl::Status status = run(i);
      if (status.ok()) return;
      fail_(Annotate(status, absl::StrCat(where_, ": rank ", rank)));
    };
    if (!subject.engine.IsThreads()) return run_rank(0);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < subject.local.size(); ++i) {
      threads.emplace_back(run_rank, i);
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Engines are created with the processors of all ranks; afterwards each rank
  // is bound to its share.
  absl::Status StartRanks(Subject& subject, collectives::Store& store) {
    static_cast<void>(BindThisThread(processors_));
    Seconds capabilities(2);
    if (!subject.engine.IsThreads() || processes_->rank() == Rank(0)) {
      TESSERA_ASSIGN_OR_RETURN(
          std::vector<RankParts> parts, subject.engine.Make(world_, store),
          Annotate(_, absl::StrCat(where_, ": rank ", store.rank().value())));
      subject.local.resize(parts.size());
      ForEachRank(subject, [&](size_t i) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            subject.local[i],
            BenchRank::Create(options_, subject.engine, std::move(parts[i])));
        return absl::OkStatus();
      });
      const Capabilities own = subject.local[0]->capabilities();
      capabilities = {static_cast<double>(own.kinds),
                      own.has_transport ? 1. : 0};
    }
    // Processes without a rank need them, too.
    TESSERA_RETURN_IF_ERROR(Agree(capabilities));
    subject.capabilities = {static_cast<uint32_t>(capabilities[0]),
                            capabilities[1] > 0};
    return absl::OkStatus();
  }

  // The largest value that any process has, for each of them.
  absl::Status Agree(Seconds& values) {
    return processes_->AllReduce(collectives::Buffer(std::span(values)),
                                 collectives::Reduction::Max());
  }

  // The times of the slowest rank.
  absl::StatusOr<Seconds> Measure(const Turn& turn, const Task& task) {
    Subject& subject = *turn.subject;
    Announce(subject,
             absl::StrCat(", ", case_name_, ", ", task.variant.Name()));
    std::vector<Seconds> by_rank(subject.local.size());
    ForEachRank(subject, [&](size_t i) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(by_rank[i], subject.local[i]->Time(task));
      return absl::OkStatus();
    });
    Seconds slowest = SlowestOf(by_rank, static_cast<size_t>(task.iterations));
    TESSERA_RETURN_IF_ERROR(Agree(slowest));
    return slowest;
  }

  // Runs warm-up and a few batches of `batch` operations.
  absl::Status Calibrate(Turn& turn, int64_t batch) {
    Task task = turn.task;
    task.batch = batch;
    task.warmup = options_.warmup;
    task.iterations = kCalibrations;
    const int64_t begin = MonotonicNanos();
    TESSERA_ASSIGN_OR_RETURN(const Seconds seconds, Measure(turn, task));
    Seconds wall = {static_cast<double>(MonotonicNanos() - begin) * 1e-9};
    TESSERA_RETURN_IF_ERROR(Agree(wall));
    turn.wall = wall[0] / static_cast<double>(kCalibrations + options_.warmup);
    turn.single = Median(seconds);
    turn.wall -= turn.single * static_cast<double>(batch - 1);
    return absl::OkStatus();
  }

  // All use the same batch, so that costs of an iteration weigh alike.
  void PlanRounds(std::vector<Turn>& turns) const {
    double fastest = std::numeric_limits<double>::infinity();
    for (const Turn& turn : turns) fastest = std::min(fastest, turn.single);
    for (Turn& turn : turns) {
      turn.task.batch = options_.blocking ? 1 : BatchFor(fastest, on_device_);
      turn.task.first_iteration = options_.warmup + kCalibrations;
      const double iteration =
          turn.wall + turn.single * static_cast<double>(turn.task.batch - 1);
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
    task.warmup = 1;  // The ranks were asleep.
    task.iterations = turn.per_round;
    if (options_.iterations > 0) {
      task.iterations = std::min(task.iterations, options_.iterations - done);
    }
    if (task.iterations <= 0) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const Seconds seconds, Measure(turn, task));
    turn.seconds.insert(turn.seconds.end(), seconds.begin(), seconds.end());
    task.first_iteration += task.warmup + task.iterations;
    return absl::OkStatus();
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

  // Each variant of each engine, out of place, then in place.
  std::vector<Turn> TurnsOf(const Task& common) {
    std::vector<Turn> turns;
    for (Subject& subject : subjects_) {
      for (const Variant& variant :
           VariantsFor(options_, subject.capabilities, common.op)) {
        for (const bool in_place : {false, true}) {
          if (in_place && common.op == OpKind::kBarrier) continue;
          Turn& turn = turns.emplace_back(Turn{&subject, common});
          turn.task.variant = variant;
          turn.task.in_place = in_place;
        }
      }
    }
    return turns;
  }

  // Measures all variants in turns; a row for each, in their order.
  absl::Status RunCase(const Task& common) {
    case_name_ = absl::StrCat(OpKindName(common.op), " of ",
                              ByteSize(common.bytes).ToString(), " ",
                              DTypeName(common.dtype));
    std::vector<Turn> turns = TurnsOf(common);
    if (turns.empty()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(RunTurns(turns));
    const double first = std::max(Median(turns[0].seconds), 1e-12);
    for (size_t i = 0; i < turns.size(); ++i) {
      const Turn& turn = turns[i];
      Row row = {.engine = turn.subject->engine.name,
                 .algorithm = turn.task.variant.Name(),
                 .op = common.op,
                 .dtype = common.dtype,
                 .reduction = common.reduction,
                 .root = options_.root,
                 .world = world_,
                 .bytes = common.bytes,
                 .iterations = static_cast<int64_t>(turn.seconds.size()),
                 .seconds = Median(turn.seconds),
                 .checked = options_.check};
      row.ratio = row.seconds / first;
      if (common.op != OpKind::kBarrier) {
        row.in_place_seconds = Median(turns[++i].seconds);
      }
      events_.on_row(RowToJson(row), RowToText(row, last_ ? &*last_ : nullptr));
      last_ = std::move(row);
    }
    return absl::OkStatus();
  }

  absl::Status RunReductions(OpKind op, DType dtype) {
    for (const ReduceOp reduction : options_.reductions) {
      const bool is_valid =
          !collectives::Reduces(op) ||
          Validate(ReductionFor(reduction, dtype), dtype).ok();
      if (is_valid) TESSERA_RETURN_IF_ERROR(RunSizes(op, dtype, reduction));
      if (!collectives::Reduces(op)) break;
    }
    return absl::OkStatus();
  }

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

  const BenchOptions& options_;
  const bool on_device_ = options_.device != "cpu";
  const BenchPlace place_;
  const int64_t world_;
  const BenchEvents& events_;
  const std::function<void(const absl::Status&)>& fail_;
  const std::vector<int> processors_ = AllowedProcessors();
  std::unique_ptr<Communicator> processes_;
  std::string case_name_;
  std::string where_;  // Of the current measurement, for errors.
  std::vector<Subject> subjects_;
  std::optional<Row> last_;
};

}  // namespace

std::vector<Variant> VariantsFor(const BenchOptions& options,
                                 const Capabilities& engine, OpKind op) {
  std::vector<Variant> variants;
  for (const std::string& name : options.algorithms) {
    for (const Variant& variant : Named(name, engine, op)) {
      if (std::find(variants.begin(), variants.end(), variant) ==
          variants.end()) {
        variants.push_back(variant);
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

double Median(Seconds values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

absl::Status RunSchedule(const BenchOptions& options, const BenchPlace& place,
                         collectives::Store& store, const BenchEvents& events,
                         const std::function<void(const absl::Status&)>& fail) {
  Schedule schedule(options, place, events, fail);
  TESSERA_RETURN_IF_ERROR(schedule.Start(store));
  return schedule.Run();
}

}  // namespace tessera::tools
