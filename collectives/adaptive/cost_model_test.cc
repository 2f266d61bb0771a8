#include <cmath>
#include <random>

#include "collectives/adaptive/adaptive_chooser.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

CostTable Example() {
  CostTable table;
  table.key = {"x", "shared_memory", 8, 8, false};
  table.costs = {{1e-6, 1e-10}, {1e-6, 1e-10}, 5e-11};
  return table;
}

ChoiceQuestion Ask(OpKind kind, int64_t bytes) {
  ChoiceQuestion question;
  question.kind = kind;
  question.bytes = bytes;
  question.ranks = 8;
  question.ranks_per_host = 8;
  question.engine_implements = true;
  return question;
}

TEST(CostModelTest, MeasuredTimesArePredictedExactly) {
  CostTable table = Example();
  const std::vector<SizePoint> ring = {
      {64, 3e-5}, {4096, 2e-5}, {1 << 20, 9e-3}};
  const std::vector<SizePoint> engine = {{64, 3e-6}, {4096, 8e-6}};
  table.measured[{OpKind::kAllReduce, Algorithm::kRing}] = ring;
  table.measured[{OpKind::kAllReduce, Algorithm::kEngine}] = engine;
  const CostModel model(table);
  for (const SizePoint& point : ring) {
    const auto prediction =
        model.Predict(Algorithm::kRing, Ask(OpKind::kAllReduce, point.bytes));
    EXPECT_NEAR(prediction->seconds / point.value, 1, 1e-12);
    EXPECT_NEAR(prediction->formula * prediction->factor / point.value, 1,
                1e-12);
  }
  for (const SizePoint& point : engine) {
    EXPECT_NEAR(
        model.Predict(Algorithm::kEngine, Ask(OpKind::kAllReduce, point.bytes))
            ->seconds,
        point.value, 1e-15);
  }
}

TEST(CostModelTest, AnExactFormulaNeedsNoPointBetween) {
  CostTable table = Example();
  for (const int64_t bytes : {64, 16 << 20}) {
    table.measured[{OpKind::kAllReduce, Algorithm::kRing}].push_back(
        {bytes, 3 * FormulaSeconds(table.costs, Algorithm::kRing,
                                   OpKind::kAllReduce, bytes, 8, 8)});
  }
  const CostModel model(table);
  for (int64_t bytes = 1; bytes <= int64_t{1} << 30; bytes *= 3) {
    EXPECT_NEAR(model.Predict(Algorithm::kRing, Ask(OpKind::kAllReduce, bytes))
                        ->seconds /
                    FormulaSeconds(table.costs, Algorithm::kRing,
                                   OpKind::kAllReduce, bytes, 8, 8),
                3, 1e-9);
  }
}

TEST(CostModelTest, WhatWasNotMeasuredIsOffAsTheOthersAre) {
  CostTable table = Example();
  for (const auto& [algorithm, factor] :
       {std::pair(Algorithm::kRing, 2.0), std::pair(Algorithm::kTree, 8.0)}) {
    table.measured[{OpKind::kAllReduce, algorithm}] = {
        {64, factor * FormulaSeconds(table.costs, algorithm, OpKind::kAllReduce,
                                     64, 8, 8)}};
  }
  const CostModel model(table);
  EXPECT_NEAR(
      model.Predict(Algorithm::kChain, Ask(OpKind::kAllReduce, 64))->factor, 4,
      1e-9);
  EXPECT_EQ(model.Predict(Algorithm::kTree, Ask(OpKind::kReduce, 64))->factor,
            1);
}

TEST(CostModelTest, OnlyWhatMayBeChosenIsPredicted) {
  CostTable table = Example();
  table.measured[{OpKind::kAllReduce, Algorithm::kEngine}] = {{64, 1e-6}};
  const CostModel model(table);
  ChoiceQuestion question = Ask(OpKind::kAllReduce, 64);
  EXPECT_FALSE(model.Predict(Algorithm::kBruck, question).has_value());
  EXPECT_TRUE(model.Predict(Algorithm::kEngine, question).has_value());
  EXPECT_FALSE(
      model.Predict(Algorithm::kEngine, Ask(OpKind::kReduce, 64)).has_value());
  question.engine_implements = false;
  EXPECT_FALSE(model.Predict(Algorithm::kEngine, question).has_value());
  question.has_transport = false;
  EXPECT_TRUE(model.PredictAll(question).empty());
  ChoiceQuestion uneven = Ask(OpKind::kAllToAll, 0);
  uneven.uneven = true;
  for (const Prediction& prediction : model.PredictAll(uneven)) {
    EXPECT_TRUE(Supports(prediction.algorithm, OpKind::kAllToAll, true));
  }
}

TEST(CostModelTest, PredictionsAreSortedAndTiesGoToTheLowerNumber) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> seconds(1e-6, 1e-3);
  for (int i = 0; i < 300; ++i) {
    CostTable table = Example();
    for (const Algorithm algorithm : AlgorithmsFor(OpKind::kAllReduce, false)) {
      const double t = i == 0 ? 1e-5 : seconds(random);
      table.measured[{OpKind::kAllReduce, algorithm}] = {{4096, t}};
    }
    table.measured[{OpKind::kAllReduce, Algorithm::kEngine}] = {{4096, 1e-5}};
    const CostModel model(table);
    const auto all = model.PredictAll(Ask(OpKind::kAllReduce, 4096));
    ASSERT_EQ(all.size(), AlgorithmsFor(OpKind::kAllReduce, false).size() + 1);
    for (size_t k = 1; k < all.size(); ++k) {
      EXPECT_LE(all[k - 1].seconds, all[k].seconds);
    }
  }
}

// Measured to 1 MiB: the chain last at 4 KiB, where it was as fast as the ring.
TEST(CostModelTest, WhatWasLeftOutAtASizeIsNotTheFirstThere) {
  CostTable table = Example();
  table.measured[{OpKind::kBroadcast, Algorithm::kTree}] = {
      {64, 1e-6}, {4096, 1e-5}, {1 << 20, 1e-2}};
  table.measured[{OpKind::kBroadcast, Algorithm::kChain}] = {{64, 1e-6},
                                                             {4096, 1e-5}};
  const CostModel model(table);
  const auto left_out = [&](Algorithm algorithm, int64_t bytes) {
    return model.Predict(algorithm, Ask(OpKind::kBroadcast, bytes))->left_out;
  };
  for (const int64_t bytes : {0, 64, 100, 4096, 8192, 1 << 19}) {
    EXPECT_FALSE(left_out(Algorithm::kChain, bytes)) << bytes;
  }
  for (const int64_t bytes : {1 << 20, 1 << 30}) {
    EXPECT_TRUE(left_out(Algorithm::kChain, bytes)) << bytes;
    EXPECT_FALSE(left_out(Algorithm::kTree, bytes)) << bytes;
    const auto all = model.PredictAll(Ask(OpKind::kBroadcast, bytes));
    EXPECT_EQ(all.back().algorithm, Algorithm::kChain);
    EXPECT_FALSE(all.front().left_out);
  }
  // Of what nobody measured nothing was left out.
  EXPECT_FALSE(
      model.Predict(Algorithm::kRing, Ask(OpKind::kAllReduce, 64))->left_out);
}

TEST(CostModelTest, TheEnginesCurveIsScaledToOtherShapes) {
  CostTable table = Example();
  table.measured[{OpKind::kAllReduce, Algorithm::kEngine}] = {{64, 1e-5},
                                                              {1 << 20, 1e-3}};
  const CostModel model(table);
  ChoiceQuestion question = Ask(OpKind::kAllReduce, 64);
  question.ranks = 2;
  question.ranks_per_host = 2;
  // One round of recursive doubling instead of three.
  EXPECT_NEAR(model.Predict(Algorithm::kEngine, question)->seconds, 1e-5 / 3,
              1e-7);
}

}  // namespace
}  // namespace tessera::collectives
