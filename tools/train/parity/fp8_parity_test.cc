// Training with products in fp8: any mesh has the losses of one rank, those of
// bf16 are near, and emulated devices have the bits of the processor.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/text/samples.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"
#include "tools/train/step/train_rank.h"
#include "tools/train/testing/small_text.h"

namespace tessera::train {
namespace {

using tensor_parallel::Recompute;

// In the first step ranks scale operands by the magnitudes of their own tokens.
constexpr double kAllowed = 2e-2;

ParityCase Fp8Case() {
  ParityCase run;
  run.dtype = DType::kBF16;
  run.fp8 = true;
  return run;
}

TEST(Fp8ParityTest, AnyMeshMatchesLossesOfOneRank) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(Fp8Case()));
  ASSERT_LT(expected.back().loss, 0.8 * expected.front().loss);
  std::vector<ParityCase> runs(8, Fp8Case());
  runs[0].mesh = {.dp = 2};
  runs[0].stage = 3;
  runs[1].mesh = {.tp = 2};
  runs[2].mesh = {.tp = 2};
  runs[2].sequence_parallel = true;
  runs[2].overlap_chunks = 3;
  runs[3].mesh = {.pp = 2};
  runs[3].schedule = "zb_h1";
  runs[4].mesh = {.cp = 2};
  runs[5].mesh = {.dp = 2, .pp = 2, .tp = 2};
  runs[5].recompute = Recompute::kFull;
  runs[5].stage = 2;
  runs[6].micro_batch = 4;
  runs[6].recompute = Recompute::kSelective;
  runs[7].mesh = {.dp = 4};
  runs[7].offload = "all";
  runs[7].tier = "host";
  runs[7].stage = 3;
  for (const ParityCase& run : runs) {
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto records, TrainCase(run));
    const ParityDifference difference = DifferenceOf(records, expected);
    std::cout << run.mesh.ToString() << ": losses differ by " << difference.loss
              << std::endl;
    EXPECT_LE(difference.loss, kAllowed);
    EXPECT_GT(difference.loss, 0);  // It is another computation.
  }
}

TEST(Fp8ParityTest, LatentAttentionMatchesLossesOfOneRank) {
  for (const std::string architecture : {"deepseek2", "deepseek3"}) {
    ParityCase run = Fp8Case();
    run.architecture = architecture;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    ASSERT_LT(expected.back().loss, 0.8 * expected.front().loss);
    run.fp8 = false;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto bf16, TrainCase(run));
    const double rounding = DifferenceOf(expected, bf16).loss;
    std::cout << architecture << ": bf16 differs by " << rounding << std::endl;
    EXPECT_LE(rounding, 5e-2);
    EXPECT_GT(rounding, 1e-5);
    run.fp8 = true;
    run.stage = 3;
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 2, .pp = 2}, MeshSizes{.cp = 2, .tp = 2}}) {
      run.mesh = mesh;
      run.sequence_parallel = !run.sequence_parallel;
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto records, TrainCase(run));
      const double loss = DifferenceOf(records, expected).loss;
      std::cout << run.mesh.ToString() << ": losses differ by " << loss
                << std::endl;
      EXPECT_LE(loss, kAllowed);
      EXPECT_GT(loss, 0);
    }
    run.recompute = Recompute::kFull;
    run.steps = 3;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto kept, TrainCase(run));
    run.device_seed = 1;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto emulated, TrainCase(run));
    EXPECT_EQ(DifferenceOf(emulated, kept).loss, 0);
  }
}

TEST(Fp8ParityTest, RecomputationHasTheSameBits) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(Fp8Case()));
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    ParityCase run = Fp8Case();
    run.recompute = recompute;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto records, TrainCase(run));
    EXPECT_EQ(DifferenceOf(records, expected).loss, 0);
  }
}

TEST(Fp8ParityTest, FollowsBf16) {
  ParityCase run = Fp8Case();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto fp8, TrainCase(run));
  run.fp8 = false;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto bf16, TrainCase(run));
  const ParityDifference difference = DifferenceOf(fp8, bf16);
  std::cout << "losses of fp8 and bf16 differ by " << difference.loss
            << std::endl;
  EXPECT_LE(difference.loss, 5e-2);
  EXPECT_GT(difference.loss, 1e-5);
}

TEST(Fp8ParityTest, EmulatedDevicesMatchCpuBitForBit) {
  const MeshSizes meshes[] = {{}, {.dp = 2, .tp = 2}, {.pp = 2}};
  for (const MeshSizes& mesh : meshes) {
    ParityCase run = Fp8Case();
    run.mesh = mesh;
    run.stage = mesh.dp > 1 ? 3 : 0;
    run.steps = 5;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    for (run.device_seed = 1; run.device_seed <= 3; ++run.device_seed) {
      SCOPED_TRACE(::testing::Message() << run);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto records, TrainCase(run));
      const ParityDifference difference = DifferenceOf(records, expected);
      EXPECT_EQ(difference.loss, 0);
      EXPECT_EQ(difference.gradient_norm, 0);
    }
  }
}

// The losses of steps on one rank, with validation before some.
absl::StatusOr<std::vector<double>> TrainAndEvaluate(bool evaluates) {
  RunOptions options = RunOptionsOf(Fp8Case());
  options.steps = 5;
  TESSERA_ASSIGN_OR_RETURN(
      const text::Samples samples,
      text::Samples::Create(
          testing::SmallText(),
          {.sequence = options.length, .validation_fraction = 0.2, .seed = 5}));
  std::vector<double> losses;
  const std::vector<absl::Status> results = collectives::RunRanks(
      1, [&](collectives::Communicator& world) -> absl::Status {
        tensor_parallel::CpuOps ops({.threads = 1});
        TESSERA_ASSIGN_OR_RETURN(
            const auto rank, TrainRank::Create(world, options, samples, ops));
        for (int64_t step = 0; step < options.steps; ++step) {
          if (evaluates) {
            TESSERA_RETURN_IF_ERROR(rank->Evaluate(1).status());
          }
          TESSERA_ASSIGN_OR_RETURN(const StepRecord record, rank->Step());
          losses.push_back(record.loss);
        }
        return absl::OkStatus();
      });
  TESSERA_RETURN_IF_ERROR(results[0]);
  return losses;
}

// Also not before the first step, which measures operands.
TEST(Fp8ParityTest, ValidationChangesNoScale) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto without, TrainAndEvaluate(false));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto with, TrainAndEvaluate(true));
  EXPECT_EQ(with, without);
}

TEST(Fp8ParityTest, NeedsWeightsInBf16) {
  ParityCase run = Fp8Case();
  run.dtype = DType::kF32;
  EXPECT_THAT(TrainCase(run), StatusIs(absl::StatusCode::kInvalidArgument,
                                       ::testing::HasSubstr("give bf16")));
}

}  // namespace
}  // namespace tessera::train
