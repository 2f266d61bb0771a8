#include "tensor_parallel/sharding/partition.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Sizes = std::vector<int64_t>;

// Deals blocks in turn.
Sizes DealtSizes(int64_t size, int64_t parts, int64_t block) {
  std::vector<int64_t> blocks(static_cast<size_t>(parts));
  for (int64_t i = 0, part = 0; i < size; i += block) {
    ++blocks[static_cast<size_t>(part)];
    part = (part + 1) % parts;
  }
  Sizes sizes(static_cast<size_t>(parts));
  int64_t left = size;
  for (size_t part = 0; part < sizes.size(); ++part) {
    sizes[part] = std::min(left, blocks[part] * block);
    left -= sizes[part];
  }
  return sizes;
}

// In order, without gaps, within the dimension.
void ExpectCovers(const Partition& partition) {
  int64_t next = 0;
  for (int64_t part = 0; part < partition.parts(); ++part) {
    const IndexRange range = partition.RangeOf(part);
    EXPECT_EQ(range.begin, next) << partition;
    EXPECT_LE(range.end, partition.size()) << partition;
    EXPECT_LE(range.size(), partition.largest()) << partition;
    next = range.end;
  }
  EXPECT_EQ(next, partition.size()) << partition;
}

TEST(PartitionTest, EverySmallOneIsAsDealtElementByElement) {
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t parts = 1; parts <= 12; ++parts) {
      for (int64_t block = 1; block <= 6; ++block) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const Partition blocks,
                                     Partition::Blocks(size, parts, block));
        EXPECT_EQ(blocks.Sizes(), DealtSizes(size, parts, block)) << blocks;
        ExpectCovers(blocks);
      }
    }
  }
}

TEST(PartitionTest, ChunksAreThoseOfTorch) {
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t parts = 1; parts <= 12; ++parts) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const Partition chunks,
          Partition::Create(size, parts, PartitionRule::CeilChunks()));
      Sizes expected;
      const int64_t chunk = (size + parts - 1) / parts;
      for (int64_t part = 0, left = size; part < parts; ++part) {
        expected.push_back(std::min(left, chunk));
        left -= expected.back();
      }
      EXPECT_EQ(chunks.Sizes(), expected) << chunks;
      EXPECT_EQ(chunks.even(), expected.front() == expected.back()) << chunks;
      ExpectCovers(chunks);
    }
  }
}

TEST(PartitionTest, UnevenPartsHaveTheGivenSizes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Partition partition,
      Partition::Create(10, 4, PartitionRule::Uneven({1, 4, 5, 0})));
  EXPECT_THAT(partition.Sizes(), ElementsAre(1, 4, 5, 0));
  EXPECT_EQ(partition.RangeOf(2), (IndexRange{5, 10}));
  EXPECT_EQ(partition.largest(), 5);
  EXPECT_FALSE(partition.even());
  EXPECT_TRUE(Partition::Create(4, 2, PartitionRule::Uneven({2, 2}))->even());
  ExpectCovers(partition);
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {}, {10}, {1, 4, 5, 1}, {5, 5, 1, -1}, {11, 0, 0, -1}}) {
    EXPECT_THAT(Partition::Create(10, 4, PartitionRule::Uneven(sizes)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("give 4 sizes of 0 or more that add up to "
                                   "10")));
  }
}

TEST(PartitionTest, TheRulesDifferAsTheHeaderSays) {
  EXPECT_THAT(Partition::Create(10, 4, PartitionRule::CeilChunks())->Sizes(),
              ElementsAre(3, 3, 3, 1));
  EXPECT_THAT(Partition::Balanced(10, 4)->Sizes(), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(Partition::Blocks(10, 4, 4)->Sizes(), ElementsAre(4, 4, 2, 0));
  EXPECT_EQ(Partition::Balanced(10, 4)->RangeOf(1), (IndexRange{3, 6}));
}

TEST(PartitionTest, EvenIsWhereAllPartsAreAlike) {
  EXPECT_TRUE(Partition::Balanced(12, 4)->even());
  EXPECT_TRUE(Partition::Balanced(0, 4)->even());
  EXPECT_FALSE(Partition::Balanced(13, 4)->even());
  EXPECT_FALSE(Partition::Balanced(3, 4)->even());
}

TEST(PartitionTest, TheLargestNumbersDoNotOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t parts : {1, 3, 1024}) {
    for (const auto& partition :
         {Partition::Balanced(kMost, parts),
          Partition::Blocks(kMost, parts, 1 << 20),
          Partition::Create(kMost, parts, PartitionRule::CeilChunks())}) {
      TESSERA_ASSERT_OK(partition);
      EXPECT_EQ(partition->RangeOf(parts - 1).end, kMost);
    }
  }
}

TEST(PartitionTest, CountsThatCannotBeAreRefused) {
  EXPECT_THAT(Partition::Balanced(-1, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a dimension of -1 elements")));
  EXPECT_THAT(Partition::Balanced(8, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("in 0 parts"), HasSubstr("1 or more"))));
  EXPECT_THAT(Partition::Blocks(8, 2, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("blocks of 0 elements")));
}

TEST(PartitionTest, SaysItsSizes) {
  EXPECT_EQ(Partition::Balanced(10, 4)->ToString(), "10 in 4 parts of 3 3 2 2");
  EXPECT_THAT(Partition::Balanced(100, 50)->ToString(), HasSubstr("2 2 ..."));
}

TEST(IndexRangeTest, IntersectionsAreWhatBothHold) {
  for (int64_t a = 0; a <= 4; ++a) {
    for (int64_t b = a; b <= 4; ++b) {
      for (int64_t c = 0; c <= 4; ++c) {
        for (int64_t d = c; d <= 4; ++d) {
          const IndexRange both = Intersection({a, b}, {c, d});
          for (int64_t i = 0; i < 5; ++i) {
            EXPECT_EQ(both.contains(i), a <= i && i < b && c <= i && i < d);
          }
          EXPECT_GE(both.size(), 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
