#include "tools/comm_bench/bench_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/engine/operation_context.h"
#include "tools/cli/cli.h"
#include "tools/comm_bench/job.h"
#include "tools/comm_bench/operands.h"
#include "tools/comm_bench/report.h"
#include "tools/comm_bench/traffic_meter.h"

namespace tessera::tools {

namespace {

using collectives::Algorithm;
using collectives::OpKind;

Variant Of(Algorithm algorithm) {
  Variant variant;
  variant.name = std::string(AlgorithmName(algorithm));
  if (algorithm != Algorithm::kEngine) {
    variant.source = AlgorithmSource::kAlgorithm;
    variant.algorithm = algorithm;
  }
  return variant;
}

bool HasAlgorithm(const Capabilities& engine, OpKind op, Algorithm algorithm) {
  if (algorithm == Algorithm::kEngine) return engine.Implements(op);
  return engine.has_transport &&
         collectives::Supports(algorithm, op, /*uneven=*/false);
}

std::vector<Variant> All(const Capabilities& engine, OpKind op) {
  std::vector<Variant> all;
  for (const Algorithm algorithm : collectives::kAllAlgorithms) {
    if (HasAlgorithm(engine, op, algorithm)) all.push_back(Of(algorithm));
  }
  return all;
}

std::vector<Variant> Named(const std::string& name, const Capabilities& engine,
                           OpKind op) {
  if (name == "all") return All(engine, op);
  Variant variant;
  variant.name = name;
  if (name == "adaptive") {
    variant.source = AlgorithmSource::kAdaptive;
    return {variant};
  }
  // Default algorithms execute operations that the engine does not implement.
  if (name == AlgorithmName(Algorithm::kEngine)) return {variant};
  const auto algorithm = collectives::ParseAlgorithm(name);
  if (!algorithm.ok() || !HasAlgorithm(engine, op, *algorithm)) return {};
  return {Of(*algorithm)};
}

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
  if (!options.reproducible || !Reduces(op)) return variants;
  const size_t usual = variants.size();
  for (size_t i = 0; i < usual; ++i) {
    Variant variant = variants[i];
    absl::StrAppend(&variant.name, "+reproducible");
    variant.reproducible = true;
    variants.push_back(std::move(variant));
  }
  return variants;
}

namespace {

using collectives::MonotonicNanos;

constexpr double kBatchSeconds = 40e-6;
constexpr int64_t kMaxBatch = 64;
constexpr int64_t kRounds = 5;
constexpr int64_t kCalibrations = 3;
// Time of a variant of a case if the number of iterations is not given.
constexpr double kCaseSeconds = 0.3;
constexpr int64_t kFewestIterations = 10;
constexpr int64_t kMostIterations = 400;

// A variant on an engine.
struct Contestant {
  Job* job = nullptr;
  Variant variant;
};

struct BenchCase {
  collectives::OpKind op = collectives::OpKind::kAllReduce;
  DType dtype = DType::kF32;
  int64_t count = 0;  // As in OperandShape.
  int64_t world = 1;
};

// The measurement of one contestant.
struct Turn {
  Contestant contestant;
  Task task;
  double single = 0;  // Seconds of one operation, as calibrated,
  double wall = 0;    // and of a whole iteration around it.
  int64_t per_round = 1;
  std::vector<std::vector<double>> by_rank;
};

Task TaskOf(const BenchOptions& options, const BenchCase& bench_case,
            const Variant& variant) {
  Task task;
  task.kind = TaskKind::kTime;
  task.source = variant.source;
  task.algorithm = variant.algorithm;
  task.reproducible = variant.reproducible;
  task.op = bench_case.op;
  task.dtype = bench_case.dtype;
  task.count = bench_case.count;
  task.reduction = ReductionFor(options.reduction.op, bench_case.dtype);
  task.in_place = options.in_place;
  task.registered = options.registered;
  task.check = options.check;
  return task;
}

std::string NameOf(const Contestant& contestant) {
  return absl::StrCat(contestant.job->spec().engine, " ",
                      contestant.variant.name);
}

absl::StatusOr<std::vector<Answer>> AskFor(const Contestant& contestant,
                                           const Task& task) {
  auto answers = contestant.job->Ask(task);
  if (answers.ok()) return answers;
  return Annotate(answers.status(),
                  absl::StrCat("algorithm ", contestant.variant.name));
}

// Runs warm-up and a few single operations.
absl::Status Calibrate(const BenchOptions& options, Turn* turn) {
  Task task = turn->task;
  task.warmup = options.warmup;
  task.iterations = kCalibrations;
  const int64_t begin = MonotonicNanos();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                           AskFor(turn->contestant, task));
  const double wall = static_cast<double>(MonotonicNanos() - begin) * 1e-9 /
                      static_cast<double>(kCalibrations + options.warmup);
  std::vector<std::vector<double>> by_rank;
  for (const Answer& answer : answers) by_rank.push_back(answer.seconds);
  turn->single = MedianOfSlowest(by_rank);
  turn->wall = wall;
  turn->by_rank.resize(answers.size());
  return absl::OkStatus();
}

// All use the same batch, so that costs of an iteration weigh alike.
void PlanRounds(const BenchOptions& options, std::vector<Turn>& turns) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const Turn& turn : turns) fastest = std::min(fastest, turn.single);
  for (Turn& turn : turns) {
    turn.task.batch = BatchFor(fastest);
    turn.task.first_iteration = options.warmup + kCalibrations;
    const double iteration =
        turn.wall + turn.single * static_cast<double>(turn.task.batch - 1);
    int64_t iterations = options.iterations;
    if (iterations == 0) {
      iterations = std::clamp(
          static_cast<int64_t>(kCaseSeconds / std::max(iteration, 1e-7)),
          kFewestIterations, kMostIterations);
    }
    turn.per_round = (iterations + kRounds - 1) / kRounds;
  }
}

absl::Status RunRound(int64_t most, Turn* turn) {
  const auto done = static_cast<int64_t>(turn->by_rank[0].size());
  Task& task = turn->task;
  task.warmup = 1;  // The processes were asleep.
  task.iterations = turn->per_round;
  if (most > 0) task.iterations = std::min(task.iterations, most - done);
  if (task.iterations <= 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                           AskFor(turn->contestant, task));
  for (size_t r = 0; r < answers.size(); ++r) {
    turn->by_rank[r].insert(turn->by_rank[r].end(), answers[r].seconds.begin(),
                            answers[r].seconds.end());
  }
  task.first_iteration += task.warmup + task.iterations;
  return absl::OkStatus();
}

// The median over iterations of the slowest rank, for each of the three times.
absl::StatusOr<Overlap> MeasureOverlap(const Turn& turn) {
  constexpr int64_t kIterations = 10;
  Task task = turn.task;
  task.kind = TaskKind::kOverlap;
  task.batch = 1;
  task.iterations = kIterations;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                           AskFor(turn.contestant, task));
  std::array<double, 3> medians;
  for (size_t part = 0; part < medians.size(); ++part) {
    std::vector<std::vector<double>> by_rank(answers.size());
    for (size_t r = 0; r < answers.size(); ++r) {
      const std::vector<double>& seconds = answers[r].seconds;
      for (size_t i = part; i < seconds.size(); i += medians.size()) {
        by_rank[r].push_back(seconds[i]);
      }
    }
    medians[part] = MedianOfSlowest(by_rank);
  }
  return Overlap{medians[0], medians[1], medians[2]};
}

Row RowOf(const BenchCase& bench_case, const Turn& turn) {
  Row row;
  row.engine = turn.contestant.job->spec().engine;
  row.algorithm = turn.contestant.variant.name;
  row.op = bench_case.op;
  row.dtype = bench_case.dtype;
  row.world = bench_case.world;
  row.bytes = MessageBytes(bench_case.op, bench_case.dtype, bench_case.count,
                           bench_case.world);
  row.iterations = static_cast<int64_t>(turn.by_rank[0].size());
  row.seconds = MedianOfSlowest(turn.by_rank);
  return row;
}

absl::Status RunTurns(
    const BenchOptions& options, std::vector<Turn>& turns,
    const std::function<void(const std::string&)>& on_progress) {
  for (Turn& turn : turns) {
    on_progress(NameOf(turn.contestant));
    TESSERA_RETURN_IF_ERROR(Calibrate(options, &turn));
  }
  PlanRounds(options, turns);
  for (int64_t round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < turns.size(); ++i) {
      Turn& turn = turns[round % 2 == 0 ? i : turns.size() - 1 - i];
      on_progress(NameOf(turn.contestant));
      TESSERA_RETURN_IF_ERROR(RunRound(options.iterations, &turn));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t BatchFor(double seconds) {
  if (seconds >= kBatchSeconds) return 1;
  const double batch = std::ceil(kBatchSeconds / std::max(seconds, 1e-9));
  return std::min(kMaxBatch, static_cast<int64_t>(batch));
}

double MedianOfSlowest(const std::vector<std::vector<double>>& by_rank) {
  std::vector<double> slowest = by_rank[0];
  for (const std::vector<double>& rank : by_rank) {
    for (size_t i = 0; i < slowest.size(); ++i) {
      slowest[i] = std::max(slowest[i], rank[i]);
    }
  }
  if (slowest.empty()) return 0;
  std::sort(slowest.begin(), slowest.end());
  const size_t middle = slowest.size() / 2;
  if (slowest.size() % 2 == 1) return slowest[middle];
  return (slowest[middle - 1] + slowest[middle]) / 2;
}

namespace {

// Measures all variants in turns; a row for each contestant, in their order.
absl::StatusOr<std::vector<Row>> MeasureCase(
    const BenchOptions& options, const BenchCase& bench_case,
    const std::vector<Contestant>& contestants,
    const std::function<void(const std::string&)>& on_progress) {
  std::vector<Turn> turns;
  for (const Contestant& contestant : contestants) {
    Turn turn;
    turn.contestant = contestant;
    turn.task = TaskOf(options, bench_case, contestant.variant);
    turns.push_back(std::move(turn));
  }
  TESSERA_RETURN_IF_ERROR(RunTurns(options, turns, on_progress));
  std::vector<Row> rows;
  for (const Turn& turn : turns) {
    rows.push_back(RowOf(bench_case, turn));
    Row& row = rows.back();
    row.ratio = row.seconds / std::max(rows[0].seconds, 1e-12);
    if (options.overlap) {
      on_progress(NameOf(turn.contestant));
      TESSERA_ASSIGN_OR_RETURN(row.overlap, MeasureOverlap(turn));
    }
  }
  return rows;
}

// Sets the choice of the adaptive chooser of each job on the rows.
absl::Status AddChoices(const BenchOptions& options,
                        const BenchCase& bench_case,
                        const std::vector<Contestant>& contestants,
                        std::vector<Row>* rows) {
  const Job* last = nullptr;
  for (const Contestant& contestant : contestants) {
    if (contestant.job == last) continue;
    last = contestant.job;
    Variant variant;
    variant.name = "adaptive";
    variant.source = AlgorithmSource::kAdaptive;
    Task task = TaskOf(options, bench_case, variant);
    task.kind = TaskKind::kChoose;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                             AskFor({contestant.job, variant}, task));
    const std::string& text = answers[0].text;
    for (const Answer& answer : answers) {
      if (answer.text == text) continue;
      return absl::InternalError(absl::StrCat(
          "engine ", last->spec().engine,
          ": ranks differ in the adaptive choice:\n", text, "\n", answer.text));
    }
    SetChoice(*rows, last->spec().engine, text.substr(0, text.find('\n')));
  }
  return absl::OkStatus();
}

// The measurements with one number of ranks.
class World {
 public:
  World(const BenchOptions& options, const EngineCatalogue& catalogue,
        const SignalWatch* signals, const BenchEvents& events, int64_t world)
      : options_(options),
        catalogue_(catalogue),
        signals_(signals),
        events_(events),
        world_(world) {}

  absl::Status Run() {
    TESSERA_RETURN_IF_ERROR(Start());
    for (const OpKind op : options_.ops) {
      for (const DType dtype : options_.dtypes) {
        TESSERA_RETURN_IF_ERROR(RunSizes(op, dtype));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Start() {
    if (options_.bound) {
      // Without enough memory the bound is left out.
      auto meter = TrafficMeter::Start(world_, options_.sizes.back() + 4096);
      if (meter.ok()) meter_ = *std::move(meter);
    }
    for (const std::string& engine : options_.engines) {
      events_.on_progress(absl::StrCat("starting ", engine));
      JobSpec spec;
      spec.catalogue = &catalogue_;
      spec.device = options_.device;
      spec.engine = engine;
      spec.world = world_;
      spec.group_size = options_.group_size;
      spec.bind = options_.bind;
      spec.signals = signals_;
      TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Job> job, Job::Start(spec));
      jobs_.push_back(std::move(job));
    }
    return absl::OkStatus();
  }

  std::vector<Contestant> ContestantsFor(OpKind op) const {
    std::vector<Contestant> contestants;
    for (const std::unique_ptr<Job>& job : jobs_) {
      for (Variant& variant : VariantsFor(options_, job->capabilities(), op)) {
        contestants.push_back({job.get(), std::move(variant)});
      }
    }
    return contestants;
  }

  absl::Status RunSizes(OpKind op, DType dtype) {
    const std::vector<Contestant> contestants = ContestantsFor(op);
    if (contestants.empty()) return absl::OkStatus();
    int64_t last = -1;  // Small sizes may round to the same count.
    for (const int64_t size : options_.sizes) {
      BenchCase bench_case;
      bench_case.op = op;
      bench_case.dtype = dtype;
      bench_case.world = world_;
      bench_case.count = CountFor(op, dtype, size, world_);
      if (std::exchange(last, bench_case.count) == bench_case.count) continue;
      TESSERA_RETURN_IF_ERROR(RunCase(bench_case, contestants));
    }
    return absl::OkStatus();
  }

  absl::Status RunCase(const BenchCase& bench_case,
                       const std::vector<Contestant>& contestants) {
    const int64_t bytes =
        MessageBytes(bench_case.op, bench_case.dtype, bench_case.count, world_);
    const std::string case_name = absl::StrCat(
        world_, " ranks, ", OpKindName(bench_case.op), " of ",
        ByteSize(bytes).ToString(), " ", DTypeName(bench_case.dtype), ": ");
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<Row> rows,
        MeasureCase(options_, bench_case, contestants,
                    [&](const std::string& variant) {
                      events_.on_progress(absl::StrCat(case_name, variant));
                    }));
    if (options_.regret) {
      TESSERA_RETURN_IF_ERROR(
          AddChoices(options_, bench_case, contestants, &rows));
    }
    TESSERA_RETURN_IF_ERROR(AddBound(bench_case.op, bytes, rows));
    events_.on_case(rows);
    return absl::OkStatus();
  }

  absl::Status AddBound(OpKind op, int64_t bytes, std::vector<Row>& rows) {
    if (meter_ == nullptr || op == OpKind::kBarrier) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const double bound, meter_->Measure(op, bytes),
                             Annotate(_, "memory-traffic bound"));
    for (Row& row : rows) row.bound_seconds = bound;
    return absl::OkStatus();
  }

  const BenchOptions& options_;
  const EngineCatalogue& catalogue_;
  const SignalWatch* signals_;
  const BenchEvents& events_;
  int64_t world_;
  std::unique_ptr<TrafficMeter> meter_;
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace

absl::Status RunBenchmark(const BenchOptions& options,
                          const EngineCatalogue& catalogue,
                          const SignalWatch* signals,
                          const BenchEvents& events) {
  for (const std::string& engine : options.engines) {
    TESSERA_RETURN_IF_ERROR(catalogue.Find(options.device, engine).status(),
                            FlagError("engine", engine, _));
  }
  for (const int64_t world : options.worlds) {
    World run(options, catalogue, signals, events, world);
    TESSERA_RETURN_IF_ERROR(run.Run());
  }
  return absl::OkStatus();
}

}  // namespace tessera::tools
