#include "zero3/estimate/estimate_memory.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/estimate/testing_configs.h"
#include "zero3/estimate/toy_runtime.h"
#include "zero3/layout/testing_models.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using topology::Rank;

TEST(EstimateMemoryTest, StageThreeTakesSixteenBytesAParameterOverTheRanks) {
  const ModelParameters model = FourLayers();
  for (const int64_t ranks : {1, 2, 4, 8}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const MemoryUse use,
        EstimateMemory(model, Plain(3), {.ranks = ranks}, Rank(ranks - 1)));
    EXPECT_EQ(use.ModelState() * ranks, 16 * model.elements());
    EXPECT_EQ(use.Of(Purpose::kCopies) * ranks, 2 * model.elements());
    EXPECT_EQ(use.Of(Purpose::kGradients) * ranks, 2 * model.elements());
    EXPECT_EQ(use.Of(Purpose::kMasterWeights) * ranks, 4 * model.elements());
    EXPECT_EQ(use.Of(Purpose::kMoments) * ranks, 8 * model.elements());
    EXPECT_EQ(use.Of(Tier::kDevice), use.Total());
  }
}

// The table of the ZeRO paper: 16P, 4P + 12P/N, 2P + 14P/N, 16P/N.
TEST(EstimateMemoryTest, EachStageShardsWhatThePaperSays) {
  const ModelParameters model = FourLayers();
  const int64_t p = model.elements();
  for (const int64_t n : {1, 2, 4, 8}) {
    const int64_t expected[] = {16 * p, 4 * p + 12 * p / n, 2 * p + 14 * p / n,
                                16 * p / n};
    for (int64_t stage = 0; stage <= 3; ++stage) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const MemoryUse use,
          EstimateMemory(model, Plain(stage), {.ranks = n}));
      EXPECT_EQ(use.ModelState(), expected[stage]) << n << " at " << stage;
    }
  }
}

TEST(EstimateMemoryTest, Float32NeedsNoMasterAndSmallMomentsTakeLess) {
  const ModelParameters model =
      *ModelParameters::Builder().Add({.name = "a", .shape = {1024}}).Build();
  ZeroConfig config = Plain(3);
  config.alignment = 256;
  const auto state = [&](const OptimizerState& optimizer) {
    return EstimateMemory(model, config, {.ranks = 4, .optimizer = optimizer})
        ->ModelState();
  };
  EXPECT_EQ(state({}), 256 * 16);
  EXPECT_EQ(state({.moments = 1}), 256 * 12);
  EXPECT_EQ(state({.moments = 0}), 256 * 8);
  EXPECT_EQ(state({.type = MomentType::kBf16}), 256 * 12);
  EXPECT_EQ(state({.type = MomentType::kBlock8, .block = 256}),
            256 * 8 + 2 * (256 + 4));
}

TEST(EstimateMemoryTest, PaddingIsCounted) {
  const ModelParameters model =
      *ModelParameters::Builder().Add({.name = "a", .shape = {5}}).Build();
  // Two elements on each of four ranks, though the last has none to hold.
  EXPECT_EQ(
      EstimateMemory(model, Plain(3), {.ranks = 4}, Rank(3))->ModelState(),
      2 * 16);
}

ZeroConfig RandomConfig(std::mt19937_64& random) {
  const auto coin = [&] { return random() % 2 == 0; };
  const auto below = [&](uint64_t bound) {
    return static_cast<int64_t>(random() % bound);
  };
  ZeroConfig config;
  config.stage = below(4);
  config.layout = static_cast<LayoutKind>(random() % 3);
  config.alignment = 1 + below(4);
  config.offload_parameters = coin();
  config.offload_gradients = coin();
  config.offload_optimizer = coin();
  config.cpu_budget = ByteSize(1 + below(3000));
  config.device_parameter_budget = ByteSize(1 + below(2000));
  config.swap_directory = coin() ? "" : "/swap";
  config.strategy = static_cast<Strategy>(random() % 4);
  config.prefetch_buffer = 1 + below(5);
  config.async_prefetch = coin();
  config.overlap = coin();
  config.reduce_bucket_size = ByteSize(8 + below(500));
  config.parameter_persistence_threshold = below(30);
  config.max_live_parameters = below(200);
  config.max_reuse_distance = below(200);
  config.gradient_type =
      coin() ? GradientType::kFp32 : GradientType::kParameter;
  return config;
}

MemoryRequest RandomRequest(const ZeroConfig& config, std::mt19937_64& random) {
  MemoryRequest request = {
      .ranks = 1 + static_cast<int64_t>(random() % 6),
      .replicas = 1 + static_cast<int64_t>(random() % 2),
      .optimizer = {.moments = static_cast<int64_t>(random() % 3),
                    .type = static_cast<MomentType>(random() % 3),
                    .block = config.alignment}};
  return request;
}

// Buffers are in device memory alone.
void ExpectState(const MemoryUse& use, const MemoryUse& state) {
  for (const auto& purpose : topology::EnumNames<Purpose>::kTable) {
    for (const auto& tier : topology::EnumNames<Tier>::kTable) {
      const int64_t bytes = use.At(purpose.value, tier.value);
      if (IsModelState(purpose.value)) {
        ASSERT_EQ(bytes, state.At(purpose.value, tier.value))
            << use.ToString() << "\n"
            << state.ToString();
      } else if (tier.value != Tier::kDevice) {
        ASSERT_EQ(bytes, 0);
      }
      ASSERT_GE(bytes, 0);
    }
  }
}

TEST(EstimateMemoryTest, StateIsWhatTheRuleSaysElementByElement) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 3000; ++round) {
    const ModelParameters model = RandomModel(random);
    const ZeroConfig config = RandomConfig(random);
    const MemoryRequest request = RandomRequest(config, random);
    TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryModel memory,
                                 MemoryModel::Create(model, config, request));
    for (int64_t rank = 0; rank < request.ranks; ++rank) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryUse use,
                                   memory.Estimate(Rank(rank)));
      const ToyRuntime runtime(memory.layout(), config, request,
                               Rank(config.stage == 0 ? 0 : rank));
      ExpectState(use, runtime.state());
      if (HasFatalFailure()) return;
      ASSERT_THAT(EstimateMemory(model, config, request, Rank(rank)),
                  IsOkAndHolds(use));
      int64_t blocks = 0;
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<StateBlock> of_rank,
                                   memory.Blocks(Rank(rank)));
      for (const StateBlock& block : of_rank) {
        ASSERT_GT(block.bytes, 0);
        blocks += block.bytes;
      }
      ASSERT_EQ(blocks, use.ModelState());
    }
  }
}

// What the offload choice moves, it neither loses nor adds.
TEST(EstimateMemoryTest, OffloadAndFilesOnlyMoveModelState) {
  std::mt19937_64 random(10);
  for (int round = 0; round < 300; ++round) {
    const ModelParameters model = RandomModel(random);
    ZeroConfig config = RandomConfig(random);
    const MemoryRequest request = RandomRequest(config, random);
    TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryUse use,
                                 EstimateMemory(model, config, request));
    config.offload_parameters = false;
    config.offload_gradients = false;
    config.offload_optimizer = false;
    TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryUse kept,
                                 EstimateMemory(model, config, request));
    for (const auto& purpose : topology::EnumNames<Purpose>::kTable) {
      if (!IsModelState(purpose.value)) continue;
      ASSERT_EQ(use.Of(purpose.value), kept.Of(purpose.value));
    }
    ASSERT_EQ(kept.Of(Tier::kHost) + kept.Of(Tier::kFile), 0);
  }
}

TEST(CheckFitsTest, NamesWhatDoesNotFitAndTheBudget) {
  const ModelParameters model = FourLayers();
  const auto check = [&](const ZeroConfig& config, int64_t ranks) {
    return MemoryModel::Create(model, config, {.ranks = ranks})->CheckFits();
  };
  ZeroConfig config;
  TESSERA_EXPECT_OK(check(config, 1));
  config.cpu_budget = ByteSize(8256 * 4 * 14 - 1);
  EXPECT_THAT(check(config, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("rank 0 needs 462336 bytes of host"),
                             HasSubstr("allowed: 462335 (cpu_budget"),
                             HasSubstr("swap_directory"))));
  TESSERA_EXPECT_OK(check(config, 2));
  config = Plain(3);
  config.layout = LayoutKind::kRoundRobin;
  config.max_live_parameters = 0;
  // Rank 0 of 2 holds the weights, rank 1 the biases.
  config.device_parameter_budget = ByteSize(4 * 16384 + 8256 * 2 - 1);
  EXPECT_THAT(check(config, 2),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("rank 0 needs 82048 bytes of device"),
                             HasSubstr("(device_parameter_budget "))));
  config.device_parameter_budget = ByteSize(4 * 16384 + 8256 * 2);
  TESSERA_EXPECT_OK(check(config, 2));
}

std::string Refusal(const ZeroConfig& config, const MemoryRequest& request) {
  const auto memory = MemoryModel::Create(FourLayers(), config, request);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(memory.status().message());
}

TEST(EstimateMemoryTest, WrongRequestsAreRefused) {
  const ZeroConfig config;
  EXPECT_THAT(Refusal({.stage = 4}, {}), HasSubstr("stage is 4"));
  EXPECT_THAT(Refusal(config, {.ranks = 0}), HasSubstr("ranks is 0"));
  EXPECT_THAT(Refusal(config, {.replicas = 0}), HasSubstr("replicas is 0"));
  EXPECT_THAT(Refusal(config, {.optimizer = {.moments = 3}}),
              HasSubstr("optimizer.moments is 3; allowed: 0 to 2"));
  EXPECT_THAT(Refusal(config, {.optimizer = {.block = 0}}),
              HasSubstr("optimizer.block is 0"));
  EXPECT_THAT(
      Refusal(config, {.optimizer = {.type = static_cast<MomentType>(7)}}),
      HasSubstr("optimizer.type is 7; allowed: fp32, bf16, block8"));
  EXPECT_THAT(Refusal(config, {.optimizer = {.type = MomentType::kBlock8}}),
              HasSubstr("set alignment to 256"));
  UseOrder order;
  const ParameterId unknown(8);
  order.Use({&unknown, 1});
  EXPECT_THAT(Refusal(config, {.order = order}),
              HasSubstr("parameter 8, which has no size"));
  const MemoryModel memory =
      *MemoryModel::Create(FourLayers(), config, {.ranks = 2});
  for (const int64_t rank : {-1, 2}) {
    EXPECT_THAT(memory.Estimate(Rank(rank)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("no rank ", rank))));
    EXPECT_THAT(memory.Blocks(Rank(rank)),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(EstimateMemoryTest, AnEmptyModelNeedsNothing) {
  for (int64_t stage = 0; stage <= 3; ++stage) {
    EXPECT_THAT(EstimateMemory(ModelParameters(), {.stage = stage},
                               {.ranks = 3}, Rank(2)),
                IsOkAndHolds(MemoryUse()));
  }
}

// The largest layout that is allowed, with everything that can multiply.
TEST(EstimateMemoryTest, TheLargestModelsDoNotOverflow) {
  ModelParameters::Builder builder;
  for (int i = 0; i < 4; ++i) {
    builder.Add({.name = absl::StrCat(i),
                 .shape = {kMaxLayoutElements / 4},
                 .dtype = DType::kF64,
                 .group = i});
  }
  ZeroConfig config;
  config.prefetch_buffer = 2048;
  config.swap_directory = "/swap";
  config.max_reuse_distance = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryUse use,
                               EstimateMemory(*builder.Build(), config, {}));
  // Values, gradients and two moments, all f64.
  EXPECT_EQ(use.ModelState(), kMaxLayoutElements * 32);
  EXPECT_GT(use.Buffers(), 0);
}

}  // namespace
}  // namespace tessera::zero3
