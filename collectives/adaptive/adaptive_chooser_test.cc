#include "collectives/adaptive/adaptive_chooser.h"

#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "collectives/algorithms/algorithm_chooser.h"
#include "gmock/gmock.h"
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

TEST(CostModelTest, InterpolatesFormulaBetweenPoints) {
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

TEST(CostModelTest, ScalesUnmeasuredByErrorOfMeasured) {
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

TEST(CostModelTest, PredictsOnlySupportedAlgorithms) {
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

TEST(CostModelTest, SortsPredictionsAndBreaksTiesByNumber) {
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

// Measured up to 1 MiB; the chain was measured last at 4 KiB, where it was as
// fast as the ring.
TEST(CostModelTest, DoesNotPreferAlgorithmsOmittedAtSize) {
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
  // Without measurements nothing was skipped.
  EXPECT_FALSE(
      model.Predict(Algorithm::kRing, Ask(OpKind::kAllReduce, 64))->left_out);
}

TEST(CostModelTest, ScalesEngineCurveToOtherShapes) {
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

ChoiceQuestion Question(int64_t bytes) {
  ChoiceQuestion question;
  question.bytes = bytes;
  question.ranks = 4;
  return question;
}

TEST(DecisionMemoTest, FindsKeptDecision) {
  const auto memo = std::make_unique<DecisionMemo>();
  EXPECT_FALSE(memo->Find(Question(8)).has_value());
  memo->Keep(Question(8), Algorithm::kTree);
  EXPECT_EQ(memo->Find(Question(8)), Algorithm::kTree);
}

TEST(DecisionMemoTest, DistinguishesEveryFieldOfQuestion) {
  const auto memo = std::make_unique<DecisionMemo>();
  memo->Keep(Question(8), Algorithm::kTree);
  std::vector<ChoiceQuestion> others(8, Question(8));
  others[0].kind = OpKind::kReduce;
  others[1].dtype = DType::kBF16;
  others[2].bytes = 9;
  others[3].ranks = 5;
  others[4].ranks_per_host = 2;
  others[5].uneven = true;
  others[6].engine_implements = true;
  others[7].has_transport = false;
  for (const ChoiceQuestion& other : others) {
    EXPECT_FALSE(memo->Find(other).has_value());
  }
}

TEST(DecisionMemoTest, KeepsEntriesWhenFull) {
  const auto memo = std::make_unique<DecisionMemo>();
  constexpr int64_t kMost = DecisionMemo::kMaxDecisions;
  for (int64_t i = 0; i < 2 * kMost; ++i) {
    memo->Keep(Question(i), static_cast<Algorithm>(i % 9));
  }
  for (int64_t i = 0; i < kMost; ++i) {
    ASSERT_EQ(memo->Find(Question(i)), static_cast<Algorithm>(i % 9));
  }
  EXPECT_FALSE(memo->Find(Question(kMost)).has_value());
}

TEST(DecisionMemoTest, ConcurrentAccessReturnsCorrectDecisions) {
  const auto memo = std::make_unique<DecisionMemo>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memo] {
      for (int64_t i = 0; i < 500; ++i) {
        const auto right = static_cast<Algorithm>(i % 9);
        const auto found = memo->Find(Question(i));
        EXPECT_EQ(found.value_or(right), right);
        memo->Keep(Question(i), right);
        EXPECT_EQ(memo->Find(Question(i)), right);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSizes[] = {64, 4096, 1 << 18, 1 << 22};

// Random costs of every algorithm and of the engine's own.
CostTable RandomTable(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> noise(0.3, 3);
  CostTable table;
  table.key = {"x", "shared_memory", 8, 4, false};
  table.costs = {{1e-6, 1e-10}, {1e-5, 1e-9}, 5e-11};
  for (const OpKind kind : kCollectiveKinds) {
    for (const Algorithm algorithm : kAllAlgorithms) {
      if (algorithm != Algorithm::kEngine &&
          !Supports(algorithm, kind, false)) {
        continue;
      }
      for (const int64_t bytes : kSizes) {
        table.measured[{kind, algorithm}].push_back(
            {bytes,
             noise(random) * (1e-5 + static_cast<double>(bytes) * 1e-9)});
      }
    }
  }
  return table;
}

std::vector<ChoiceQuestion> ManyQuestions() {
  std::vector<ChoiceQuestion> questions;
  for (const OpKind kind : kCollectiveKinds) {
    for (int64_t bytes = 0; bytes <= 1 << 26; bytes = 3 * bytes + 5) {
      for (const int64_t ranks : {2, 3, 8}) {
        for (int bits = 0; bits < 8; ++bits) {
          ChoiceQuestion question;
          question.kind = kind;
          question.bytes = bytes;
          question.ranks = ranks;
          question.ranks_per_host = std::min<int64_t>(ranks, 4);
          question.engine_implements = (bits & 1) != 0;
          question.has_transport = (bits & 2) != 0;
          question.uneven = (bits & 4) != 0;
          questions.push_back(question);
        }
      }
    }
  }
  return questions;
}

TEST(AdaptiveChooserTest, ChoosesFastestUnlessEngineIsAsGood) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const CostTable table = RandomTable(seed);
    const AdaptiveChooser chooser(table);
    const CostModel model(table);
    for (const ChoiceQuestion& question : ManyQuestions()) {
      std::optional<Prediction> least;
      for (const Algorithm algorithm : kAllAlgorithms) {
        const auto prediction = model.Predict(algorithm, question);
        if (prediction && (!least || prediction->seconds < least->seconds)) {
          least = prediction;
        }
      }
      const auto own = model.Predict(Algorithm::kEngine, question);
      Algorithm expected =
          least ? least->algorithm : DefaultAlgorithm(question);
      if (own && own->seconds * 0.9 <= least->seconds) {
        expected = Algorithm::kEngine;
      }
      ASSERT_EQ(chooser.Choose(question), expected);
      ASSERT_EQ(chooser.Choose(question), expected);  // From memory.
    }
  }
}

TEST(AdaptiveChooserTest, ChoosesRunnableAlgorithms) {
  const AdaptiveChooser chooser(RandomTable(9));
  for (const ChoiceQuestion& question : ManyQuestions()) {
    const bool has_one =
        question.engine_implements ||
        (question.has_transport &&
         !AlgorithmsFor(question.kind, question.uneven).empty());
    if (!has_one) continue;
    const Algorithm chosen = chooser.Choose(question);
    if (chosen == Algorithm::kEngine) {
      ASSERT_TRUE(question.engine_implements);
    } else {
      ASSERT_TRUE(question.has_transport);
      ASSERT_TRUE(Supports(chosen, question.kind, question.uneven));
    }
  }
}

TEST(AdaptiveChooserTest, UsesDefaultWithoutPredictions) {
  const AdaptiveChooser chooser{CostTable()};
  ChoiceQuestion question;
  question.ranks = 1;
  question.engine_implements = true;
  EXPECT_EQ(chooser.Choose(question), DefaultAlgorithm(question));
  EXPECT_THAT(chooser.Explain(question), HasSubstr("the default"));
  question.ranks = 4;
  question.has_transport = false;
  EXPECT_EQ(chooser.Choose(question), Algorithm::kEngine);
}

TEST(AdaptiveChooserTest, ExplainListsCandidatesWithCosts) {
  CostTable table;
  table.key = {"x", "shared_memory", 8, 8, false};
  table.costs = {{1e-6, 1e-10}, {1e-6, 1e-10}, 5e-11};
  table.measured[{OpKind::kAllGather, Algorithm::kEngine}] = {{4096, 2e-6}};
  table.measured[{OpKind::kAllGather, Algorithm::kRing}] = {{4096, 5e-6}};
  const AdaptiveChooser chooser(table, "from the cache");
  ChoiceQuestion question;
  question.kind = OpKind::kAllGather;
  question.bytes = 4096;
  question.ranks = 8;
  question.ranks_per_host = 8;
  question.engine_implements = true;
  const std::string text = chooser.Explain(question);
  EXPECT_THAT(text, HasSubstr("strategy adaptive: engine for all_gather of "
                              "4096 bytes on 8 ranks: the least predicted"));
  EXPECT_THAT(text, HasSubstr("(from the cache)"));
  EXPECT_THAT(text, HasSubstr("2 us = as measured"));
  EXPECT_THAT(text, HasSubstr("5 us = formula 7."));
  EXPECT_THAT(text, HasSubstr("x measured factor 0.6"));
  for (const Algorithm algorithm : AlgorithmsFor(OpKind::kAllGather, false)) {
    EXPECT_THAT(text, HasSubstr(std::string(AlgorithmName(algorithm))));
  }
  EXPECT_THAT(text, Not(HasSubstr("tree")));
  EXPECT_LT(text.find("engine  "), text.find("ring  "));
}

TEST(AdaptiveChooserTest, KeepsEngineForGainsBelowTenPercent) {
  ChoiceQuestion question;
  question.kind = OpKind::kAllGather;
  question.bytes = 4096;
  question.ranks = question.ranks_per_host = 8;
  question.engine_implements = true;
  question.has_transport = true;
  for (const double ring : {1.85e-6, 1.75e-6}) {
    CostTable table;
    table.key = {"x", "shared_memory", 8, 8, false};
    table.costs = {{1e-6, 1e-10}, {1e-6, 1e-10}, 5e-11};
    for (const Algorithm other : AlgorithmsFor(OpKind::kAllGather, false)) {
      table.measured[{OpKind::kAllGather, other}] = {{4096, 9e-6}};
    }
    table.measured[{OpKind::kAllGather, Algorithm::kEngine}] = {{4096, 2e-6}};
    table.measured[{OpKind::kAllGather, Algorithm::kRing}] = {{4096, ring}};
    const AdaptiveChooser chooser(table);
    const bool stays = ring > 0.9 * 2e-6;
    EXPECT_EQ(chooser.Choose(question),
              stays ? Algorithm::kEngine : Algorithm::kRing);
    EXPECT_THAT(chooser.Explain(question),
                HasSubstr(stays ? "8 ranks: within a tenth of the least"
                                : "8 ranks: the least predicted"));
  }
}

}  // namespace

}  // namespace tessera::collectives
