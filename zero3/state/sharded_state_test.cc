#include "zero3/state/sharded_state.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/copy.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/host_tier.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ToyOptions;
using testing::ToyResult;
using testing::Train;
using testing::TrainByFormula;
using Values = std::vector<std::vector<double>>;

// The same bits on every rank.
Values TrainOk(const ToyOptions& options) {
  Values values;
  for (const auto& result : Train(options)) {
    EXPECT_THAT(result.status(), IsOk());
    if (!result.ok()) return {};
    if (values.empty()) values = result->values;
    EXPECT_EQ(result->values, values);
  }
  return values;
}

void ExpectNear(const Values& actual, const Values& expected,
                double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t p = 0; p < actual.size(); ++p) {
    ASSERT_EQ(actual[p].size(), expected[p].size());
    for (size_t e = 0; e < actual[p].size(); ++e) {
      ASSERT_NEAR(actual[p][e], expected[p][e],
                  tolerance * (1 + std::abs(expected[p][e])))
          << "parameter " << p << " element " << e;
    }
  }
}

ToyOptions Options(int stage, int64_t ranks) {
  ToyOptions options;
  options.ranks = ranks;
  options.state.stage = stage;
  options.state.adamw = {.learning_rate = 0.01, .weight_decay = 0.1};
  options.state.bucket_bytes = 300;
  return options;
}

TEST(ShardedStateTest, OneRankFollowsTheFormula) {
  for (int stage : {0, 1, 2, 3}) {
    ToyOptions options = Options(stage, 1);
    ExpectNear(TrainOk(options), TrainByFormula(options), 1e-5);
    options.dtype = DType::kF64;
    ExpectNear(TrainOk(options), TrainByFormula(options), 1e-12);
  }
}

class StagesTest
    : public ::testing::TestWithParam<std::tuple<int, int64_t, LayoutKind>> {};

TEST_P(StagesTest, EqualOneRankWithoutZero) {
  const auto [stage, ranks, layout] = GetParam();
  ToyOptions options = Options(stage, ranks);
  options.state.layout = layout;
  ToyOptions one = Options(0, 1);
  const Values values = TrainOk(options);
  ExpectNear(values, TrainOk(one), 1e-6);
  options.dtype = one.dtype = DType::kF64;
  ExpectNear(TrainOk(options), TrainOk(one), 1e-13);
}

// All stages agree bit for bit because sums are over the same ranks in the same
// order; this requires one part per rank, so that nothing is accumulated first.
TEST_P(StagesTest, HaveTheBitsOfStageZeroOnAsManyRanks) {
  const auto [stage, ranks, layout] = GetParam();
  ToyOptions options = Options(stage, ranks);
  options.parts = ranks;
  ToyOptions replicated = options;
  replicated.state.stage = 0;
  options.state.layout = layout;
  EXPECT_EQ(TrainOk(options), TrainOk(replicated));
}

INSTANTIATE_TEST_SUITE_P(
    All, StagesTest,
    ::testing::Combine(::testing::Values(0, 1, 2, 3),
                       ::testing::Values<int64_t>(1, 2, 3, 4, 8),
                       ::testing::Values(LayoutKind::kChunks,
                                         LayoutKind::kRoundRobin,
                                         LayoutKind::kBalanced)));

TEST(ShardedStateTest, PersistentParametersChangeNoBit) {
  const Values expected = TrainOk(Options(3, 3));
  ToyOptions options = Options(3, 3);
  options.state.persistence_threshold = 25;
  EXPECT_EQ(TrainOk(options), expected);
  options.state.bucket_bytes = 1;
  EXPECT_EQ(TrainOk(options), expected);
}

TEST(ShardedStateTest, HybridShardingEqualsOneGroup) {
  for (int stage : {1, 2, 3}) {
    ToyOptions hybrid = Options(stage, 2);
    hybrid.replicas = 2;
    ExpectNear(TrainOk(hybrid), TrainOk(Options(0, 1)), 1e-6);
  }
}

TEST(ShardedStateTest, StateInTiersHasTheSameBits) {
  for (int stage : {0, 1, 2, 3}) {
    const Values expected = TrainOk(Options(stage, 3));
    offload::HostTier tier(
        std::make_shared<offload::Accounting>("host", 1 << 20));
    ToyOptions options = Options(stage, 3);
    options.state.optimizer_tier = &tier;
    if (stage >= 2) options.state.gradient_tier = &tier;
    if (stage == 3) options.state.parameter_tier = &tier;
    EXPECT_EQ(TrainOk(options), expected);
    EXPECT_TRUE(tier.Keys().empty());
  }
}

TEST(ShardedStateTest, SixteenBitParametersHaveMasterWeights) {
  ToyOptions options = Options(0, 1);
  options.dtype = DType::kBF16;
  const Values one = TrainOk(options);
  ExpectNear(one, TrainByFormula(options), 0.02);
  for (int stage : {1, 2, 3}) {
    ToyOptions sharded = Options(stage, 4);
    sharded.dtype = DType::kBF16;
    ExpectNear(TrainOk(sharded), one, 0.008);
    sharded.state.gradient_dtype = DType::kBF16;
    ExpectNear(TrainOk(sharded), one, 0.03);
  }
}

TEST(ShardedStateTest, MomentsOfFewerBitsTrainAsWell) {
  for (const offload::MomentFormat format :
       {offload::MomentFormat::BF16(), offload::MomentFormat::Blockwise8(64)}) {
    ToyOptions options = Options(3, 3);
    options.state.moments = format;
    ToyOptions one = Options(0, 1);
    one.state.moments = format;
    ExpectNear(TrainOk(options), TrainByFormula(options), 0.1);
    ExpectNear(TrainOk(options), TrainOk(one), 0.05);
  }
}

// Plain, momentum and Nesterov, each with both kinds of weight decay.
TEST(ShardedStateTest, SgdFollowsTheFormulaAndEqualsOneRank) {
  for (const offload::SgdOptions& sgd :
       {offload::SgdOptions{.learning_rate = 0.01, .weight_decay = 0.1},
        offload::SgdOptions{
            .learning_rate = 0.01, .momentum = 0.9, .dampening = 0.5},
        offload::SgdOptions{.learning_rate = 0.01,
        .momentum = 0.9,
        .nesterov = true,
        .weight_decay = 0.1,
        .decay = offload::WeightDecay::kDecoupled}}) {
    ToyOptions one = Options(0, 1);
    one.state.optimizer = OptimizerKind::kSgd;
    one.state.sgd = sgd;
    const Values expected = TrainOk(one);
    ExpectNear(expected, TrainByFormula(one), 1e-5);
    for (int stage : {0, 1, 2, 3}) {
      ToyOptions options = one;
      options.ranks = 4;
      options.state.stage = stage;
      ExpectNear(TrainOk(options), expected, 1e-6);
    }
    one.dtype = DType::kF64;
    ExpectNear(TrainOk(one), TrainByFormula(one), 1e-12);
  }
}

TEST(ShardedStateTest, LionFollowsTheFormulaWithOneMoment) {
  ToyOptions one = Options(0, 1);
  one.state.optimizer = OptimizerKind::kLion;
  one.state.lion = {.learning_rate = 1e-3, .weight_decay = 0.1};
  one.dtype = DType::kF64;
  const Values expected = TrainOk(one);
  ExpectNear(expected, TrainByFormula(one), 1e-12);
  for (int stage : {0, 1, 2, 3}) {
    ToyOptions options = one;
    options.ranks = 4;
    options.state.stage = stage;
    ExpectNear(TrainOk(options), expected, 1e-9);
    offload::HostTier tier(
        std::make_shared<offload::Accounting>("host", 1 << 20));
    const Values in_memory = TrainOk(options);
    options.state.optimizer_tier = &tier;
    EXPECT_EQ(TrainOk(options), in_memory);
    options.device_seed = 1;
    EXPECT_EQ(TrainOk(options), in_memory);
  }
  one.state.stage = 3;
  one.dtype = DType::kF32;
  const auto results = Train(one);
  ASSERT_THAT(results[0].status(), IsOk());
  EXPECT_EQ(results[0]->usage.of(offload::Purpose::kOptimizer).peak,
            4 * (testing::ToyModel(DType::kF32).elements() - 25));
}

// Slots hold parameters of several groups.
TEST(ShardedStateTest, GroupsHaveTheirOwnRates) {
  for (const OptimizerKind kind :
       {OptimizerKind::kAdamW, OptimizerKind::kSgd, OptimizerKind::kLion,
        OptimizerKind::kMuon}) {
    ToyOptions one = Options(0, 1);
    one.dtype = DType::kF64;
    one.state.optimizer = kind;
    one.state.clip_norm = 0;
    one.state.adamw = {.learning_rate = 1e-3, .weight_decay = 0.5};
    one.state.sgd = {.learning_rate = 0.01, .momentum = 0.9};
    one.state.lion = {.learning_rate = 1e-3, .weight_decay = 0.5};
    one.state.decayed = DecayedParameters::kMatrices;
    const Values plain = TrainByFormula(one);
    one.state.parameter_groups = *ParseParameterGroups(
        "layer2.*:lr=0.5;*.bias:decay=2;head:lr=2,decay=0;embedding:lr=0");
    const Values expected = TrainByFormula(one);
    EXPECT_NE(expected, plain);
    ExpectNear(TrainOk(one), expected, 1e-12);
    for (int stage : {1, 3}) {
      for (const LayoutKind layout :
           {LayoutKind::kChunks, LayoutKind::kBalanced}) {
        ToyOptions options = one;
        options.ranks = 3;
        options.state.stage = stage;
        options.state.layout = layout;
        ExpectNear(TrainOk(options), expected, 1e-9);
      }
    }
  }
}

// Slots of 1 to 3 parameters of one rank hold matrices, vectors and a scalar.
TEST(ShardedStateTest, DecaysOnlyMatricesIfAsked) {
  for (const OptimizerKind kind :
       {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    ToyOptions one = Options(0, 1);
    one.state.optimizer = kind;
    one.state.adamw.weight_decay = 2;
    one.state.sgd = {.learning_rate = 0.01, .weight_decay = 2};
    const Values all = TrainByFormula(one);
    one.state.decayed = DecayedParameters::kMatrices;
    const Values expected = TrainByFormula(one);
    const ModelParameters model = testing::ToyModel(DType::kF32);
    for (const ModelParameter& parameter : model.all()) {
      const auto p = static_cast<size_t>(parameter.id.value());
      EXPECT_EQ(expected[p] == all[p], parameter.spec.shape.size() > 1 ||
                                           !parameter.trainable() ||
                                           parameter.elements == 0)
          << parameter.name();
    }
    ExpectNear(TrainOk(one), expected, 1e-5);
    for (int stage : {0, 1, 2, 3}) {
      for (const LayoutKind layout :
           {LayoutKind::kChunks, LayoutKind::kBalanced}) {
        ToyOptions options = one;
        options.ranks = 3;
        options.state.stage = stage;
        options.state.layout = layout;
        ExpectNear(TrainOk(options), expected, 1e-5);
        offload::HostTier tier(
            std::make_shared<offload::Accounting>("host", 1 << 20));
        const Values in_memory = TrainOk(options);
        options.state.optimizer_tier = &tier;
        EXPECT_EQ(TrainOk(options), in_memory);
      }
    }
  }
}

// With the negative direction as the update, elementwise.
TEST(ShardedStateTest, MuonStepsMatricesByTheirUpdatesAndTheRestByAdamW) {
  ToyOptions one = Options(0, 1);
  one.state.optimizer = OptimizerKind::kMuon;
  one.state.muon_momentum = 0.8;
  one.state.adamw = {.learning_rate = 1e-3, .weight_decay = 0.5};
  one.state.clip_norm = 0;
  const Values expected = TrainOk(one);
  ExpectNear(expected, TrainByFormula(one), 1e-5);
  ToyOptions adamw = one;
  adamw.state.optimizer = OptimizerKind::kAdamW;
  EXPECT_NE(TrainOk(adamw), expected);
  for (int stage : {0, 1, 2, 3}) {
    for (const LayoutKind layout :
         {LayoutKind::kChunks, LayoutKind::kBalanced}) {
      ToyOptions options = one;
      options.ranks = 4;
      options.state.stage = stage;
      options.state.layout = layout;
      ExpectNear(TrainOk(options), expected, 1e-6);
      offload::HostTier tier(
          std::make_shared<offload::Accounting>("host", 1 << 20));
      const Values in_memory = TrainOk(options);
      options.state.optimizer_tier = &tier;
      EXPECT_EQ(TrainOk(options), in_memory);
      options.device_seed = 1;
      EXPECT_EQ(TrainOk(options), in_memory);
    }
  }
  one.dtype = DType::kF64;
  ExpectNear(TrainOk(one), TrainByFormula(one), 1e-12);
}

TEST(ShardedStateTest, MatricesOfMuonHaveOneMoment) {
  ToyOptions options = Options(3, 1);
  options.steps = 2;
  options.state.optimizer = OptimizerKind::kMuon;
  const auto results = Train(options);
  ASSERT_THAT(results[0].status(), IsOk());
  const int64_t trained = testing::ToyModel(DType::kF32).elements() - 25;
  const int64_t matrices = 7 * (4 + 5 + 6);
  EXPECT_EQ(results[0]->usage.of(offload::Purpose::kOptimizer).peak,
            4 * (2 * trained - matrices));
}

TEST(ShardedStateTest, RefusesInvalidOptionsOfAdafactor) {
  ToyOptions options = Options(3, 1);
  options.state.optimizer = OptimizerKind::kAdafactor;
  const auto refused = [&](const AdafactorNumbers& numbers,
                           std::string_view message) {
    options.state.adafactor = numbers;
    EXPECT_THAT(
        Train(options)[0].status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  refused({.beta2_decay = 0.5}, "Adafactor: beta2_decay is 0.5");
  refused({.epsilon2 = -1}, "Adafactor: epsilon2 is -1");
  refused({.threshold = 0.5}, "Adafactor: threshold is 0.5");
  offload::HostTier tier(
      std::make_shared<offload::Accounting>("host", 1 << 20));
  options.state.optimizer_tier = &tier;
  options.state.optimizer_on_host = true;
  refused({}, "optimizer_on_host with Adafactor");
  options.state.optimizer_tier = nullptr;
  options.state.optimizer_on_host = {};
  EXPECT_THAT(Train(options)[0].status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("Adafactor without MatrixUpdates")));
}

TEST(ShardedStateTest, RefusesInvalidOptionsOfShampoo) {
  const ModelParameters model = testing::ToyModel(DType::kF32);
  ShardedStateOptions options = {.optimizer = OptimizerKind::kShampoo};
  const auto refused = [&](std::string_view message) {
    EXPECT_THAT(
        CheckOptions(options, model),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  refused("preconditioned has 0 entries; the model has");
  options.preconditioned.resize(static_cast<size_t>(model.count()));
  EXPECT_THAT(CheckOptions(options, model), IsOk());
  for (const ModelParameter& parameter : model.all()) {
    if (parameter.trainable() && parameter.spec.shape.size() == 2) continue;
    options.preconditioned[IndexOf(parameter.id)] = true;
    refused("is preconditioned, which only trained matrices can be");
    options.preconditioned[IndexOf(parameter.id)] = false;
  }
  options.moments = offload::MomentFormat::Blockwise8(64);
  refused("moments of 8-bit/64 with Shampoo");
  options.moments = offload::MomentFormat::F32();
  options.optimizer_on_host = true;
  refused("optimizer_on_host with Shampoo");
  options.optimizer_on_host = {};
  options.shampoo.block = 0;
  refused("Shampoo: block is 0");
  options.shampoo = {.every = 0};
  refused("Shampoo: every is 0");
  options.shampoo = {.epsilon = 0};
  refused("Shampoo: epsilon is 0");
}

TEST(ShardedStateTest, RefusesMuonWhereMatricesAreCut) {
  ToyOptions options = Options(3, 1);
  options.state.optimizer = OptimizerKind::kMuon;
  const auto refused = [&](std::string_view message) {
    EXPECT_THAT(
        Train(options)[0].status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  options.state.moments = offload::MomentFormat::Blockwise8(64);
  refused("moments of 8-bit/64 with Muon");
  options.state.moments = offload::MomentFormat::F32();
  offload::HostTier tier(
      std::make_shared<offload::Accounting>("host", 1 << 20));
  options.state.optimizer_tier = &tier;
  options.state.optimizer_on_host = true;
  refused("optimizer_on_host with Muon");
  options.state.optimizer_on_host = {};
  options.state.muon_momentum = 1;
  refused("Muon: Sgd: momentum is 1");
  const ModelParameters muon =
      testing::ToyModel(DType::kF32, OptimizerKind::kMuon);
  EXPECT_THAT(CheckOptions({}, muon),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("use OptimizerKind::kMuon")));
  ModelParameters::Builder vectors;
  vectors.Add({.name = "bias", .shape = {4}, .orthogonalized = true});
  EXPECT_THAT(
      CheckOptions({.optimizer = OptimizerKind::kMuon}, *vectors.Build()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("only trained matrices can")));
}

TEST(ShardedStateTest, SgdKeepsAsManyMomentsAsItHas) {
  const int64_t trained = testing::ToyModel(DType::kF32).elements() - 25;
  for (const double momentum : {0.0, 0.9}) {
    ToyOptions options = Options(3, 1);
    options.steps = 2;
    options.state.optimizer = OptimizerKind::kSgd;
    options.state.sgd = {.learning_rate = 0.01, .momentum = momentum};
    const auto results = Train(options);
    ASSERT_THAT(results[0].status(), IsOk());
    EXPECT_EQ(results[0]->usage.of(offload::Purpose::kOptimizer).peak,
              momentum == 0 ? 0 : 4 * trained);
  }
  ToyOptions wrong = Options(3, 1);
  wrong.state.optimizer = OptimizerKind::kSgd;
  wrong.state.sgd.momentum = 1;
  EXPECT_THAT(
      Train(wrong)[0].status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("momentum")));
}

// Results do not depend on when gradients are requested: a micro-batch may
// request a gradient that is being reduced.
TEST(ShardedStateTest, WhenGradientsAreAskedForChangesNothing) {
  for (int stage : {0, 1, 2, 3}) {
    for (const int64_t ranks : {1, 3}) {
      const Values expected = TrainOk(Options(stage, ranks));
      for (const bool overlap : {false, true}) {
        for (const int64_t bucket_bytes : {1, 200, 1 << 20}) {
          ToyOptions options = Options(stage, ranks);
          options.state.overlap = overlap;
          options.state.bucket_bytes = bucket_bytes;
          EXPECT_EQ(TrainOk(options), expected);
        }
      }
      ToyOptions held = Options(stage, ranks);
      held.holds_gradients = true;
      ExpectNear(TrainOk(held), expected, 1e-6);
    }
  }
}

TEST(ShardedStateTest, ClipsByTheNormOfAllRanks) {
  ToyOptions one = Options(0, 1);
  one.state.clip_norm = 0.5;
  const auto expected = Train(one);
  ASSERT_THAT(expected[0].status(), IsOk());
  for (int stage : {0, 1, 2, 3}) {
    ToyOptions options = Options(stage, 4);
    options.state.clip_norm = 0.5;
    for (const auto& result : Train(options)) {
      ASSERT_THAT(result.status(), IsOk());
      for (size_t s = 0; s < result->reports.size(); ++s) {
        EXPECT_NEAR(result->reports[s].gradient_norm,
                    expected[0]->reports[s].gradient_norm, 1e-4);
        EXPECT_LT(result->reports[s].clip_factor, 1);
      }
      ExpectNear(result->values, expected[0]->values, 1e-5);
    }
  }
}

// The elements are also on another rank of the model group.
TEST(ShardedStateTest, WhatIsNotCountedIsLeftOutOfTheNorm) {
  const ModelParameters model = testing::ToyModel(DType::kF32);
  std::vector<std::vector<ElementRange>> halves[2];
  for (const ModelParameter& parameter : model.all()) {
    const int64_t a = parameter.elements / 3, b = parameter.elements / 2;
    halves[0].push_back({{0, a}, {b, parameter.elements}});
    halves[1].push_back({{a, b}});
  }
  for (int stage : {0, 1, 3}) {
    ToyOptions options = Options(stage, 3);
    options.steps = 1;
    const auto whole = Train(options);
    double squares = 0;
    for (const auto& half : halves) {
      options.state.counted_in_norm = half;
      const auto part = Train(options);
      ASSERT_THAT(part[0].status(), IsOk());
      const double norm = part[0]->reports[0].gradient_norm;
      EXPECT_GT(norm, 0);
      squares += norm * norm;
    }
    ASSERT_THAT(whole[0].status(), IsOk());
    EXPECT_NEAR(std::sqrt(squares), whole[0]->reports[0].gradient_norm, 1e-9);
  }
}

TEST(ShardedStateTest, LossScalesOfPowersOfTwoChangeNothing) {
  ToyOptions options = Options(3, 2);
  const Values expected = TrainOk(options);
  options.state.loss_scale = {
      .dynamic = true, .initial = 1024, .growth_interval = 7};
  EXPECT_EQ(TrainOk(options), expected);
}

TEST(ShardedStateTest, AnOverflowSkipsTheStepOnEveryRankAndHalvesTheScale) {
  ToyOptions options = Options(3, 3);
  options.steps = 4;
  options.state.loss_scale = {.dynamic = true,
                              .initial = std::ldexp(1, 127),
                              .least = 1,
                              .largest = std::ldexp(1, 127)};
  for (const auto& result : Train(options)) {
    ASSERT_THAT(result.status(), IsOk());
    EXPECT_TRUE(result->reports[0].skipped);
    EXPECT_EQ(result->reports[1].loss_scale, std::ldexp(1, 126));
  }
}

TEST(ShardedStateTest, StatePerRankFallsWithTheRanks) {
  // 2 bytes of value, 2 of gradient, 12 of master weight and moments.
  const int64_t elements = testing::ToyModel(DType::kBF16).elements();
  const int64_t frozen = 25;
  for (int64_t ranks : {1, 2, 4, 8}) {
    ToyOptions options = Options(3, ranks);
    options.steps = 1;
    options.dtype = DType::kBF16;
    options.state.gradient_dtype = DType::kBF16;
    for (const auto& result : Train(options)) {
      ASSERT_THAT(result.status(), IsOk());
      const offload::Usage& usage = result->usage;
      const int64_t state = usage.of(offload::Purpose::kParameters).current +
                            usage.of(offload::Purpose::kGradients).current +
                            usage.of(offload::Purpose::kOptimizer).current;
      // Each of 11 parameters may have one element of padding.
      const int64_t least = (16 * (elements - frozen) + 2 * frozen) / ranks;
      EXPECT_GE(state, least);
      EXPECT_LE(state, least + 11 * 16);
      EXPECT_EQ(usage.of(offload::Purpose::kBuffers).current, 0);
    }
  }
}

// The next window is gathered ahead, and the reduction of one window overlaps
// with the gradients of the next: two windows of each.
TEST(ShardedStateTest, WholeParametersAndGradientsAreOfTwoWindows) {
  const ModelParameters model = testing::ToyModel(DType::kF32);
  const int64_t ranks = 3;
  std::vector<int64_t> gathered, gradients;
  for (int64_t g = 0; g < model.group_count(); ++g) {
    gathered.push_back(0);
    gradients.push_back(0);
    for (ParameterId id : model.group(g)) {
      const int64_t bytes =
          (model[id].elements + ranks - 1) / ranks * ranks * 4;
      gathered.back() += bytes;
      // Packed gradients are copied.
      if (model[id].trainable()) gradients.back() += 2 * bytes;
    }
  }
  const auto two = [](const std::vector<int64_t>& bytes) {
    int64_t most = 0;
    for (size_t i = 0; i + 1 < bytes.size(); ++i) {
      most = std::max(most, bytes[i] + bytes[i + 1]);
    }
    return most;
  };
  for (const int stage : {2, 3}) {
    ToyOptions options = Options(stage, ranks);
    options.steps = 2;
    for (const auto& result : Train(options)) {
      ASSERT_THAT(result.status(), IsOk());
      const int64_t peak = result->usage.of(offload::Purpose::kBuffers).peak;
      EXPECT_GT(peak, 0);
      EXPECT_LE(peak, two(gradients) + (stage == 3 ? two(gathered) : 0));
    }
  }
}

// Factors that are invalid have no side effects; valid ones scale a range, of
// which each of two ranks owns a part, and its 16-bit copy.
TEST(ShardedStateTest, FactorsScaleElementsAfterTheStep) {
  for (const int stage : {0, 1, 2, 3}) {
    ToyOptions options = Options(stage, 1);
    const auto run = [&](collectives::Communicator& world,
                         std::span<const ElementScale> factors)
        -> absl::StatusOr<std::vector<double>> {
      TESSERA_ASSIGN_OR_RETURN(
          auto state, ShardedState::Create(testing::ToyModel(DType::kBF16),
                                           options.state, {.shard = &world}));
      TESSERA_RETURN_IF_ERROR(
          state->Fill([](const ModelParameter&, int64_t, TensorView elements) {
            return tessera::Fill(elements, 3.0);
          }));
      TESSERA_RETURN_IF_ERROR(
          testing::RunPart(*state, 0, world.rank().value(), /*reduce=*/true));
      TESSERA_ASSIGN_OR_RETURN(const auto all, state->Measure());
      for (const ModelParameter& parameter : state->layout().model().all()) {
        const int64_t end =
            parameter.elements + (parameter.trainable() ? 1 : 0);
        const ElementScale invalid = {parameter.id, 0, end, 2};
        EXPECT_THAT(
            state->StepMeasured(all, nullptr, {&invalid, 1}),
            StatusIs(absl::StatusCode::kInvalidArgument,
                     HasSubstr(parameter.trainable() ? "give a range of them"
                                                     : "is frozen")));
      }
      TESSERA_RETURN_IF_ERROR(
          state->StepMeasured(all, nullptr, factors).status());
      TESSERA_ASSIGN_OR_RETURN(const auto values, testing::ReadValues(*state));
      return values[0];
    };
    EXPECT_THAT(
        collectives::RunRanks(
            2,
            [&](collectives::Communicator& world) -> absl::Status {
              TESSERA_ASSIGN_OR_RETURN(const auto plain, run(world, {}));
              const auto size = static_cast<int64_t>(plain.size());
              const ElementScale factors[] = {
                  {ParameterId(0), 1, size - 1, 0.5},
                  {ParameterId(0), 0, 1, 2}};
              TESSERA_ASSIGN_OR_RETURN(const auto scaled, run(world, factors));
              for (int64_t i = 0; i < size; ++i) {
                const double factor = i == 0 ? 2 : i < size - 1 ? 0.5 : 1;
                const auto at = static_cast<size_t>(i);
                EXPECT_EQ(scaled[at], plain[at] * factor) << i;
              }
              return absl::OkStatus();
            }),
        ::testing::Each(IsOk()));
  }
}

TEST(ShardedStateTest, OwnGradientsCanBeChangedBeforeTheStep) {
  for (const int stage : {0, 1, 2, 3}) {
    ToyOptions options = Options(stage, 1);
    options.ranks = 2;
    EXPECT_THAT(
        collectives::RunRanks(
            2,
            [&](collectives::Communicator& world) -> absl::Status {
              TESSERA_ASSIGN_OR_RETURN(
                  auto state,
                  ShardedState::Create(testing::ToyModel(DType::kF32),
                                       options.state, {.shard = &world}));
              TESSERA_RETURN_IF_ERROR(testing::RunPart(
                  *state, 0, world.rank().value(), /*reduce=*/true));
              for (const ModelParameter& parameter :
                   state->layout().model().all()) {
                if (!parameter.trainable()) continue;
                TESSERA_ASSIGN_OR_RETURN(const TensorView own,
                                         state->OwnGradient(parameter.id));
                auto* const values = reinterpret_cast<float*>(own.data());
                std::fill(values, values + own.element_count(), 2.0f);
              }
              TESSERA_ASSIGN_OR_RETURN(const UpdateReport report,
                                       state->Step());
              const auto trained =
                  static_cast<double>(state->layout().model().elements() - 25);
              EXPECT_NEAR(report.gradient_norm, 2 * std::sqrt(trained), 1e-9);
              return absl::OkStatus();
            }),
        ::testing::Each(IsOk()));
  }
}

TEST(ShardedStateTest, ABudgetThatIsTooSmallIsRefused) {
  ToyOptions options = Options(3, 1);
  options.state.device = std::make_shared<offload::Accounting>("device", 2000);
  EXPECT_THAT(
      Train(options)[0].status(),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("device")));
}

// CheckOptions for the toy model with some options changed.
absl::Status CheckChanged(
    const std::function<void(ShardedStateOptions&)>& change) {
  ShardedStateOptions options;
  change(options);
  return CheckOptions(options, testing::ToyModel(DType::kF32));
}

auto IsInvalid(const char* text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

TEST(ShardedStateTest, RefusesInvalidOptions) {
  const ModelParameters model = testing::ToyModel(DType::kF32);
  EXPECT_THAT(CheckChanged([](auto&) {}), IsOk());
  EXPECT_THAT(CheckChanged([](auto& o) { o.stage = 4; }),
              IsInvalid("stage 4; there are stages 0 to 3"));
  EXPECT_THAT(CheckChanged([](auto& o) { o.bucket_bytes = 0; }),
              IsInvalid("bucket_bytes is 0"));
  EXPECT_THAT(CheckChanged([](auto& o) { o.clip_norm = -1; }),
              IsInvalid("clip_norm is -1"));
  EXPECT_THAT(CheckChanged([](auto& o) { o.counted_in_norm = {{}}; }),
              IsInvalid("counted_in_norm has 1 entries"));
  EXPECT_THAT(CheckChanged([&](auto& o) {
                o.counted_in_norm.resize(static_cast<size_t>(model.count()));
                o.counted_in_norm[0] = {{70, 79}};
              }),
              IsInvalid("[70, 79) of parameter \"embedding\", which has 78"));
  EXPECT_THAT(CheckChanged([](auto& o) { o.gradient_dtype = DType::kI32; }),
              IsInvalid("gradients of i32"));
}

TEST(ShardedStateTest, RefusesInvalidTiers) {
  offload::HostTier tier(std::make_shared<offload::Accounting>("host", 0));
  EXPECT_THAT(CheckChanged([&](auto& o) {
                o.stage = 2;
                o.parameter_tier = &tier;
              }),
              IsInvalid("use stage 3"));
  EXPECT_THAT(CheckChanged([&](auto& o) {
                o.stage = 1;
                o.gradient_tier = &tier;
              }),
              IsInvalid("use stage 2 or 3"));
}

TEST(ShardedStateTest, RefusesInvalidEncodingsOfFrozenParameters) {
  const auto nf4 = *offload::CreateCodec("nf4");
  const auto int8 = *offload::CreateCodec("int8");
  const ModelParameters model = testing::ToyModel(DType::kF32);
  const auto marked = [&](std::string_view name) {
    std::vector<bool> is_encoded;
    for (const ModelParameter& parameter : model.all()) {
      is_encoded.push_back(parameter.name() == name);
    }
    return is_encoded;
  };
  const auto check = [&](const offload::Codec& codec, int stage,
                         std::vector<bool> is_encoded) {
    ShardedStateOptions options;
    options.stage = stage;
    options.frozen_codec = &codec;
    options.is_encoded = std::move(is_encoded);
    return CheckOptions(options, model);
  };
  EXPECT_THAT(check(*nf4, 3, marked("frozen")), IsOk());
  EXPECT_THAT(check(*int8, 3, marked("frozen")),
              IsInvalid("frozen_codec is int8; give nf4 or nf4_double"));
  EXPECT_THAT(check(*nf4, 2, marked("frozen")),
              IsInvalid("encoded frozen parameters at stage 2"));
  EXPECT_THAT(check(*nf4, 3, {true}), IsInvalid("is_encoded has 1 entries"));
  EXPECT_THAT(check(*nf4, 3, marked("head")),
              IsInvalid("\"head\" is trained, and frozen_codec is for frozen"));
}

TEST(ShardedStateTest, RefusesZeroPlusPlusBelowItsStage) {
  EXPECT_THAT(CheckChanged([](auto& o) {
                o.stage = 0;
                o.quantized_gradients = true;
              }),
              IsInvalid("quantized_gradients at stage 0"));
  EXPECT_THAT(CheckChanged([](auto& o) {
                o.stage = 2;
                o.quantized_weights = true;
              }),
              IsInvalid("quantized_weights at stage 2: below stage 3"));
  EXPECT_THAT(CheckChanged([](auto& o) {
                o.stage = 1;
                o.hpz_partition_size = 2;
              }),
              IsInvalid("hpz_partition_size at stage 1: below stage 3"));
  EXPECT_THAT(CheckChanged([](auto& o) { o.hpz_partition_size = -1; }),
              IsInvalid("hpz_partition_size is -1"));
}

TEST(ShardedStateTest, RefusesTiersThatRoundWhatTrainingGoesOnFrom) {
  const auto compressed = [](const char* codec) {
    return std::make_shared<offload::CompressedTier>(
        *offload::CreateCodec(codec),
        std::make_shared<offload::HostTier>(
            std::make_shared<offload::Accounting>("host", 1 << 20)));
  };
  const auto int8 = compressed("int8"), narrow = compressed("bf16"),
             exact = compressed("lossless");
  const auto refusal = [](DType dtype, auto change) {
    ShardedStateOptions options;
    change(options);
    return CheckOptions(options, testing::ToyModel(dtype));
  };
  const auto says = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& lossy : {int8, narrow}) {
      EXPECT_THAT(
          refusal(dtype, [&](auto& o) { o.optimizer_tier = lossy.get(); }),
          says("over host\" rounds optimizer of f32"));
    }
    EXPECT_THAT(refusal(dtype, [&](auto& o) { o.gradient_tier = int8.get(); }),
                IsOk());
    EXPECT_THAT(refusal(dtype,
                        [&](auto& o) {
                          o.optimizer_tier = exact.get();
                          o.parameter_tier = exact.get();
                        }),
                IsOk());
  }
  EXPECT_THAT(
      refusal(DType::kF32, [&](auto& o) { o.parameter_tier = int8.get(); }),
      says("parameter_tier \"int8 over host\" rounds parameters of f32"));
  // Recomputed from the master weights in every step.
  EXPECT_THAT(
      refusal(DType::kBF16, [&](auto& o) { o.parameter_tier = int8.get(); }),
      IsOk());
  EXPECT_THAT(
      refusal(DType::kF64, [&](auto& o) { o.optimizer_tier = narrow.get(); }),
      says("rounds optimizer of f"));
}

}  // namespace
}  // namespace tessera::zero3
