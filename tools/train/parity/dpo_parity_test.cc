// The loss of DPO is not a sum over tokens: it couples the sequences of a pair,
// whose tokens context ranks divide. Every mesh has the losses and rewards of
// one rank.
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/parity/testing/covering_array.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"

namespace tessera::train {
namespace {

using tensor_parallel::Recompute;

ParityCase DpoCase() {
  return {.micro_batch = 2, .dpo = true, .clip = true, .steps = 4};
}

void ExpectLosses(const ParityCase& run,
                  const std::vector<StepRecord>& expected, double tolerance) {
  SCOPED_TRACE(::testing::Message() << run);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
  const ParityDifference difference = DifferenceOf(actual, expected);
  EXPECT_LT(difference.loss, tolerance);
  EXPECT_LT(difference.gradient_norm, 10 * tolerance);
  for (size_t s = 0; s < expected.size(); ++s) {
    EXPECT_NEAR(*actual[s].reward_chosen, *expected[s].reward_chosen,
                20 * tolerance);
    EXPECT_NEAR(*actual[s].reward_rejected, *expected[s].reward_rejected,
                20 * tolerance);
    EXPECT_EQ(*actual[s].reward_accuracy, *expected[s].reward_accuracy);
  }
}

// Before the first step the model is its reference.
TEST(DpoParityTest, BeginsAtLogTwoAndLearnsThePairs) {
  ParityCase run = DpoCase();
  run.steps = 30;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto records, TrainCase(run));
  EXPECT_NEAR(records[0].loss, std::log(2), 1e-9);
  EXPECT_NEAR(*records[0].reward_chosen, 0, 1e-9);
  EXPECT_LT(records.back().loss, 0.5);
  EXPECT_GT(*records.back().reward_accuracy, 0.7);
  EXPECT_GT(*records.back().reward_chosen, *records.back().reward_rejected);
}

TEST(DpoParityTest, EveryMeshMatchesLossesOfOneRank) {
  ParityCase run = DpoCase();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  for (const MeshSizes& mesh : EveryMesh()) {
    if (mesh.dp > 4) continue;  // Of 8 sequences a rank has whole pairs.
    run.mesh = mesh;
    run.micro_batch = mesh.dp == 1 && run.micro_batch == 2 ? 4 : 2;
    run.sequence_parallel = !run.sequence_parallel;
    run.zigzag = run.zigzag != run.sequence_parallel;
    run.stage = (run.stage + 1) % 4;
    run.recompute = run.stage == 2 ? Recompute::kFull : Recompute::kNone;
    ExpectLosses(run, expected, 1e-5);
  }
}

TEST(DpoParityTest, InF64LossesAreWithinItsRounding) {
  ParityCase run = DpoCase();
  run.dtype = DType::kF64;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(PlainCase(run)));
  for (const MeshSizes& mesh : {MeshSizes{.dp = 4}, MeshSizes{.pp = 2, .cp = 2},
                                MeshSizes{.dp = 2, .cp = 2, .tp = 2}}) {
    run.mesh = mesh;
    run.stage = 3;
    ExpectLosses(run, expected, 1e-9);
  }
}

TEST(DpoParityTest, SchedulesAdaptersAndOffloadMatchLossesOfOneRank) {
  ParityCase two_way = DpoCase();
  two_way.mesh = {.pp = 2};
  two_way.schedule = "dualpipev";
  two_way.chunks = 2;
  two_way.layers = 4;
  two_way.tied = true;
  ParityCase split = DpoCase();
  split.mesh = {.pp = 2, .tp = 2};
  split.schedule = "zb_h1";
  split.lora_rank = 3;
  ParityCase away = DpoCase();
  away.mesh = {.dp = 2, .tp = 2};
  away.stage = 3;
  away.offload = "all";
  away.tier = "host";
  for (const ParityCase& run : {two_way, split, away}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                                 TrainCase(PlainCase(run)));
    ExpectLosses(run, expected, 1e-5);
  }
}

// A missing wait would be an error.
TEST(DpoParityTest, DevicesMatchCpuBitForBit) {
  ParityCase run = DpoCase();
  run.mesh = {.dp = 2, .pp = 2};
  run.stage = 3;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
  for (run.device_seed = 1; run.device_seed <= 2; ++run.device_seed) {
    ExpectLosses(run, expected, 1e-300);
  }
}

TEST(DpoParityTest, RefusesGraphs) {
  ParityCase run = DpoCase();
  run.graphs = true;
  run.device_seed = 1;
  EXPECT_THAT(TrainCase(run).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("the loss of DPO")));
}

}  // namespace
}  // namespace tessera::train
