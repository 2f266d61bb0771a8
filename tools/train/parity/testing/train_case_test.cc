#include "tools/train/parity/testing/train_case.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/parity/testing/parity_case.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(DifferenceOfTest, IsTheLargestOfAnyStep) {
  const std::vector<StepRecord> expected = {{.loss = 2, .gradient_norm = 8},
                                            {.loss = 4, .gradient_norm = 1}};
  EXPECT_EQ(DifferenceOf(expected, expected).loss, 0);
  const ParityDifference difference = DifferenceOf(
      {{.loss = 2.5, .gradient_norm = 8}, {.loss = 4, .gradient_norm = 0.5}},
      expected);
  EXPECT_EQ(difference.loss, 0.25);
  EXPECT_EQ(difference.gradient_norm, 0.5);
}

TEST(DifferenceOfTest, IsInfiniteIfValueIsMissing) {
  const std::vector<StepRecord> expected = {{.loss = 2, .gradient_norm = 8}};
  EXPECT_EQ(DifferenceOf({}, expected).loss, kInfinity);
  EXPECT_EQ(DifferenceOf({}, expected).gradient_norm, kInfinity);
  EXPECT_EQ(
      DifferenceOf({{.loss = std::nan(""), .gradient_norm = 8}}, expected).loss,
      kInfinity);
}

// Each option that must change the losses changes them by far more than the
// tolerance of parity tests, so these tests can fail.
TEST(TrainCaseTest, LossesDependOnTheModelAndOnClipping) {
  const ParityCase plain = {.steps = 4};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(plain));
  ASSERT_THAT(expected, SizeIs(4));
  EXPECT_GT(expected[0].gradient_norm, 0.5);  // Clipping applies.
  for (const ParityCase& other : {ParityCase{.tied = true, .steps = 4},
                                  {.clip = true, .steps = 4},
                                  {.kv_heads = 1, .steps = 4},
                                  {.layers = 2, .steps = 4},
                                  {.length = 12, .steps = 4},
                                  {.dtype = DType::kBF16, .steps = 4}}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(other));
    EXPECT_GT(DifferenceOf(actual, expected).loss, 1e-4) << other;
  }
}

TEST(RunOptionsOfTest, KeepsGatherAndReduceOptions) {
  const RunOptions options = RunOptionsOf({.stage = 3,
                                           .persistence_threshold = 100,
                                           .gather_ahead = 2,
                                           .max_gathered_bytes = 30'000,
                                           .reduce = "each"});
  EXPECT_EQ(options.state.persistence_threshold, 100);
  EXPECT_EQ(options.gather_ahead, 2);
  EXPECT_EQ(options.max_gathered_bytes, 30'000);
  EXPECT_EQ(options.reduce, ReduceChoice::kEachMicroBatch);
  EXPECT_EQ(RunOptionsOf({.reduce = "last"}).reduce,
            ReduceChoice::kLastMicroBatch);
  EXPECT_EQ(RunOptionsOf({}).reduce, ReduceChoice::kAuto);
}

TEST(TrainCaseTest, PlainCaseKeepsOnlyModel) {
  const ParityCase run = {.mesh = {.dp = 2},
                          .schedule = "gpipe",
                          .stage = 3,
                          .offload = "all",
                          .tier = "host",
                          .tied = true,
                          .kv_heads = 3,
                          .steps = 2};
  const ParityCase plain = PlainCase(run);
  EXPECT_EQ(plain.mesh.world_size(), 1);
  EXPECT_EQ(plain.schedule, "1f1b");
  EXPECT_EQ(plain.stage, 0);
  EXPECT_EQ(plain.offload, "none");
  EXPECT_TRUE(plain.tied);
  EXPECT_EQ(plain.kv_heads, 3);
  EXPECT_EQ(plain.steps, 2);
}

TEST(TrainCaseTest, AnErrorNamesTheRank) {
  EXPECT_THAT(TrainCase({.mesh = {.dp = 2}, .schedule = "none"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 0: unknown generator \"none\"")));
  EXPECT_THAT(
      TrainCase({.stage = 2, .offload = "params", .tier = "host"}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use stage 3")));
}

TEST(EveryMeshTest, HasAllThirtyFiveOnce) {
  const std::vector<MeshSizes> meshes = EveryMesh();
  ASSERT_THAT(meshes, SizeIs(35));
  for (size_t i = 0; i < meshes.size(); ++i) {
    const int64_t ranks = meshes[i].world_size();
    EXPECT_TRUE(ranks == 1 || ranks == 2 || ranks == 4 || ranks == 8);
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(
          meshes[i].dp == meshes[j].dp && meshes[i].pp == meshes[j].pp &&
          meshes[i].cp == meshes[j].cp && meshes[i].tp == meshes[j].tp);
    }
  }
}

}  // namespace
}  // namespace tessera::train
