// Overhead of the executor per action, beyond the cost of its messages.
//
// The stages do nothing. Each repetition times a step of the executor and,
// right after it, the same messages and collectives on the communicator alone;
// the difference of the medians, by action, is the overhead. The floor is the
// engine's own cost, raw_us.
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/arithmetic.h"
#include "base/status_macros.h"
#include "benchmark/benchmark.h"
#include "collectives/testing/run_ranks.h"
#include "pipeline/execute/execution_plan.h"
#include "pipeline/execute/executor.h"
#include "pipeline/generate/generate.h"

namespace tessera::pipeline {
namespace {

using collectives::Communicator;
using collectives::Rank;

class EmptyStage : public Stage {
 public:
  absl::Status Forward(const ForwardPass& pass) override {
    if (pass.loss != nullptr) (*pass.loss->AsSpan<double>())[0] = 0;
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const BackwardPass&) override {
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const BackwardPass&) override {
    return absl::OkStatus();
  }
};

double Seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Makes only the communicator calls of a step.
absl::Status RawStep(Communicator& c, const ExecutionPlan& plan, bool trace,
                     std::span<double> losses, std::span<double> tensor) {
  if (trace) TESSERA_RETURN_IF_ERROR(c.Barrier());
  for (const PlannedAction& action : plan.actions()) {
    if (Sends(action.action.kind)) {
      TESSERA_RETURN_IF_ERROR(
          c.Send(collectives::ConstBuffer(tensor), Rank(action.peer)));
    } else if (Receives(action.action.kind)) {
      TESSERA_RETURN_IF_ERROR(
          c.Receive(collectives::Buffer(tensor), Rank(action.peer)));
    }
  }
  return c.AllReduce(collectives::Buffer(losses),
                     collectives::Reduction::Sum());
}

struct Medians {
  double executor = 0, raw = 0;
  double actions = 0;
};

absl::Status Measure(Communicator& c, const Schedule& schedule, bool trace,
                     Medians& medians) {
  constexpr int kRepetitions = 401;
  const auto rank = static_cast<int32_t>(c.rank().value());
  const std::vector<int32_t> numbers = schedule.map.StagesOf(rank);
  std::vector<EmptyStage> stages(numbers.size());
  std::vector<StageBinding> bindings;
  for (size_t i = 0; i < stages.size(); ++i) {
    bindings.push_back({numbers[i], &stages[i]});
  }
  ExecutorOptions options;
  options.trace = trace;
  options.boundaries.assign(static_cast<size_t>(schedule.map.stages()) - 1,
                            {DType::kF64, {8}});
  TESSERA_ASSIGN_OR_RETURN(const auto executor,
                           Executor::Create(c, schedule, bindings, options));
  const ExecutionPlan plan =
      ExecutionPlan::Of(executor->schedule(), rank, Passes::kBoth);
  std::vector<double> with, without, tensor(8);
  std::vector<double> losses(static_cast<size_t>(schedule.microbatches));
  for (int i = 0; i < kRepetitions; ++i) {
    const double begin = Seconds();
    TESSERA_RETURN_IF_ERROR(executor->Run().status());
    const double middle = Seconds();
    TESSERA_RETURN_IF_ERROR(RawStep(c, plan, trace, losses, tensor));
    with.push_back(middle - begin);
    without.push_back(Seconds() - middle);
  }
  if (rank == 0) {
    medians = {Median(with), Median(without),
               static_cast<double>(plan.actions().size())};
  }
  return absl::OkStatus();
}

void BM_Step(benchmark::State& state, const std::string& name, bool trace) {
  const auto schedule =
      Generate(name, {state.range(0), state.range(1), state.range(2)});
  if (!schedule.ok()) {
    state.SkipWithError(schedule.status().ToString().c_str());
    return;
  }
  Medians medians;
  for (auto unused : state) {
    for (const absl::Status& status :
         collectives::RunRanks(state.range(0), [&](Communicator& c) {
           return Measure(c, *schedule, trace, medians);
         })) {
      if (!status.ok()) state.SkipWithError(status.ToString().c_str());
    }
  }
  const double us = 1e6 / medians.actions;
  state.counters["actions"] = medians.actions;
  state.counters["action_us"] = medians.executor * us;
  state.counters["raw_us"] = medians.raw * us;
  state.counters["overhead_us"] = (medians.executor - medians.raw) * us;
}

// Arguments: ranks, chunks, micro-batches.
BENCHMARK_CAPTURE(BM_Step, local, "looped_bfs", false)
    ->Args({1, 4, 64})
    ->Iterations(1)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Step, local_traced, "looped_bfs", true)
    ->Args({1, 4, 64})
    ->Iterations(1)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Step, 1f1b, "1f1b", false)
    ->Args({2, 1, 64})
    ->Args({4, 1, 64})
    ->Iterations(1)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Step, 1f1b_traced, "1f1b", true)
    ->Args({2, 1, 64})
    ->Iterations(1)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Step, zb_v, "zb_v", false)
    ->Args({2, 2, 64})
    ->Iterations(1)
    ->UseRealTime();

// Simulates a device: computing takes the given time and no processor.
class SleepingStage : public EmptyStage {
 public:
  absl::Status Forward(const ForwardPass& pass) override {
    absl::SleepFor(kForward);
    return EmptyStage::Forward(pass);
  }
  absl::Status BackwardInput(const BackwardPass&) override {
    absl::SleepFor(kForward);
    return absl::OkStatus();
  }

  static constexpr absl::Duration kForward = absl::Milliseconds(4);
};

// A step with synchronous (0) or asynchronous (1) messages, compared with the
// makespan of its computations without messages, which is the floor.
void BM_Overlap(benchmark::State& state) {
  const int64_t ranks = 2;
  const Schedule schedule = *Generate("1f1b", {ranks, 1, 16});
  ExecutorOptions options;
  options.start_from_bytes = state.range(0) == 1 ? 0 : int64_t{1} << 62;
  options.boundaries = {{DType::kU8, {state.range(1) << 20}}};
  double makespan = 0;
  for (auto unused : state) {
    collectives::RunRanks(ranks, [&](Communicator& c) -> absl::Status {
      const auto rank = static_cast<int32_t>(c.rank().value());
      SleepingStage stage;
      TESSERA_ASSIGN_OR_RETURN(
          const auto executor,
          Executor::Create(c, schedule, {{rank, &stage}}, options));
      std::vector<double> makespans;
      for (int step = 0; step < 9; ++step) {
        TESSERA_RETURN_IF_ERROR(executor->Run().status());
        TESSERA_ASSIGN_OR_RETURN(const Timeline measured,
                                 executor->GatherTimeline());
        makespans.push_back(measured.makespan);
      }
      if (rank == 0) makespan = Median(makespans);
      return absl::OkStatus();
    });
  }
  const double floor =
      absl::ToDoubleSeconds(SleepingStage::kForward) * 2 * (16 + ranks - 1);
  state.counters["step_ms"] = makespan * 1e3;
  state.counters["of_floor"] = floor / makespan;
}
BENCHMARK(BM_Overlap)
    ->ArgNames({"started", "MiB"})
    ->ArgsProduct({{0, 1}, {0, 1, 8}})
    ->Iterations(1)
    ->UseRealTime();

}  // namespace
}  // namespace tessera::pipeline
