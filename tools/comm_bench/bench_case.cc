#include "tools/comm_bench/bench_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "tools/comm_bench/operands.h"
#include "tools/comm_bench/regret.h"

namespace tessera::tools {
namespace {

using collectives::MonotonicNanos;

constexpr double kBatchSeconds = 40e-6;
constexpr int64_t kMaxBatch = 64;
constexpr int64_t kRounds = 5;
constexpr int64_t kCalibrations = 3;
// What a variant of a case may take where the number of iterations is free.
constexpr double kCaseSeconds = 0.3;
constexpr int64_t kFewestIterations = 10;
constexpr int64_t kMostIterations = 400;

// One contestant's measurement while it goes on.
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
  task.carrier = variant.carrier;
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

// The same batch for all: what is not for each operation counts alike.
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
  task.warmup = 1;  // The processes have slept.
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

// Of the slowest rank, the median of each of the three times.
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
    variant.carrier = Carrier::kAdaptive;
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

}  // namespace tessera::tools
