// Compares predictions with the accounting of ranks that exist.
#include "zero3/state/predict_state.h"

#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3 {
namespace {

using offload::Purpose;
using ::testing::Each;
using ::testing::HasSubstr;

// Groups of odd sizes, with gaps, frozen and empty parameters.
ModelParameters OddModel(DType dtype) {
  ModelParameters::Builder model;
  model.Add({.name = "table", .shape = {17, 5}, .dtype = dtype});
  model.Add({.name = "a", .shape = {3, 7}, .dtype = dtype, .group = 2});
  model.Add({.name = "bias", .shape = {3}, .dtype = dtype, .group = 2});
  model.Add({.name = "frozen",
             .shape = {11},
             .dtype = dtype,
             .trainable = false,
             .group = 3});
  model.Add({.name = "empty", .shape = {0, 4}, .dtype = dtype, .group = 4});
  model.Add({.name = "b", .shape = {29}, .dtype = dtype, .group = 4});
  return *model.Build();
}

absl::Status Train(ShardedState& state, const ModelParameters& model,
                   int steps) {
  for (int step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < model.group_count(); ++i) {
      TESSERA_RETURN_IF_ERROR(state.Acquire(model.group(i)));
      TESSERA_RETURN_IF_ERROR(state.Release(model.group(i)));
    }
    for (int64_t i = model.group_count() - 1; i >= 0; --i) {
      const auto group = model.group(i);
      TESSERA_RETURN_IF_ERROR(state.Acquire(group));
      const bool trains = model[group[0]].trainable();
      for (const ParameterId id : group) {
        if (trains) TESSERA_RETURN_IF_ERROR(state.Gradient(id).status());
      }
      if (trains) TESSERA_RETURN_IF_ERROR(state.ReduceGradients(group));
      TESSERA_RETURN_IF_ERROR(state.Release(group));
    }
    TESSERA_RETURN_IF_ERROR(state.Step().status());
  }
  return absl::OkStatus();
}

void ExpectAsMeasured(const ModelParameters& model,
                      const ShardedStateOptions& options, int64_t ranks) {
  std::vector<offload::Usage> measured(static_cast<size_t>(ranks));
  ASSERT_THAT(
      collectives::RunRanks(
          ranks,
          [&](collectives::Communicator& world) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(
                const auto state,
                ShardedState::Create(model, options, {.shard = &world}));
            TESSERA_RETURN_IF_ERROR(Train(*state, model, 1));
            const auto own = static_cast<size_t>(world.rank().value());
            measured[own] = state->usage();
            TESSERA_RETURN_IF_ERROR(Train(*state, model, 2));
            // Later steps need no more.
            return state->usage() == measured[own]
                       ? absl::OkStatus()
                       : absl::InternalError("steps differ");
          }),
      Each(IsOk()));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const offload::Usage usage,
        PredictState(model, options, ranks, topology::Rank(rank)));
    const offload::Usage& real = measured[static_cast<size_t>(rank)];
    EXPECT_EQ(usage.peak, real.peak) << rank;
    EXPECT_EQ(usage.current, real.current) << rank;
    for (const Purpose purpose : offload::kAllPurposes) {
      EXPECT_EQ(usage.of(purpose), real.of(purpose)) << purpose;
    }
  }
}

TEST(PredictStateTest, EveryStageMatchesMeasurement) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ModelParameters model = OddModel(dtype);
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t ranks : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message()
                     << dtype << " stage " << stage << " ranks " << ranks);
        ExpectAsMeasured(model, {.stage = stage}, ranks);
      }
    }
  }
}

TEST(PredictStateTest, OptionsMatchMeasurement) {
  const ModelParameters model = OddModel(DType::kBF16);
  for (const LayoutKind layout :
       {LayoutKind::kRoundRobin, LayoutKind::kBalanced}) {
    ExpectAsMeasured(model, {.stage = 3, .layout = layout}, 3);
  }
  ExpectAsMeasured(model, {.stage = 3, .persistence_threshold = 25}, 2);
  ExpectAsMeasured(model, {.stage = 2, .bucket_bytes = 64}, 2);
  ExpectAsMeasured(model,
                   {.stage = 1,
                    .moments = offload::MomentFormat::Blockwise8(),
                    .clip_norm = 1},
                   2);
  ExpectAsMeasured(
      model, {.stage = 2, .optimizer = OptimizerKind::kSgd, .sgd = {}}, 2);
}

TEST(PredictStateTest, MuonKeepsOneMomentOfMatrices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ModelParameters model,
      ModelParameters::Builder()
          .Add({.name = "w", .shape = {8, 4}, .orthogonalized = true})
          .Build());
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const offload::Usage usage,
      PredictState(model, {.optimizer = OptimizerKind::kMuon}, 2));
  EXPECT_EQ(usage.of(Purpose::kOptimizer).current, 4 * 8 * 4 / 2);
}

// 18 bytes for each parameter of 16 bits with 32-bit gradients, and
// the gathered weights of one group.
TEST(PredictStateTest, LargeModelsNeedNoMemory) {
  ModelParameters::Builder builder;
  constexpr int64_t kElements = int64_t{1} << 34;
  for (int64_t group = 0; group < 64; ++group) {
    builder.Add({.name = std::to_string(group),
                 .shape = {kElements},
                 .dtype = DType::kBF16,
                 .group = group});
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const ModelParameters model, builder.Build());
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const offload::Usage usage,
      PredictState(model, {.stage = 3}, /*ranks=*/1024));
  const int64_t own = 64 * kElements / 1024;
  EXPECT_EQ(usage.of(Purpose::kParameters).current, 2 * own);
  EXPECT_EQ(usage.of(Purpose::kGradients).current, 4 * own);
  EXPECT_EQ(usage.of(Purpose::kOptimizer).current, 12 * own);
  EXPECT_GT(usage.peak, 18 * own + 2 * kElements);
}

TEST(PredictStateTest, RejectsInvalidInputs) {
  const auto refused = [](const std::string& words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
  };
  const ModelParameters model = OddModel(DType::kF32);
  EXPECT_THAT(PredictState(ModelParameters(), {}, 1),
              refused("no parameters; add"));
  EXPECT_FALSE(PredictState(model, {}, 0).ok());
  EXPECT_FALSE(PredictState(model, {}, 2, topology::Rank(2)).ok());
  EXPECT_THAT(PredictState(model, {.stage = 4}, 1), refused("stage"));
  offload::HostTier tier(
      std::make_shared<offload::Accounting>("host", offload::kUnlimited));
  EXPECT_THAT(PredictState(model, {.optimizer_tier = &tier}, 1),
              refused("leave the tiers out"));
}

}  // namespace
}  // namespace tessera::zero3
