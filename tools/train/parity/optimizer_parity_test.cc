// Optimizers and parameter groups: every mesh has the losses of one rank. Muon
// and Shampoo update whole matrices, whose state and parts are spread over
// ranks; Adafactor needs statistics of whole matrices.
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

using tensor_parallel::Recompute;
using zero3::LayoutKind;

void ExpectLosses(const ParityCase& run,
                  const std::vector<StepRecord>& expected,
                  double tolerance = 1e-5) {
  SCOPED_TRACE(::testing::Message() << run);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
  const ParityDifference difference = DifferenceOf(actual, expected);
  EXPECT_LT(difference.loss, tolerance);
  EXPECT_LT(difference.gradient_norm, 10 * tolerance);
}

void ExpectPlainLosses(const ParityCase& run, double tolerance = 1e-5) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  ExpectLosses(run, expected, tolerance);
}

ParityCase MuonCase() {
  return {.clip = true, .optimizer = "muon", .steps = 8};
}

// With one kv head all tensor ranks hold the same keys and values, and with 8
// of them two have no query head.
TEST(MuonParityTest, MeshesMatchLossesOfOneRank) {
  ParityCase run = MuonCase();
  run.kv_heads = 1;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  for (const MeshSizes& mesh :
       {MeshSizes{.dp = 2}, MeshSizes{.dp = 8}, MeshSizes{.pp = 2},
        MeshSizes{.cp = 4}, MeshSizes{.tp = 2}, MeshSizes{.tp = 8},
        MeshSizes{.dp = 2, .tp = 4}, MeshSizes{.dp = 2, .pp = 2, .tp = 2},
        MeshSizes{.dp = 2, .cp = 2, .tp = 2},
        MeshSizes{.dp = 4, .tp = 2, .dp_replicate = 2}}) {
    run.mesh = mesh;
    run.stage = (run.stage + 1) % 4;
    run.sequence_parallel = !run.sequence_parallel;
    ExpectLosses(run, expected);
  }
}

TEST(MuonParityTest, EveryStageAndLayoutMatchesLossesOfOneRank) {
  ParityCase run = MuonCase();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  run.mesh = {.dp = 4, .tp = 2};
  for (run.stage = 0; run.stage <= 3; ++run.stage) {
    for (const LayoutKind layout :
         {LayoutKind::kChunks, LayoutKind::kRoundRobin,
          LayoutKind::kBalanced}) {
      run.layout = layout;
      run.persistence_threshold = run.stage == 3 ? 500 : 0;
      ExpectLosses(run, expected);
    }
  }
}

// Each expert is a matrix.
TEST(MuonParityTest, MixturesMatchLossesOfOneRank) {
  for (const std::string architecture : {"mixtral", "dots1", "deepseek3"}) {
    ParityCase run = MuonCase();
    run.architecture = architecture;
    run.steps = 6;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 4, .ep = 2}, MeshSizes{.dp = 4, .tp = 2, .ep = 2},
          MeshSizes{.dp = 2, .cp = 2, .tp = 2, .ep = 4},
          MeshSizes{.dp = 2, .pp = 2, .tp = 2}, MeshSizes{.tp = 8}}) {
      run.mesh = mesh;
      run.stage = run.stage == 3 ? 1 : 3;
      ExpectLosses(run, expected);
    }
  }
}

TEST(MuonParityTest, TiersAndTwoWayPipelinesMatchLossesOfOneRank) {
  for (const std::string tier : {"host", "file"}) {
    ParityCase run = MuonCase();
    run.mesh = {.dp = 2, .tp = 2};
    run.stage = 3;
    run.offload = "all";
    run.tier = tier;
    ExpectPlainLosses(run);
  }
  ParityCase two_way = MuonCase();
  two_way.mesh = {.dp = 2, .pp = 2};
  two_way.schedule = "dualpipev";
  two_way.chunks = 2;
  two_way.layers = 4;
  two_way.tied = true;
  two_way.stage = 2;
  ExpectPlainLosses(two_way);
  ParityCase f64 = MuonCase();
  f64.mesh = {.dp = 2, .tp = 2};
  f64.stage = 3;
  f64.dtype = DType::kF64;
  ExpectPlainLosses(f64, 1e-12);
  ParityCase bf16 = MuonCase();
  bf16.mesh = {.dp = 2, .tp = 2};
  bf16.stage = 3;
  bf16.dtype = DType::kBF16;
  ExpectPlainLosses(bf16, 2e-2);
}

ParityCase DoubleCase(const std::string& optimizer) {
  return {
      .clip = true, .optimizer = optimizer, .dtype = DType::kF64, .steps = 6};
}

constexpr double kDoubleTolerance = 1e-10;

class StatisticsParityTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, StatisticsParityTest,
                         ::testing::Values("adafactor", "shampoo"),
                         [](const auto& info) { return info.param; });

TEST_P(StatisticsParityTest, MeshesMatchLossesOfOneRank) {
  ParityCase run = DoubleCase(GetParam());
  run.kv_heads = 1;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  for (const MeshSizes& mesh :
       {MeshSizes{.dp = 2}, MeshSizes{.dp = 8}, MeshSizes{.pp = 2},
        MeshSizes{.cp = 4}, MeshSizes{.tp = 2}, MeshSizes{.tp = 8},
        MeshSizes{.dp = 2, .tp = 4}, MeshSizes{.dp = 2, .pp = 2, .tp = 2},
        MeshSizes{.dp = 2, .cp = 2, .tp = 2},
        MeshSizes{.dp = 4, .tp = 2, .dp_replicate = 2}}) {
    run.mesh = mesh;
    run.stage = (run.stage + 1) % 4;
    run.sequence_parallel = !run.sequence_parallel;
    ExpectLosses(run, expected, kDoubleTolerance);
  }
}

TEST_P(StatisticsParityTest, EveryStageAndLayoutMatchesLossesOfOneRank) {
  ParityCase run = DoubleCase(GetParam());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  run.mesh = {.dp = 4, .tp = 2};
  for (run.stage = 0; run.stage <= 3; ++run.stage) {
    for (const LayoutKind layout :
         {LayoutKind::kChunks, LayoutKind::kRoundRobin,
          LayoutKind::kBalanced}) {
      run.layout = layout;
      run.persistence_threshold = run.stage == 3 ? 500 : 0;
      ExpectLosses(run, expected, kDoubleTolerance);
    }
  }
}

TEST_P(StatisticsParityTest, ArchitecturesMatchLossesOfOneRank) {
  for (const std::string architecture :
       {"mixtral", "dots1", "deepseek3", "gpt_oss"}) {
    ParityCase run = DoubleCase(GetParam());
    run.architecture = architecture;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 4, .ep = 2}, MeshSizes{.dp = 4, .tp = 2, .ep = 2},
          MeshSizes{.dp = 2, .cp = 2, .tp = 2, .ep = 4},
          MeshSizes{.dp = 2, .pp = 2, .tp = 2}}) {
      run.mesh = mesh;
      run.stage = run.stage == 3 ? 1 : 3;
      ExpectLosses(run, expected, kDoubleTolerance);
    }
  }
}

TEST_P(StatisticsParityTest, TiersTypesAndCopiesMatchLossesOfOneRank) {
  for (const std::string tier : {"host", "file"}) {
    ParityCase run = DoubleCase(GetParam());
    run.mesh = {.dp = 2, .tp = 2};
    run.stage = 3;
    run.offload = "all";
    run.tier = tier;
    ExpectPlainLosses(run, kDoubleTolerance);
  }
  ParityCase tied = DoubleCase(GetParam());
  tied.mesh = {.dp = 2, .pp = 2};
  tied.tied = true;
  tied.stage = 3;
  ExpectPlainLosses(tied, kDoubleTolerance);
  ParityCase two_way = tied;
  two_way.schedule = "dualpipe";
  two_way.layers = 4;
  two_way.mesh.tp = 2;
  two_way.stage = 2;
  ExpectPlainLosses(two_way, kDoubleTolerance);
  ParityCase f32 = DoubleCase(GetParam());
  f32.mesh = {.dp = 2, .tp = 2};
  f32.stage = 3;
  f32.dtype = DType::kF32;
  ExpectPlainLosses(f32, 1e-4);
  ParityCase bf16 = f32;
  bf16.dtype = DType::kBF16;
  ExpectPlainLosses(bf16, 2e-2);
}

// Biases of fused projections, and adapters.
TEST(AdafactorParityTest, BiasesAndAdaptersMatchLossesOfOneRank) {
  for (const std::string architecture : {"qwen2", "mixtral"}) {
    ParityCase run = DoubleCase("adafactor");
    run.architecture = architecture;
    run.lora_rank = architecture == "mixtral" ? 2 : 0;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 4}, MeshSizes{.dp = 2, .tp = 2},
          MeshSizes{.pp = 2, .tp = 2}}) {
      run.mesh = mesh;
      run.stage = (run.stage + 1) % 4;
      if (run.lora_rank > 0 && mesh.dp > 1) run.mesh.ep = 2;
      ExpectLosses(run, expected, kDoubleTolerance);
    }
  }
}

TEST_P(StatisticsParityTest, DevicesMatchCpuBitForBit) {
  for (const std::string offload : {"none", "optimizer"}) {
    ParityCase run = DoubleCase(GetParam());
    run.dtype = DType::kBF16;
    run.mesh = {.dp = 2, .tp = 2};
    run.stage = 3;
    run.offload = offload;
    run.tier = offload == "none" ? "none" : "host";
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    for (run.device_seed = 1; run.device_seed <= 2; ++run.device_seed) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
      EXPECT_EQ(DifferenceOf(actual, expected).loss, 0);
      EXPECT_EQ(DifferenceOf(actual, expected).gradient_norm, 0);
    }
  }
}

// Slots of a rank hold parameters of several groups, and a tied table has a
// copy on another stage.
TEST(OptimizerParityTest, ParameterGroupsMatchLossesOfOneRank) {
  for (const std::string optimizer :
       {"adafactor", "adamw", "lion", "muon", "shampoo"}) {
    ParityCase run = {.tied = true,
                      .clip = true,
                      .optimizer = optimizer,
                      .dtype = DType::kF64,
                      .steps = 6};
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto ungrouped,
                                 TrainCase(PlainCase(run)));
    run.param_groups =
        "embedding.*:lr=0.25,decay=0;*norm*:decay=0.5;layers.1.*:lr=2";
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    EXPECT_GT(DifferenceOf(expected, ungrouped).loss, 1e-4);
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 4}, MeshSizes{.pp = 2}, MeshSizes{.cp = 2, .tp = 2},
          MeshSizes{.dp = 2, .pp = 2, .tp = 2}}) {
      run.mesh = mesh;
      run.stage = (run.stage + 1) % 4;
      ExpectLosses(run, expected, 1e-9);
    }
  }
}

TEST(OptimizerParityTest, LionMatchesLossesOfOneRank) {
  ParityCase run = {.optimizer = "lion", .dtype = DType::kF64, .steps = 6};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  for (const std::string tier : {"none", "host"}) {
    run.tier = tier;
    run.offload = tier == "host" ? "optimizer" : "none";
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 4}, MeshSizes{.pp = 2, .tp = 2},
          MeshSizes{.dp = 2, .cp = 2, .tp = 2}}) {
      run.mesh = mesh;
      run.stage = (run.stage + 1) % 4;
      ExpectLosses(run, expected, 1e-9);
    }
  }
}

// The same bits as the processor; a missing wait would be an error.
TEST(MuonParityTest, DevicesMatchCpuBitForBit) {
  for (const std::string offload : {"none", "optimizer"}) {
    ParityCase run = MuonCase();
    run.mesh = {.dp = 2, .tp = 2};
    run.stage = 3;
    run.steps = 4;
    run.offload = offload;
    run.tier = offload == "none" ? "none" : "host";
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    for (run.device_seed = 1; run.device_seed <= 2; ++run.device_seed) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
      EXPECT_EQ(DifferenceOf(actual, expected).loss, 0);
      EXPECT_EQ(DifferenceOf(actual, expected).gradient_norm, 0);
    }
  }
}

TEST(MuonParityTest, OptimizersHaveDifferentLosses) {
  ParityCase run = MuonCase();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto muon, TrainCase(run));
  for (const std::string optimizer : {"adafactor", "adamw", "sgd", "shampoo"}) {
    run.optimizer = optimizer;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, TrainCase(run));
    EXPECT_GT(DifferenceOf(other, muon).loss, 1e-3);
  }
  run.mesh = {.dp = 2, .tp = 2};
  run.stage = 3;
  run.optimizer = "sgd";
  ExpectPlainLosses(run);
}

}  // namespace
}  // namespace tessera::train
