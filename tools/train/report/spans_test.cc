#include "tools/train/report/spans.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMoments = 24;

// The reference: one flag per moment.
std::vector<bool> MomentsOf(const std::vector<Span>& spans) {
  std::vector<bool> moments(kMoments, false);
  for (const Span& span : spans) {
    for (int64_t at = span.begin; at < span.end; ++at) {
      moments[static_cast<size_t>(at)] = true;
    }
  }
  return moments;
}

Spans SpansOf(const std::vector<bool>& moments) {
  Spans spans;
  for (int64_t at = 0; at < kMoments; ++at) {
    if (!moments[static_cast<size_t>(at)]) continue;
    if (!spans.empty() && spans.back().end == at) {
      ++spans.back().end;
    } else {
      spans.push_back({at, at + 1});
    }
  }
  return spans;
}

std::vector<Span> RandomSpans(std::mt19937_64& random) {
  std::vector<Span> spans;
  for (uint64_t i = random() % 6; i > 0; --i) {
    const auto a = static_cast<int64_t>(random() % kMoments);
    const auto b = static_cast<int64_t>(random() % kMoments);
    spans.push_back({a, b});  // Some are empty or end before they begin.
  }
  return spans;
}

TEST(SpansTest, EveryOperationIsThatOfSetsOfMoments) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<Span> raw_a = RandomSpans(random);
    const std::vector<Span> raw_b = RandomSpans(random);
    const std::vector<bool> a = MomentsOf(raw_a);
    const std::vector<bool> b = MomentsOf(raw_b);
    std::vector<bool> both(kMoments), without(kMoments), either(kMoments);
    for (size_t at = 0; at < kMoments; ++at) {
      both[at] = a[at] && b[at];
      without[at] = a[at] && !b[at];
      either[at] = a[at] || b[at];
    }
    ASSERT_EQ(Merged(raw_a), SpansOf(a));
    ASSERT_EQ(Both(SpansOf(a), SpansOf(b)), SpansOf(both));
    ASSERT_EQ(Merged(Without(SpansOf(a), SpansOf(b))), SpansOf(without));
    ASSERT_EQ(Without(SpansOf(a), SpansOf(b)), SpansOf(without));
    ASSERT_EQ(Either(SpansOf(a), SpansOf(b)), SpansOf(either));
    ASSERT_EQ(Length(SpansOf(a)), std::count(a.begin(), a.end(), true));
  }
}

TEST(SpansTest, TheEarliestMomentsComeFirst) {
  const Spans spans = {{2, 5}, {7, 8}, {10, 20}};
  EXPECT_THAT(Earliest(spans, 0), ElementsAre());
  EXPECT_THAT(Earliest(spans, 2), ElementsAre(Span{2, 4}));
  EXPECT_THAT(Earliest(spans, 4), ElementsAre(Span{2, 5}, Span{7, 8}));
  EXPECT_THAT(Earliest(spans, 5),
              ElementsAre(Span{2, 5}, Span{7, 8}, Span{10, 11}));
  EXPECT_EQ(Earliest(spans, 100), spans);
}

}  // namespace
}  // namespace tessera::train
