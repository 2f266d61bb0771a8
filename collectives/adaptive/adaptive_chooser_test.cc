#include "collectives/adaptive/adaptive_chooser.h"

#include <optional>
#include <random>

#include "collectives/algorithms/algorithm_chooser.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

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

TEST(AdaptiveChooserTest, TheChoiceIsTheLeastUnlessTheEnginesOwnIsAsGood) {
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

TEST(AdaptiveChooserTest, WhatIsChosenCanBeRun) {
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

TEST(AdaptiveChooserTest, WithoutPredictionsTheDefaultIsTaken) {
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

TEST(AdaptiveChooserTest, ExplainShowsEveryCandidateAndWhatItIsMadeOf) {
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

TEST(AdaptiveChooserTest, LessThanATenthIsNotWorthLeavingTheEnginesOwnWay) {
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
