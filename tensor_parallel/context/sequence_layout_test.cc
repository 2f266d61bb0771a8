#include "tensor_parallel/context/sequence_layout.h"

#include <algorithm>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Pairs of a query of `rank` and a key that it sees under a causal mask.
int64_t CausalPairs(const SequenceLayout& layout, int64_t rank) {
  int64_t pairs = 0;
  for (const int64_t position : layout.PositionsOf(rank)) pairs += position + 1;
  return pairs;
}

TEST(SequenceLayoutTest, EveryPositionIsOneRanks) {
  for (int64_t ranks = 1; ranks <= 9; ++ranks) {
    for (int64_t length = 0; length <= 50; ++length) {
      for (const bool zigzag : {false, true}) {
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const SequenceLayout layout,
            zigzag ? SequenceLayout::Zigzag(length, ranks)
                   : SequenceLayout::Contiguous(length, ranks));
        EXPECT_EQ(layout.ranks(), ranks);
        EXPECT_EQ(layout.length(), length);
        std::vector<int> holders(static_cast<size_t>(length));
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const std::vector<int64_t> positions = layout.PositionsOf(rank);
          EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
          EXPECT_EQ(layout.SizeOf(rank),
                    static_cast<int64_t>(positions.size()));
          for (const int64_t position : positions) {
            ++holders[static_cast<size_t>(position)];
          }
        }
        EXPECT_EQ(std::count(holders.begin(), holders.end(), 1), length);
      }
    }
  }
}

TEST(SequenceLayoutTest, ZigzagGivesARankTheFrontAndTheBack) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const SequenceLayout layout,
                               SequenceLayout::Zigzag(8, 2));
  EXPECT_THAT(layout.PositionsOf(0), ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(layout.PositionsOf(1), ElementsAre(2, 3, 4, 5));
}

// The work is equal if 2 n divides the length. Otherwise some ranks have one
// more query, which sees up to the whole sequence: less than a block if chunks
// are long.
TEST(SequenceLayoutTest, CausalWorkUnderZigzagDiffersByLessThanABlock) {
  for (int64_t ranks = 1; ranks <= 9; ++ranks) {
    for (int64_t length = 2 * ranks; length <= 1000; length += 7) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const SequenceLayout layout,
                                   SequenceLayout::Zigzag(length, ranks));
      int64_t least = CausalPairs(layout, 0);
      int64_t most = least;
      for (int64_t rank = 1; rank < ranks; ++rank) {
        least = std::min(least, CausalPairs(layout, rank));
        most = std::max(most, CausalPairs(layout, rank));
      }
      const bool even = length % (2 * ranks) == 0;
      EXPECT_LE(2 * (most - least), even ? 0 : 3 * length)
          << ranks << " ranks, " << length;
      const int64_t chunk = length / (2 * ranks);
      if (chunk >= 3 * ranks) {
        EXPECT_LE(most - least, chunk * (chunk + 1));
      }
    }
  }
}

// Counts the pairs of a query of `rank` and a key of `other` that it sees.
int64_t VisiblePairs(const SequenceLayout& layout, int64_t rank,
                     int64_t other) {
  int64_t pairs = 0;
  for (const int64_t query : layout.PositionsOf(rank)) {
    for (const int64_t key : layout.PositionsOf(other)) pairs += key <= query;
  }
  return pairs;
}

// In each step of a ring every rank works on one other rank's keys. Under
// zigzag all have the same work, so no rank waits. Under the contiguous layout
// the first rank has one block of work in total and the last one n.
TEST(SequenceLayoutTest, EveryStepOfARingIsTheSameWorkUnderZigzag) {
  for (int64_t ranks = 2; ranks <= 8; ++ranks) {
    for (const int64_t chunk : {1, 4, 9}) {
      const int64_t length = 2 * ranks * chunk;
      TESSERA_ASSERT_OK_AND_ASSIGN(const SequenceLayout layout,
                                   SequenceLayout::Zigzag(length, ranks));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        int64_t all = 0;
        for (int64_t other = 0; other < ranks; ++other) {
          const int64_t pairs = VisiblePairs(layout, rank, other);
          // The rank's own block also contains the queries' own positions.
          EXPECT_EQ(pairs, 2 * chunk * chunk + (other == rank ? chunk : 0));
          all += pairs;
        }
        EXPECT_EQ(all, CausalPairs(layout, rank));
      }
    }
  }
}

// Lengths not divisible by 2 n: the least and the most work of a rank's queries
// with another rank's keys differ by less than a block, by counting.
TEST(SequenceLayoutTest, UnevenStepsOfARingDifferByLessThanABlock) {
  for (int64_t ranks = 2; ranks <= 5; ++ranks) {
    for (int64_t length = 6 * ranks * ranks; length < 6 * ranks * ranks + 13;
         ++length) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const SequenceLayout layout,
                                   SequenceLayout::Zigzag(length, ranks));
      std::vector<int64_t> work;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        work.push_back(0);
        for (int64_t other = 0; other < ranks; ++other) {
          work.back() += VisiblePairs(layout, rank, other);
        }
      }
      const auto [least, most] = std::minmax_element(work.begin(), work.end());
      const int64_t block = length / ranks;
      EXPECT_LT(*most - *least, block * block) << ranks << ", " << length;
    }
  }
}

TEST(SequenceLayoutTest, WrongCountsAreRefused) {
  EXPECT_THAT(
      SequenceLayout::Zigzag(-1, 2),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1 elements")));
  EXPECT_THAT(SequenceLayout::Zigzag(4, int64_t{1} << 62),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("share a sequence")));
  EXPECT_THAT(
      SequenceLayout::Contiguous(4, 0),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 parts")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
