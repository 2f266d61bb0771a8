// For tests: a stack of layers, each a pipeline stage, with its gradients
// computed by a plain loop as the reference for a step of the executor.
//
//   const StackShape shape{.widths = {4, 6, 3}, .rows = 2, .microbatches = 5};
//   LayerStage<double> stage(shape, /*stage=*/1);
//   const Reference<double> expected = RunSequentially<double>(shape);
//
// Layer s maps rows of width widths[s] to tanh(x W + b) of width widths[s + 1].
// The loss is half the squared distance from a target. All values are functions
// of their indices, so that they are equal on every rank.
#ifndef TESSERA_PIPELINE_EXECUTE_TESTING_LAYER_STACK_H_
#define TESSERA_PIPELINE_EXECUTE_TESTING_LAYER_STACK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "pipeline/execute/executor.h"
#include "pipeline/execute/stage.h"
#include "pipeline/generate/generate.h"

namespace tessera::pipeline {

struct StackShape {
  std::vector<int64_t> widths;  // The number of layers plus 1.
  int64_t rows = 2;
  int64_t microbatches = 1;

  int64_t layers() const { return static_cast<int64_t>(widths.size()) - 1; }
};

// Different widths for the given number of layers.
StackShape ShapeOf(int64_t layers, int64_t microbatches);

// Weights [in, out] and bias [out], and their gradients.
template <typename T>
struct Layer {
  std::vector<T> weight, bias, weight_gradient, bias_gradient;
};

template <typename T>
class LayerStage : public Stage {
 public:
  LayerStage(const StackShape& shape, int32_t stage);

  absl::StatusOr<TensorSpec> OutputSpec(const TensorSpec* input) override;
  absl::Status Forward(const ForwardPass& pass) override;
  absl::Status BackwardInput(const BackwardPass& pass) override;
  absl::Status BackwardWeight(const BackwardPass& pass) override;
  void Release(int32_t microbatch) override;
  absl::StatusOr<std::vector<TensorView>> Gradients() override;
  absl::StatusOr<TensorView> TiedGradient(std::string_view name) override;
  absl::Status Unshard() override;
  absl::Status Reshard() override;
  absl::Status ReduceGradient() override;
  bool KeepsInput(int32_t) const override { return keeps_input; }

  bool keeps_input = false;

  const Layer<T>& layer() const { return layer_; }
  void ZeroGradients();
  // The micro-batches for which the stage saved something.
  size_t kept() const { return kept_.size(); }
  // "unshard", "reshard", "reduce", in call order.
  const std::vector<std::string>& hooks() const { return hooks_; }

 private:
  struct Kept {
    // Null for the first stage, and if stages keep their own input.
    std::vector<T> input;
    std::vector<T> output;    // tanh(...).
    std::vector<T> gradient;  // Of tanh's input, set by BackwardInput.
  };

  const StackShape shape_;
  const int32_t stage_;
  Layer<T> layer_;
  std::map<int32_t, Kept> kept_;
  std::vector<std::string> hooks_;
};

template <typename T>
struct Reference {
  std::vector<Layer<T>> layers;
  std::vector<double> losses;
  double loss = 0;
};

// Processes one micro-batch after another, forward and backward through all
// layers. Gradients are those of the mean over the micro-batches.
template <typename T>
Reference<T> RunSequentially(const StackShape& shape);

// The largest difference of a gradient from the reference, relative to the
// largest gradient of the layer.
template <typename T>
double LargestError(const Layer<T>& layer, const Layer<T>& expected);

// The layers that a rank holds, and the executor over them.
template <typename T>
struct StackRank {
  std::vector<std::unique_ptr<LayerStage<T>>> stages;
  std::vector<StageBinding> bindings;
  std::vector<int32_t> numbers;
  std::unique_ptr<Executor> executor;
};

template <typename T>
absl::StatusOr<StackRank<T>> MakeStackRank(
    collectives::Communicator& communicator, const Schedule& schedule,
    const StackShape& shape, const ExecutorOptions& options = {}) {
  StackRank<T> rank;
  rank.numbers =
      schedule.map.StagesOf(static_cast<int32_t>(communicator.rank().value()));
  for (const int32_t stage : rank.numbers) {
    rank.stages.push_back(std::make_unique<LayerStage<T>>(shape, stage));
    rank.bindings.push_back({stage, rank.stages.back().get()});
  }
  TESSERA_ASSIGN_OR_RETURN(
      rank.executor,
      Executor::Create(communicator, schedule, rank.bindings, options));
  return rank;
}

inline StackShape ShapeFor(const Schedule& schedule) {
  return ShapeOf(schedule.map.stages(), schedule.microbatches);
}

// Internal if something differs from the plain loop.
template <typename T>
absl::Status CheckAgainst(const Reference<T>& expected, const StepResult& step,
                          const StackRank<T>& rank) {
  constexpr double kTolerance = std::is_same_v<T, double> ? 1e-12 : 1e-6;
  const auto differs = [](auto&&... what) {
    return absl::InternalError(absl::StrCat(what...));
  };
  if (step.losses != expected.losses || step.loss != expected.loss) {
    return differs("the loss is ", step.loss, ", not ", expected.loss);
  }
  for (size_t i = 0; i < rank.stages.size(); ++i) {
    const auto stage = static_cast<size_t>(rank.numbers[i]);
    const double error =
        LargestError(rank.stages[i]->layer(), expected.layers[stage]);
    if (!(error <= kTolerance)) {
      return differs("stage ", stage, ": gradients are off by ", error);
    }
    if (rank.stages[i]->kept() != 0) {
      return differs("stage ", stage, " keeps what was never released");
    }
  }
  return absl::OkStatus();
}

// Checks the timeline of the last step, for any schedule.
inline absl::Status CheckTimeline(const Executor& executor, int64_t rank) {
  const RankTimeline& line = executor.timeline();
  const int64_t peak =
      executor.proof().peak_activations[static_cast<size_t>(rank)];
  // The executor runs the two actions of a pair one after the other.
  if (line.peak_activations > peak) {
    return absl::InternalError(absl::StrCat(
        line.peak_activations, " activations, the proof has ", peak));
  }
  if (!line.memory.empty() && line.memory.back().bytes != 0) {
    return absl::InternalError("boundary tensors were not given back");
  }
  return absl::OkStatus();
}

// Two training steps and an evaluation between them.
template <typename T>
absl::Status CheckStack(collectives::Communicator& communicator,
                        const Schedule& schedule,
                        const ExecutorOptions& options = {}) {
  const StackShape shape = ShapeFor(schedule);
  const Reference<T> expected = RunSequentially<T>(shape);
  TESSERA_ASSIGN_OR_RETURN(
      StackRank<T> rank,
      MakeStackRank<T>(communicator, schedule, shape, options));
  for (int step = 0; step < 2; ++step) {
    for (auto& stage : rank.stages) stage->ZeroGradients();
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, rank.executor->Run());
    TESSERA_RETURN_IF_ERROR(CheckAgainst(expected, result, rank));
    TESSERA_RETURN_IF_ERROR(
        CheckTimeline(*rank.executor, communicator.rank().value()));
    TESSERA_ASSIGN_OR_RETURN(const StepResult forward,
                             rank.executor->RunForward());
    // The gradients are still those of the step.
    TESSERA_RETURN_IF_ERROR(CheckAgainst(expected, forward, rank));
  }
  return absl::OkStatus();
}

// Calls check(schedule) for every generator, 1 to `most_chunks` chunks and
// micro-batches below, at and above the number of ranks; stops at an error,
// which names the schedule.
inline absl::Status ForEachSchedule(
    int64_t ranks, int64_t most_chunks,
    const std::function<absl::Status(const Schedule&)>& check) {
  for (const Generator& generator : Generators()) {
    for (int64_t chunks = 1; chunks <= most_chunks; ++chunks) {
      if (generator.chunks != 0 && generator.chunks != chunks) continue;
      if (generator.even_ranks && ranks % 2 != 0) continue;
      std::vector<int64_t> counts = {1, ranks - 1, ranks, 2 * ranks + 1};
      std::sort(counts.begin(), counts.end());
      counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
      for (const int64_t count : counts) {
        if (count < 1) continue;
        const std::string name =
            absl::StrCat(generator.name, ", ", ranks, " ranks, ", chunks,
                         " chunks, ", count, " micro-batches");
        TESSERA_ASSIGN_OR_RETURN(const Schedule schedule,
                                 generator.generate({ranks, chunks, count}),
                                 Annotate(_, name));
        TESSERA_RETURN_IF_ERROR(check(schedule), Annotate(_, name));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_TESTING_LAYER_STACK_H_
