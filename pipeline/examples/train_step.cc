// Two ranks learn y = 6 x, each with one weight: a stage of the pipeline.
#include <iostream>
#include <span>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "pipeline/execute/executor.h"
#include "pipeline/generate/generate.h"

namespace {

using namespace tessera;
using namespace tessera::pipeline;

// output = weight input; of the last, the loss = (weight input - target)^2 / 2.
class Multiply : public Stage {
 public:
  absl::StatusOr<TensorSpec> OutputSpec(const TensorSpec*) override {
    return TensorSpec{DType::kF64, {1}};
  }
  absl::Status Forward(const ForwardPass& pass) override {
    const double output = weight * InputOf(pass.input, pass.microbatch);
    const double error = output - 6 * Data(pass.microbatch);
    if (pass.loss != nullptr) {
      (*pass.loss->AsSpan<double>())[0] = error * error / 2;
    }
    if (pass.output != nullptr) (*pass.output->AsSpan<double>())[0] = output;
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const BackwardPass& pass) override {
    if (pass.input_gradient != nullptr) {
      (*pass.input_gradient->AsSpan<double>())[0] = weight * ErrorOf(pass);
    }
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const BackwardPass& pass) override {
    gradient += ErrorOf(pass) * InputOf(pass.input, pass.microbatch);
    return absl::OkStatus();
  }

  double weight = 1;
  double gradient = 0;

 private:
  static double Data(int32_t microbatch) { return 0.5 + microbatch; }
  static double InputOf(const ConstTensorView* input, int32_t microbatch) {
    return input == nullptr ? Data(microbatch) : (*input->AsSpan<double>())[0];
  }
  double ErrorOf(const BackwardPass& pass) const {
    if (pass.output_gradient != nullptr) {
      return (*pass.output_gradient->AsSpan<double>())[0];
    }
    return pass.loss_scale * (weight * InputOf(pass.input, pass.microbatch) -
                              6 * Data(pass.microbatch));
  }
};

absl::Status Train(collectives::Communicator& communicator) {
  const auto rank = static_cast<int32_t>(communicator.rank().value());
  TESSERA_ASSIGN_OR_RETURN(
      const Schedule schedule,
      Generate("1f1b", {.ranks = 2, .chunks = 1, .microbatches = 4}));
  Multiply stage;
  TESSERA_ASSIGN_OR_RETURN(
      const auto executor,
      Executor::Create(communicator, schedule, {{rank, &stage}}));
  for (int step = 0; step <= 20; ++step) {
    stage.gradient = 0;
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, executor->Run());
    stage.weight -= 0.01 * stage.gradient;
    if (rank == 1 && step % 10 == 0) {
      std::cout << "step " << step << ": loss " << result.loss << "\n";
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const Timeline measured, executor->GatherTimeline());
  if (rank == 1) {
    std::cout << "rank 0 held " << measured.ranks[0].peak_activations
              << " micro-batches, " << measured.ranks[0].peak_bytes
              << " bytes\n";
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  auto engines = collectives::CreateInProcessEngines(2);
  std::vector<std::thread> ranks;
  for (auto& engine : *engines) {
    ranks.emplace_back([&engine] {
      auto communicator = collectives::Communicator::Create(std::move(engine));
      const absl::Status status = Train(**communicator);
      if (!status.ok()) std::cerr << status << "\n";
    });
  }
  for (std::thread& rank : ranks) rank.join();
}
