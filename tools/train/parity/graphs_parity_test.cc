// Steps whose computations are captured and replayed have the bits of steps
// whose work the host enqueues each time, on emulated devices, in any order.
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tools/text/samples.h"
#include "tools/train/loop/rank_device.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"
#include "tools/train/step/train_rank.h"
#include "tools/train/testing/small_text.h"

namespace tessera::train {
namespace {

using tensor_parallel::Recompute;
using ::testing::HasSubstr;

void ExpectSameBits(const std::vector<StepRecord>& actual,
                    const std::vector<StepRecord>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t step = 0; step < actual.size(); ++step) {
    SCOPED_TRACE(step);
    EXPECT_EQ(actual[step].loss, expected[step].loss);
    EXPECT_EQ(actual[step].gradient_norm, expected[step].gradient_norm);
  }
}

class GraphsParityTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(GraphsParityTest, MatchesEnqueuedStepsBitForBit) {
  int stage = 0;
  for (const std::string dtype : {"f32", "bf16", "fp8"}) {
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const int64_t micro_batch : {1, 2, 8}) {
        ParityCase run;
        run.dtype = dtype == "f32" ? DType::kF32 : DType::kBF16;
        run.fp8 = dtype == "fp8";
        run.recompute = recompute;
        run.micro_batch = micro_batch;
        run.stage = stage++ % 4;
        run.tied = stage % 2 == 0;
        run.clip = stage % 3 == 0;
        run.schedule = stage % 5 == 0 ? "gpipe" : "1f1b";
        run.steps = 6;
        SCOPED_TRACE(::testing::Message() << run);
        TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
        run.device_seed = GetParam();
        run.graphs = true;
        TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
        ExpectSameBits(actual, expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, GraphsParityTest,
                         ::testing::Range<int64_t>(1, 5));

// Trains on a device of its own, with validation between steps.
struct Trained {
  std::vector<double> losses;
  std::vector<double> evaluations;
  std::vector<int64_t> operations;  // Enqueued, by step.
  int64_t graph_operations = 0;
};
absl::StatusOr<Trained> TrainWithValidation(const RunOptions& options,
                                            const std::string& device) {
  TESSERA_ASSIGN_OR_RETURN(
      const text::Samples samples,
      text::Samples::Create(
          testing::SmallText(),
          {.sequence = options.length, .validation_fraction = 0.2, .seed = 5}));
  Trained trained;
  const std::vector<absl::Status> results = collectives::RunRanks(
      1, [&](collectives::Communicator& world) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            const auto on,
            RankDevice::Create({.device = device, .device_seed = 7}, world));
        TESSERA_ASSIGN_OR_RETURN(
            const auto rank,
            TrainRank::Create(on->world(), options, samples, on->ops()));
        for (int64_t step = 0; step < options.steps; ++step) {
          const int64_t before = on->device().counts().operations;
          TESSERA_ASSIGN_OR_RETURN(const StepRecord record, rank->Step());
          trained.losses.push_back(record.loss);
          trained.operations.push_back(on->device().counts().operations -
                                       before);
          TESSERA_ASSIGN_OR_RETURN(trained.evaluations.emplace_back(),
                                   rank->Evaluate(1));
        }
        trained.graph_operations = rank->graph_operations();
        return absl::OkStatus();
      });
  TESSERA_RETURN_IF_ERROR(results[0]);
  return trained;
}

TEST(GraphsTest, ValidationBetweenReplaysChangesNothing) {
  RunOptions options = RunOptionsOf({.micro_batch = 2, .steps = 5});
  TESSERA_ASSERT_OK_AND_ASSIGN(const Trained expected,
                               TrainWithValidation(options, "cpu"));
  options.graphs = GraphChoice::kOn;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Trained actual,
                               TrainWithValidation(options, "emulated"));
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.evaluations, expected.evaluations);
}

TEST(GraphsTest, TheHostEnqueuesFewOperations) {
  RunOptions options =
      RunOptionsOf({.micro_batch = 1, .layers = 12, .steps = 4});
  TESSERA_ASSERT_OK_AND_ASSIGN(const Trained without,
                               TrainWithValidation(options, "emulated"));
  EXPECT_EQ(without.graph_operations, 0);
  options.graphs = GraphChoice::kOn;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Trained with,
                               TrainWithValidation(options, "emulated"));
  std::cout << "operations that a step enqueues: " << without.operations.back()
            << ", with a graph of " << with.graph_operations << " "
            << with.operations.back() << std::endl;
  EXPECT_EQ(with.losses, without.losses);
  // All of the passes are in the graph; the rest is the optimizer's.
  EXPECT_EQ(with.operations.front(), without.operations.front());
  EXPECT_EQ(with.operations.back() + with.graph_operations - 1,
            without.operations.back());
  EXPECT_LT(10 * with.operations.back(), without.operations.back());
}

TEST(GraphsTest, RejectsRunsWhoseStepsDiffer) {
  const auto refused = [](const RunOptions& options,
                          const std::string& device = "emulated") {
    RunOptions given = options;
    given.graphs = GraphChoice::kOn;
    const absl::Status status = TrainWithValidation(given, device).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    // With kAuto, graphs are silently not used.
    given.graphs = GraphChoice::kAuto;
    TESSERA_EXPECT_OK(TrainWithValidation(given, device));
    return std::string(status.message());
  };
  const RunOptions options = RunOptionsOf({.steps = 1});
  EXPECT_THAT(refused(options, "cpu"), HasSubstr("device cpu does work at"));
  RunOptions dropout = options;
  dropout.dropout = 0.1;
  EXPECT_THAT(refused(dropout), HasSubstr("dropout 0.1 depend on the step"));
  EXPECT_THAT(refused(RunOptionsOf({.architecture = "mixtral", .steps = 1})),
              HasSubstr("as its router chose"));
}

TEST(GraphsTest, RejectsSeveralRanks) {
  ParityCase run = {.mesh = {.dp = 2}, .steps = 1};
  run.device_seed = 1;
  run.graphs = true;
  EXPECT_THAT(TrainCase(run), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("collectives")));
}

TEST(GraphsTest, RejectsOffload) {
  ParityCase run = {.stage = 3, .offload = "optimizer", .tier = "host"};
  run.steps = 1;
  run.device_seed = 1;
  run.graphs = true;
  EXPECT_THAT(TrainCase(run), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("offloaded data differ")));
}

}  // namespace
}  // namespace tessera::train
