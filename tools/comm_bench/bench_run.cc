#include "tools/comm_bench/bench_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/engine/operation_context.h"
#include "tools/cli/cli.h"
#include "tools/comm_bench/bench_engines.h"
#include "tools/comm_bench/job.h"
#include "tools/comm_bench/operands.h"
#include "tools/comm_bench/traffic_meter.h"

namespace tessera::tools {

namespace {

using collectives::Algorithm;
using collectives::MonotonicNanos;
using collectives::OpKind;

bool HasAlgorithm(const Capabilities& engine, OpKind op, Algorithm algorithm) {
  if (algorithm == Algorithm::kEngine) return engine.Implements(op);
  return engine.has_transport &&
         collectives::Supports(algorithm, op, /*uneven=*/false);
}

Variant VariantOf(Algorithm algorithm) {
  if (algorithm == Algorithm::kEngine) return {};
  return {.algorithm = algorithm};
}

std::vector<Variant> Named(const std::string& name, const Capabilities& engine,
                           OpKind op) {
  if (name == "adaptive") return {{.adaptive = true}};
  // Default algorithms execute operations that the engine does not implement.
  if (name == AlgorithmName(Algorithm::kEngine)) return {{}};
  std::vector<Variant> variants;
  for (const Algorithm algorithm : collectives::kAllAlgorithms) {
    if ((name == "all" || name == AlgorithmName(algorithm)) &&
        HasAlgorithm(engine, op, algorithm)) {
      variants.push_back(VariantOf(algorithm));
    }
  }
  return variants;
}

constexpr double kBatchSeconds = 40e-6;
constexpr int64_t kMaxBatch = 64;
constexpr int64_t kRounds = 5;
constexpr int64_t kCalibrations = 3;
// Time of a variant of a case if the number of iterations is not given.
constexpr double kCaseSeconds = 0.3;
constexpr int64_t kFewestIterations = 10;
constexpr int64_t kMostIterations = 400;

using Seconds = std::vector<std::vector<double>>;  // [rank][iteration].

// The measurement of one variant on an engine.
struct Turn {
  Job* job = nullptr;
  Task task;
  double single = 0;  // Seconds of one operation, as calibrated,
  double wall = 0;    // and of a whole iteration around it.
  int64_t per_round = 1;
  Seconds by_rank = {};

  std::string Name() const {
    return absl::StrCat(job->spec().engine, " ", task.variant.Name());
  }
};

absl::StatusOr<std::vector<Answer>> Ask(const Turn& turn, const Task& task) {
  auto answers = turn.job->Ask(task);
  if (answers.ok()) return answers;
  return Annotate(answers.status(),
                  absl::StrCat("algorithm ", task.variant.Name()));
}

absl::StatusOr<Seconds> AskSeconds(const Turn& turn, const Task& task) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<Answer> answers, Ask(turn, task));
  Seconds by_rank;
  for (Answer& answer : answers) {
    by_rank.push_back(std::move(answer.seconds));
  }
  return by_rank;
}

// Runs warm-up and a few single operations.
absl::Status Calibrate(const BenchOptions& options, Turn* turn) {
  Task task = turn->task;
  task.warmup = options.warmup;
  task.iterations = kCalibrations;
  const int64_t begin = MonotonicNanos();
  TESSERA_ASSIGN_OR_RETURN(const Seconds by_rank, AskSeconds(*turn, task));
  turn->wall = static_cast<double>(MonotonicNanos() - begin) * 1e-9 /
               static_cast<double>(kCalibrations + options.warmup);
  turn->single = MedianOfSlowest(by_rank);
  turn->by_rank.resize(by_rank.size());
  return absl::OkStatus();
}

// All use the same batch, so that costs of an iteration weigh alike.
void PlanRounds(const BenchOptions& options, std::vector<Turn>& turns) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const Turn& turn : turns) fastest = std::min(fastest, turn.single);
  for (Turn& turn : turns) {
    turn.task.batch = BatchFor(fastest);
    // In place every operation of a batch needs its own buffers.
    if (options.in_place) turn.task.shape.slots = turn.task.batch;
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
  TESSERA_ASSIGN_OR_RETURN(const Seconds by_rank, AskSeconds(*turn, task));
  for (size_t r = 0; r < by_rank.size(); ++r) {
    turn->by_rank[r].insert(turn->by_rank[r].end(), by_rank[r].begin(),
                            by_rank[r].end());
  }
  task.first_iteration += task.warmup + task.iterations;
  return absl::OkStatus();
}

// The median over iterations of the slowest rank, for each of the three times.
absl::StatusOr<Overlap> MeasureOverlap(const Turn& turn) {
  Task task = turn.task;
  task.kind = TaskKind::kOverlap;
  task.batch = task.shape.slots = 1;
  task.iterations = 10;
  TESSERA_ASSIGN_OR_RETURN(const Seconds all, AskSeconds(turn, task));
  std::array<double, 3> medians;
  for (size_t part = 0; part < medians.size(); ++part) {
    Seconds by_rank(all.size());
    for (size_t r = 0; r < all.size(); ++r) {
      for (size_t i = part; i < all[r].size(); i += medians.size()) {
        by_rank[r].push_back(all[r][i]);
      }
    }
    medians[part] = MedianOfSlowest(by_rank);
  }
  return Overlap{medians[0], medians[1], medians[2]};
}

// The measurements with one number of ranks.
class World {
 public:
  World(const BenchOptions& options, const SignalWatch* signals,
        const BenchEvents& events, int64_t world)
      : options_(options), signals_(signals), events_(events), world_(world) {}

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
      auto meter = TrafficMeter::Create(world_, options_.sizes.back() + 4096);
      if (meter.ok()) meter_ = *std::move(meter);
    }
    for (const std::string& engine : options_.engines) {
      events_.on_progress(absl::StrCat("starting ", engine));
      TESSERA_ASSIGN_OR_RETURN(jobs_.emplace_back(),
                               Job::Start({.device = options_.device,
                                           .engine = engine,
                                           .world = world_,
                                           .group_size = options_.group_size,
                                           .bind = options_.bind},
                                          signals_));
    }
    return absl::OkStatus();
  }

  absl::Status RunSizes(OpKind op, DType dtype) {
    OperandShape shape = {.kind = op,
                          .dtype = dtype,
                          .reduction = ReductionFor(options_.reduction, dtype),
                          .count = -1,
                          .in_place = options_.in_place,
                          .registered = options_.registered};
    for (const int64_t size : options_.sizes) {
      const int64_t count = CountFor(op, dtype, size, world_);
      // Small sizes may round to the same count.
      if (std::exchange(shape.count, count) == count) continue;
      TESSERA_RETURN_IF_ERROR(RunCase(shape));
    }
    return absl::OkStatus();
  }

  std::vector<Turn> TurnsFor(const OperandShape& shape) const {
    std::vector<Turn> turns;
    for (const std::unique_ptr<Job>& job : jobs_) {
      for (const Variant& variant :
           VariantsFor(options_, job->capabilities(), shape.kind)) {
        turns.push_back({.job = job.get(),
                         .task = {.kind = TaskKind::kTime,
                                  .variant = variant,
                                  .shape = shape,
                                  .check = options_.check}});
      }
    }
    return turns;
  }

  // Measures all variants in turns; a row for each, in their order.
  absl::Status RunCase(const OperandShape& shape) {
    std::vector<Turn> turns = TurnsFor(shape);
    if (turns.empty()) return absl::OkStatus();
    case_name_ =
        absl::StrCat(world_, " ranks, ", OpKindName(shape.kind), " of ",
                     ByteSize(MessageBytes(shape, world_)).ToString(), " ",
                     DTypeName(shape.dtype), ": ");
    TESSERA_RETURN_IF_ERROR(RunTurns(turns));
    std::vector<Row> rows;
    for (const Turn& turn : turns) {
      Row& row = rows.emplace_back(RowOf(turn));
      row.ratio = row.seconds / std::max(rows[0].seconds, 1e-12);
      if (!options_.overlap) continue;
      Announce(turn);
      TESSERA_ASSIGN_OR_RETURN(row.overlap, MeasureOverlap(turn));
    }
    if (options_.regret) TESSERA_RETURN_IF_ERROR(AddChoices(turns, rows));
    TESSERA_RETURN_IF_ERROR(AddBound(rows));
    events_.on_case(rows);
    return absl::OkStatus();
  }

  void Announce(const Turn& turn) const {
    events_.on_progress(case_name_ + turn.Name());
  }

  absl::Status RunTurns(std::vector<Turn>& turns) const {
    for (Turn& turn : turns) {
      Announce(turn);
      TESSERA_RETURN_IF_ERROR(Calibrate(options_, &turn));
    }
    PlanRounds(options_, turns);
    for (int64_t round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < turns.size(); ++i) {
        Turn& turn = turns[round % 2 == 0 ? i : turns.size() - 1 - i];
        Announce(turn);
        TESSERA_RETURN_IF_ERROR(RunRound(options_.iterations, &turn));
      }
    }
    return absl::OkStatus();
  }

  Row RowOf(const Turn& turn) const {
    const OperandShape& shape = turn.task.shape;
    return {.engine = turn.job->spec().engine,
            .algorithm = turn.task.variant.Name(),
            .op = shape.kind,
            .dtype = shape.dtype,
            .world = world_,
            .bytes = MessageBytes(shape, world_),
            .iterations = static_cast<int64_t>(turn.by_rank[0].size()),
            .seconds = MedianOfSlowest(turn.by_rank)};
  }

  // Sets the choice of the adaptive chooser of each job on the rows.
  absl::Status AddChoices(const std::vector<Turn>& turns,
                          std::vector<Row>& rows) const {
    const Job* last = nullptr;
    for (const Turn& turn : turns) {
      if (std::exchange(last, turn.job) == turn.job) continue;
      Task task = turn.task;
      task.kind = TaskKind::kChoose;
      task.variant = {.adaptive = true};
      TESSERA_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                               Ask(turn, task));
      const std::string& engine = turn.job->spec().engine;
      const std::string& text = answers[0].text;
      for (const Answer& answer : answers) {
        if (answer.text == text) continue;
        return absl::InternalError(absl::StrCat(
            "engine ", engine, ": ranks differ in the adaptive choice:\n", text,
            "\n", answer.text));
      }
      SetChoice(rows, engine, text.substr(0, text.find('\n')));
    }
    return absl::OkStatus();
  }

  absl::Status AddBound(std::vector<Row>& rows) const {
    if (meter_ == nullptr || rows[0].op == OpKind::kBarrier) {
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(const double bound,
                             meter_->Measure(rows[0].op, rows[0].bytes),
                             Annotate(_, "memory-traffic bound"));
    for (Row& row : rows) row.bound_seconds = bound;
    return absl::OkStatus();
  }

  const BenchOptions& options_;
  const SignalWatch* signals_;
  const BenchEvents& events_;
  int64_t world_;
  std::string case_name_;
  std::unique_ptr<TrafficMeter> meter_;
  std::vector<std::unique_ptr<Job>> jobs_;
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
  if (!options.reproducible || !Reduces(op)) return variants;
  const size_t usual = variants.size();
  for (size_t i = 0; i < usual; ++i) {
    variants.push_back(variants[i]);
    variants.back().reproducible = true;
  }
  return variants;
}

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

absl::Status RunBenchmark(const BenchOptions& options,
                          const SignalWatch* signals,
                          const BenchEvents& events) {
  for (const std::string& engine : options.engines) {
    TESSERA_RETURN_IF_ERROR(FindBenchEngine(options.device, engine).status(),
                            FlagError("engine", engine, _));
  }
  for (const int64_t world : options.worlds) {
    World run(options, signals, events, world);
    TESSERA_RETURN_IF_ERROR(run.Run());
  }
  return absl::OkStatus();
}

}  // namespace tessera::tools
