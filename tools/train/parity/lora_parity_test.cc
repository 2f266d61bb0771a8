// Runs that train only LoRA's adapters: every mesh has the losses of one rank.
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

ParityCase LoraCase() { return {.clip = true, .lora_rank = 3, .steps = 10}; }

// With one kv head all tensor ranks hold the same keys and values, and with 8
// of them two have no query head.
TEST(LoraParityTest, MeshesMatchLossesOfOneRank) {
  for (const int64_t kv_heads : {1, 6}) {
    ParityCase run = LoraCase();
    run.kv_heads = kv_heads;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    EXPECT_LT(expected.back().loss, expected.front().loss);
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 2}, MeshSizes{.dp = 8}, MeshSizes{.pp = 2},
          MeshSizes{.cp = 4}, MeshSizes{.tp = 2}, MeshSizes{.tp = 8},
          MeshSizes{.dp = 2, .tp = 4}, MeshSizes{.dp = 2, .pp = 2, .tp = 2},
          MeshSizes{.dp = 2, .cp = 2, .tp = 2},
          MeshSizes{.dp = 4, .tp = 2, .dp_replicate = 2}}) {
      if (kv_heads == 6 && mesh.tp > 2) continue;
      run.mesh = mesh;
      run.stage = (run.stage + 1) % 4;
      run.sequence_parallel = !run.sequence_parallel;
      run.overlap_chunks = run.sequence_parallel ? 3 : 0;
      ExpectLosses(run, expected);
    }
  }
}

TEST(LoraParityTest, SchedulesAndRecomputationMatchLossesOfOneRank) {
  ParityCase run = LoraCase();
  run.layers = 4;
  run.tied = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  run.mesh = {.dp = 2, .pp = 2};
  for (const std::string schedule : {"gpipe", "zb_v", "dualpipev"}) {
    run.schedule = schedule;
    run.chunks = schedule == "gpipe" ? 1 : 2;
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      run.recompute = recompute;
      run.stage = run.stage == 3 ? 2 : 3;
      ExpectLosses(run, expected);
    }
  }
}

TEST(LoraParityTest, EveryArchitectureMatchesLossesOfOneRank) {
  for (const std::string architecture :
       {"llama3.1", "mistral", "qwen2", "qwen3", "gemma", "mixtral", "dots1",
        "gemma2", "olmo2", "smollm3", "gpt_oss", "deepseek2", "deepseek3"}) {
    ParityCase run = LoraCase();
    run.architecture = architecture;
    const bool is_mixture = IsMixture(architecture);
    // In f32, rounding can make a token select other experts.
    if (is_mixture) run.dtype = DType::kF64;
    const double tolerance = is_mixture ? 1e-10 : 1e-5;
    run.documents = true;
    run.mesh = {.dp = 2, .tp = 2};
    if (is_mixture) run.mesh.ep = 2;
    run.stage = 3;
    ExpectPlainLosses(run, tolerance);
    run.reduce = "each";
    run.mesh.pp = 2;
    ExpectPlainLosses(run, tolerance);
    run.reduce = "auto";
    run.mesh = {.dp = 2, .pp = 2, .cp = 2};
    run.stage = 1;
    ExpectPlainLosses(run, tolerance);
  }
}

TEST(LoraParityTest, TypesAndTiersMatchLossesOfOneRank) {
  for (const std::string tier : {"host", "file"}) {
    ParityCase run = LoraCase();
    run.mesh = {.dp = 2, .tp = 2};
    run.stage = 3;
    run.offload = "all";
    run.tier = tier;
    ExpectPlainLosses(run);
  }
  ParityCase f64 = LoraCase();
  f64.mesh = {.dp = 2, .tp = 2};
  f64.stage = 3;
  f64.dtype = DType::kF64;
  ExpectPlainLosses(f64, 1e-12);
  ParityCase bf16 = LoraCase();
  bf16.mesh = {.dp = 2, .tp = 2};
  bf16.stage = 3;
  bf16.dtype = DType::kBF16;
  ExpectPlainLosses(bf16, 2e-2);
}

// A base in NF4 has the losses of a base that was rounded to NF4 before.
TEST(LoraParityTest, QuantizedBasesMatchRoundedBaseOnOneRank) {
  for (const std::string architecture :
       {"llama", "mixtral", "deepseek2", "deepseek3"}) {
    const bool is_mixture = IsMixture(architecture);
    const double tolerance = is_mixture ? 1e-10 : 1e-5;
    ParityCase run = LoraCase();
    run.architecture = architecture;
    run.base_weights = "nf4";
    run.stage = 3;
    run.steps = 5;
    run.dtype = is_mixture ? DType::kF64 : DType::kF32;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    for (MeshSizes mesh : {MeshSizes{}, MeshSizes{.dp = 2}, MeshSizes{.pp = 2},
                           MeshSizes{.tp = 2}, MeshSizes{.cp = 2},
                           MeshSizes{.dp = 2, .pp = 2, .tp = 2}}) {
      if (is_mixture && mesh.dp == 2) mesh.ep = 2;
      run.mesh = mesh;
      run.sequence_parallel = !run.sequence_parallel;
      ExpectLosses(run, expected, tolerance);
    }
    run.mesh = {.dp = 2};
    run.offload = "all";
    run.tier = "host";
    ExpectLosses(run, expected, tolerance);
    run.base_weights = "full";
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto full, TrainCase(run));
    EXPECT_GT(DifferenceOf(full, expected).loss, 1e-4);
  }
  ParityCase bf16 = LoraCase();
  bf16.base_weights = "nf4";
  bf16.dtype = DType::kBF16;
  bf16.stage = 3;
  bf16.mesh = {.dp = 2, .tp = 2};
  ExpectPlainLosses(bf16, 2e-2);
}

// Some ranks own no part of a matrix.
TEST(LoraParityTest, QuantizedBasesMatchRoundedBaseInEveryLayout) {
  ParityCase run = LoraCase();
  run.base_weights = "nf4";
  run.stage = 3;
  run.steps = 3;
  run.dtype = DType::kF64;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  run.mesh = {.dp = 8};
  for (const zero3::LayoutKind layout :
       {zero3::LayoutKind::kRoundRobin, zero3::LayoutKind::kBalanced}) {
    run.layout = layout;
    for (run.device_seed = 0; run.device_seed <= 1; ++run.device_seed) {
      ExpectLosses(run, expected, 1e-10);
    }
  }
}

TEST(LoraParityTest, QuantizedBasesMatchRoundedBaseOnDevices) {
  ParityCase run = LoraCase();
  run.base_weights = "nf4";
  run.stage = 3;
  run.steps = 4;
  run.mesh = {.dp = 2, .tp = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
  run.device_seed = 3;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
  EXPECT_EQ(DifferenceOf(actual, expected).loss, 0);
}

// The same bits as the processor; a missing wait would be an error.
TEST(LoraParityTest, DevicesMatchCpuBitForBit) {
  ParityCase run = LoraCase();
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

TEST(LoraParityTest, TargetsAndRanksHaveDifferentLosses) {
  ParityCase run = LoraCase();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto all, TrainCase(run));
  for (const std::string targets : {"attention", "mlp"}) {
    run.lora_targets = targets;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, TrainCase(run));
    EXPECT_EQ(other[0].loss, all[0].loss);
    EXPECT_GT(DifferenceOf(other, all).loss, 1e-4);
    ParityCase mesh = run;
    mesh.mesh = {.dp = 2, .tp = 2};
    ExpectLosses(mesh, other);
  }
  run.lora_targets = "all";
  run.lora_rank = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto full, TrainCase(run));
  EXPECT_EQ(full[0].loss, all[0].loss);
  EXPECT_GT(DifferenceOf(full, all).loss, 1e-3);
}

}  // namespace
}  // namespace tessera::train
