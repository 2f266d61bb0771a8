#include "tools/text/token_ranges.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::text {
namespace {

using ::testing::ElementsAre;

TEST(TokenRangesTest, NoRangesHaveNoTokens) {
  const TokenRanges none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.CountIn({0, 100}), 0);
  EXPECT_THAT(none.PartsIn({0, 100}), ElementsAre());
}

TEST(TokenRangesTest, MergesAdjacentRangesAndIgnoresEmptyOnes) {
  TokenRanges ranges;
  ranges.Append({2, 2});
  ranges.Append({2, 4});
  ranges.Append({4, 4});
  ranges.Append({4, 5});
  ranges.Append({7, 8});
  EXPECT_THAT(ranges.ranges(), ElementsAre(TokenRange{2, 5}, TokenRange{7, 8}));
  EXPECT_EQ(ranges.memory_bytes(), 2 * 24);
}

// Tests all sets of tokens of a short sequence, and all parts of the sequence.
TEST(TokenRangesTest, CountsAndPartsMatchTokens) {
  constexpr int64_t kTokens = 8;
  for (int64_t set = 0; set < 1 << kTokens; ++set) {
    TokenRanges ranges;
    for (int64_t t = 0; t < kTokens; ++t) {
      if ((set >> t & 1) != 0) ranges.Append({t, t + 1});
    }
    for (int64_t begin = 0; begin <= kTokens; ++begin) {
      for (int64_t end = begin; end <= kTokens; ++end) {
        TokenRanges expected;
        int64_t count = 0;
        for (int64_t t = begin; t < end; ++t) {
          if ((set >> t & 1) == 0) continue;
          expected.Append({t, t + 1});
          ++count;
        }
        ASSERT_EQ(ranges.CountIn({begin, end}), count)
            << set << ": " << begin << " to " << end;
        ASSERT_THAT(ranges.PartsIn({begin, end}),
                    ::testing::ElementsAreArray(expected.ranges()))
            << set << ": " << begin << " to " << end;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::text
