// Cases beyond pairs of options: every mesh, sizes that leave ranks idle, bf16,
// and the same run twice.
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
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
using ::testing::SizeIs;

void ExpectLosses(const ParityCase& run,
                  const std::vector<StepRecord>& expected, double tolerance) {
  SCOPED_TRACE(::testing::Message() << run);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
  const ParityDifference difference = DifferenceOf(actual, expected);
  EXPECT_LT(difference.loss, tolerance);
  EXPECT_LT(difference.gradient_norm, 10 * tolerance);
}

void ExpectPlainLosses(const ParityCase& run, double tolerance) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  ExpectLosses(run, expected, tolerance);
}

TEST(MeshParityTest, EveryMeshMatchesLossesOfOneRank) {
  ParityCase run = {.stage = 1, .clip = true, .steps = 3};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  for (const MeshSizes& mesh : EveryMesh()) {
    run.mesh = mesh;
    ExpectLosses(run, expected, 1e-5);
    run.sequence_parallel = !run.sequence_parallel;
    run.zigzag = run.zigzag != run.sequence_parallel;
    run.stage = (run.stage + 1) % 4;
  }
}

// Stages may have only the embedding, only the head, or no layer between other
// stages.
TEST(MeshParityTest, EverySplitOfLayersMatchesLossesOfOneRank) {
  ParityCase run = {.clip = true, .steps = 3};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  run.mesh = {.dp = 2, .pp = 2};
  for (const auto& [schedule, layers] :
       std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"1f1b", {1, 2}},
           {"1f1b", {3, 0}},
           {"auto", {0, 3}},
           {"dualpipe", {0, 3}},
           {"zb_v", {1, 0, 2, 0}},
           {"interleaved_1f1b", {0, 1, 0, 2}}}) {
    run.schedule = schedule;
    run.chunks = static_cast<int64_t>(layers.size()) / 2;
    run.layers_per_stage = layers;
    SCOPED_TRACE(::testing::PrintToString(layers));
    ExpectLosses(run, expected, 1e-5);
    run.stage = run.stage == 3 ? 0 : 3;
  }
}

// Sharded over a part of the data ranks, replicated over the others.
TEST(MeshParityTest, HybridShardingMatchesLossesOfOneRank) {
  ParityCase run = {.clip = true, .steps = 6};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  for (const MeshSizes& mesh :
       {MeshSizes{.dp = 4, .dp_replicate = 2},
        MeshSizes{.dp = 4, .dp_replicate = 4},
        MeshSizes{.dp = 8, .dp_replicate = 2},
        MeshSizes{.dp = 2, .cp = 2, .tp = 2, .dp_replicate = 2},
        MeshSizes{.dp = 4, .pp = 2, .dp_replicate = 2}}) {
    for (int stage = 0; stage <= 3; ++stage) {
      run.mesh = mesh;
      run.stage = stage;
      run.bucket_bytes = stage % 2 == 0 ? 700 : 25'000'000;
      ExpectLosses(run, expected, 1e-5);
    }
  }
}

// Every way to divide experts, in f32, as long as no rounding moves a token to
// another expert (covering_parity_test has mixtures in f64).
TEST(MeshParityTest, MixturesMatchLossesOfOneRank) {
  for (const std::string architecture :
       {"mixtral", "dots1", "gpt_oss", "deepseek3"}) {
    ParityCase run = {.architecture = architecture, .clip = true, .steps = 6};
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 2, .ep = 2}, MeshSizes{.dp = 4, .ep = 4},
          MeshSizes{.dp = 4, .tp = 2, .ep = 2}, MeshSizes{.cp = 4, .ep = 2},
          MeshSizes{.dp = 2, .cp = 2, .tp = 2, .ep = 4},
          MeshSizes{.dp = 2, .pp = 2, .cp = 2, .ep = 4},
          MeshSizes{.dp = 4, .pp = 2, .dp_replicate = 2, .ep = 2},
          MeshSizes{.dp = 2, .pp = 2, .tp = 2}}) {
      run.mesh = mesh;
      for (const int stage : {1, 3}) {
        run.stage = stage;
        run.sequence_parallel = stage == 3;
        run.recompute = stage == 3 ? Recompute::kFull : Recompute::kSelective;
        ExpectLosses(run, expected, 1e-5);
      }
    }
  }
}

// Passes of a pair take turns while rows travel.
TEST(MeshParityTest, OverlappedPairsMatchLossesOfOneRank) {
  for (const std::string architecture : {"mixtral", "dots1", "gpt_oss"}) {
    ParityCase run = {.architecture = architecture, .clip = true, .steps = 6};
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    for (const auto& [schedule, chunks] :
         {std::pair{"dualpipe", 1}, {"dualpipev", 2}}) {
      run.schedule = schedule;
      run.chunks = chunks;
      for (const MeshSizes& mesh :
           {MeshSizes{.dp = 2, .pp = 2, .ep = 2},
            MeshSizes{.dp = 2, .pp = 2, .tp = 2, .ep = 2}}) {
        run.mesh = mesh;
        for (const int stage : {1, 3}) {
          run.stage = stage;
          run.sequence_parallel = stage == 3;
          run.recompute = stage == 3 ? Recompute::kFull : Recompute::kNone;
          ExpectLosses(run, expected, 1e-5);
        }
      }
    }
  }
}

TEST(MeshParityTest, ExpertLoadsMatchOneRank) {
  for (const std::string architecture : {"mixtral", "dots1"}) {
    ParityCase run = {.architecture = architecture, .steps = 3};
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    run.mesh = {.dp = 2, .pp = 2, .cp = 2, .ep = 4};
    run.recompute = Recompute::kFull;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(expected[i].expert_imbalance.has_value());
      EXPECT_GT(*expected[i].expert_imbalance, 1);
      EXPECT_LE(*expected[i].expert_imbalance, 8);
      EXPECT_EQ(actual[i].expert_imbalance, expected[i].expert_imbalance);
    }
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto dense, TrainCase({.steps = 1}));
  EXPECT_FALSE(dense[0].expert_imbalance.has_value());
}

// Otherwise no test would notice that meshes ignore them.
TEST(MeshParityTest, TheRecipeChangesLosses) {
  const ParityCase plain = {.steps = 12};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(plain));
  ParityCase decays = plain, terms = plain;
  decays.decay_all = true;
  terms.loss_terms = true;
  for (const ParityCase& run : {decays, terms}) {
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
    EXPECT_GT(DifferenceOf(actual, expected).loss, 1e-4);
  }
}

TEST(MeshParityTest, SecondCopiesOfWeightsChangeNoBit) {
  for (ParityCase run :
       {ParityCase{.mesh = {.dp = 4}, .recompute = Recompute::kFull},
        ParityCase{.mesh = {.dp = 8, .dp_replicate = 2}, .tied = true},
        ParityCase{.mesh = {.dp = 2, .pp = 2, .cp = 2},
        .offload = "params",
        .tier = "host"}}) {
    run.stage = 3;
    run.steps = 4;
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    for (const int64_t size : {2, 4}) {
      run.hpz_partition_size = size;
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
      EXPECT_EQ(DifferenceOf(actual, expected).loss, 0);
      EXPECT_EQ(DifferenceOf(actual, expected).gradient_norm, 0);
    }
  }
}

TEST(MeshParityTest, QuantizedMessagesChangeLossesLittle) {
  for (const MeshSizes& mesh :
       {MeshSizes{.dp = 4}, MeshSizes{.dp = 4, .dp_replicate = 2},
        MeshSizes{.dp = 2, .pp = 2, .tp = 2}}) {
    for (const bool weights : {false, true}) {
      ParityCase run = {.mesh = mesh, .stage = 3, .steps = 12};
      run.quantized_weights = weights;
      run.quantized_gradients = !weights;
      SCOPED_TRACE(::testing::Message() << run);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                   TrainCase(PlainCase(run)));
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
      const ParityDifference difference = DifferenceOf(actual, expected);
      EXPECT_GT(difference.loss, 0);
      EXPECT_LT(difference.loss, 1e-2);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto again, TrainCase(run));
      EXPECT_EQ(DifferenceOf(again, actual).loss, 0);
    }
  }
}

TEST(MeshParityTest, RanksWithoutPositionsTokensOrLayers) {
  // 5 positions on 8 ranks, with both layouts; and 1 position on 2 ranks.
  for (const bool zigzag : {false, true}) {
    ExpectPlainLosses(
        {.mesh = {.cp = 8}, .zigzag = zigzag, .length = 5, .steps = 2}, 1e-5);
    ExpectPlainLosses({.mesh = {.cp = 2, .tp = 2},
                       .sequence_parallel = true,
                       .zigzag = zigzag,
                       .stage = 3,
                       .length = 1,
                       .steps = 2},
                      1e-5);
  }
  // 5 tokens on 8 ranks, two of which have no head.
  ExpectPlainLosses(
      {.mesh = {.tp = 8}, .sequence_parallel = true, .length = 5, .steps = 2},
      1e-5);
  // One layer in 4 and in 12 stages, with tied ends on distant ranks.
  ExpectPlainLosses(
      {.mesh = {.pp = 4}, .stage = 3, .tied = true, .layers = 1, .steps = 2},
      1e-5);
  ExpectPlainLosses({.mesh = {.pp = 4, .tp = 2},
                     .schedule = "interleaved_1f1b",
                     .chunks = 3,
                     .sequence_parallel = true,
                     .tied = true,
                     .layers = 1,
                     .steps = 2},
                    1e-5);
  ExpectPlainLosses({.mesh = {.pp = 4},
                     .schedule = "zb_v",
                     .chunks = 2,
                     .recompute = Recompute::kFull,
                     .tied = true,
                     .layers = 1,
                     .steps = 2},
                    1e-5);
}

// Part of the state is in host memory and the rest in a file.
TEST(MeshParityTest, SpilledStateMatchesLossesOfOneRank) {
  ParityCase run = {.mesh = {.dp = 2, .tp = 2},
                    .stage = 3,
                    .tier = "spill",
                    .clip = true,
                    .steps = 4};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  for (const zero3::LayoutKind layout :
       {zero3::LayoutKind::kChunks, zero3::LayoutKind::kRoundRobin,
        zero3::LayoutKind::kBalanced}) {
    for (const char* offload : {"gradients", "all"}) {
      run.layout = layout;
      run.offload = offload;
      ExpectLosses(run, expected, 1e-5);
    }
  }
}

std::vector<ParityCase> Samples() {
  return {
      {.mesh = {.dp = 2, .pp = 2, .tp = 2},
       .stage = 3,
       .offload = "all",
       .tier = "file",
       .lossless = true,
       .clip = true},
      {.mesh = {.pp = 2, .cp = 2, .tp = 2},
       .schedule = "zb_v",
       .chunks = 2,
       .sequence_parallel = true,
       .stage = 2,
       .tied = true},
      {.mesh = {.dp = 8},
       .recompute = Recompute::kSelective,
       .stage = 3,
       .layout = zero3::LayoutKind::kBalanced,
       .bucket_bytes = 700,
       .offload = "optimizer",
       .tier = "host"},
      {.mesh = {.cp = 4, .tp = 2},
       .micro_batch = 2,
       .recompute = Recompute::kFull,
       .stage = 1,
       .kv_heads = 1},
      {.mesh = {.pp = 4}, .schedule = "interleaved_1f1b", .chunks = 2},
      {.mesh = {.tp = 8}, .sequence_parallel = true, .clip = true},
  };
}

TEST(MeshParityTest, TheSameRunTwiceHasTheSameBits) {
  for (ParityCase run : Samples()) {
    run.steps = 6;
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto once, TrainCase(run));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto again, TrainCase(run));
    ASSERT_THAT(once, SizeIs(6));
    ASSERT_THAT(again, SizeIs(6));
    for (size_t s = 0; s < once.size(); ++s) {
      EXPECT_EQ(once[s].loss, again[s].loss) << "step " << s;
      EXPECT_EQ(once[s].gradient_norm, again[s].gradient_norm) << "step " << s;
    }
  }
}

TEST(MeshParityTest, InBf16LossesAreWithinItsRounding) {
  for (ParityCase run : Samples()) {
    run.steps = 12;
    run.dtype = DType::kBF16;
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
    // Compared with one rank in f32, and in bf16.
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      run.dtype = dtype;
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                   TrainCase(PlainCase(run)));
      const ParityDifference difference = DifferenceOf(actual, expected);
      EXPECT_LT(difference.loss, 2e-2);
      EXPECT_LT(difference.gradient_norm, 0.2);
      std::cout << "against " << DTypeName(dtype) << ": loss "
                << difference.loss << ", gradient norm "
                << difference.gradient_norm << "\n";
    }
  }
}

TEST(MeshParityTest, RecomputingChangesNoBit) {
  for (ParityCase run : Samples()) {
    run.steps = 3;
    run.recompute = Recompute::kNone;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    for (const Recompute recompute :
         {Recompute::kSelective, Recompute::kFull}) {
      run.recompute = recompute;
      SCOPED_TRACE(::testing::Message() << run);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
      EXPECT_EQ(DifferenceOf(actual, expected).loss, 0);
      EXPECT_EQ(DifferenceOf(actual, expected).gradient_norm, 0);
    }
  }
}

}  // namespace
}  // namespace tessera::train
