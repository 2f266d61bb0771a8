#include <memory>
#include <thread>
#include <vector>

#include "collectives/adaptive/adaptive_chooser.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

ChoiceQuestion Question(int64_t bytes) {
  ChoiceQuestion question;
  question.bytes = bytes;
  question.ranks = 4;
  return question;
}

TEST(DecisionMemoTest, FindsWhatItKept) {
  const auto memo = std::make_unique<DecisionMemo>();
  EXPECT_FALSE(memo->Find(Question(8)).has_value());
  memo->Keep(Question(8), Algorithm::kTree);
  EXPECT_EQ(memo->Find(Question(8)), Algorithm::kTree);
}

TEST(DecisionMemoTest, EveryPartOfTheQuestionCounts) {
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

TEST(DecisionMemoTest, WhenItIsFullItKeepsWhatItHas) {
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

TEST(DecisionMemoTest, ThreadsThatAskAndKeepAtOnceSeeOnlyRightAnswers) {
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

}  // namespace
}  // namespace tessera::collectives
