// Runs in f16 with a dynamic loss scale: every mesh has the losses, and skips
// the steps, of one rank.
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"

namespace tessera::train {
namespace {

// Steps of f16 are an eighth of those of bf16, whose runs are within 2e-2.
constexpr double kTolerance = 2.5e-3;

ParityCase HalfCase() {
  return {.clip = true, .dtype = DType::kF16, .steps = 10};
}

void ExpectSame(const ParityCase& run,
                const std::vector<StepRecord>& expected) {
  SCOPED_TRACE(::testing::Message() << run);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i].loss, expected[i].loss,
                kTolerance * expected[i].loss);
    EXPECT_EQ(actual[i].skipped, expected[i].skipped) << i;
    EXPECT_EQ(actual[i].loss_scale, expected[i].loss_scale) << i;
  }
}

TEST(Fp16ParityTest, MeshesMatchLossesOfOneRank) {
  ParityCase run = HalfCase();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  EXPECT_LT(expected.back().loss, 0.95 * expected.front().loss);
  EXPECT_GT(expected.back().loss_scale, expected.front().loss_scale);
  for (const MeshSizes& mesh :
       {MeshSizes{.dp = 2}, MeshSizes{.pp = 2}, MeshSizes{.cp = 4},
        MeshSizes{.tp = 2}, MeshSizes{.dp = 2, .pp = 2, .tp = 2},
        MeshSizes{.dp = 2, .cp = 2, .tp = 2},
        MeshSizes{.dp = 4, .tp = 2, .dp_replicate = 2}}) {
    run.mesh = mesh;
    run.stage = (run.stage + 1) % 4;
    run.sequence_parallel = !run.sequence_parallel;
    ExpectSame(run, expected);
  }
}

TEST(Fp16ParityTest, LossesAreCloseToF32) {
  for (const std::string architecture : {"llama", "qwen3", "mixtral"}) {
    ParityCase run = HalfCase();
    run.architecture = architecture;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto half, TrainCase(run));
    run.dtype = DType::kF32;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto single, TrainCase(run));
    for (size_t i = 0; i < half.size(); ++i) {
      EXPECT_NEAR(half[i].loss, single[i].loss, 1e-2 * single[i].loss);
    }
  }
}

// The first scale is so large that gradients overflow: all ranks skip the same
// steps, though only some have seen an overflow.
TEST(Fp16ParityTest, OverflowsLowerTheScaleOfAllRanks) {
  ParityCase run = HalfCase();
  run.loss_scale = 1 << 24;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  EXPECT_TRUE(expected[0].skipped);
  EXPECT_EQ(expected[0].loss_scale, 1 << 24);
  EXPECT_EQ(expected[1].loss_scale, 1 << 23);
  EXPECT_FALSE(expected.back().skipped && expected[8].skipped);
  for (const MeshSizes& mesh :
       {MeshSizes{.dp = 2}, MeshSizes{.dp = 2, .pp = 2, .tp = 2},
        MeshSizes{.cp = 2, .tp = 2}}) {
    run.mesh = mesh;
    run.stage = run.stage == 3 ? 1 : 3;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
    EXPECT_TRUE(actual[0].skipped);
    EXPECT_EQ(actual[1].loss_scale, 1 << 23);
    EXPECT_FALSE(actual.back().skipped && actual[8].skipped);
  }
}

// The same bits as the processor; a missing wait would be an error.
TEST(Fp16ParityTest, DevicesMatchCpuBitForBit) {
  ParityCase run = HalfCase();
  run.mesh = {.dp = 2, .tp = 2};
  run.stage = 3;
  run.steps = 4;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
  for (run.device_seed = 1; run.device_seed <= 2; ++run.device_seed) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
    EXPECT_EQ(DifferenceOf(actual, expected).loss, 0);
    EXPECT_EQ(DifferenceOf(actual, expected).gradient_norm, 0);
  }
}

}  // namespace
}  // namespace tessera::train
