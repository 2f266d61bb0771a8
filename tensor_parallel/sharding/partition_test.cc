#include "tensor_parallel/sharding/partition.h"

#include <limits>
#include <numeric>
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

// Element by element: torch.chunk's rule, and round-robin blocks.
Sizes ChunkedSizes(int64_t size, int64_t parts) {
  Sizes sizes(static_cast<size_t>(parts));
  int64_t chunk = 0;
  while (chunk * parts < size) ++chunk;
  for (int64_t i = 0; i < size; ++i) ++sizes[static_cast<size_t>(i / chunk)];
  return sizes;
}

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

// Checks that parts are in order, without gaps, within the dimension, and agree
// with PartOf.
void ExpectCovers(const Partition& partition) {
  int64_t next = 0;
  for (int64_t part = 0; part < partition.parts(); ++part) {
    const IndexRange range = partition.RangeOf(part);
    EXPECT_EQ(range.begin, next) << partition;
    EXPECT_LE(range.end, partition.size()) << partition;
    EXPECT_LE(range.size(), partition.largest()) << partition;
    EXPECT_GE(partition.PaddedSizeOf(part), range.size()) << partition;
    EXPECT_EQ(partition.PaddedSizeOf(part) % partition.block(), 0);
    EXPECT_LT(partition.PaddedSizeOf(part) - range.size(), partition.block());
    for (int64_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(partition.PartOf(i), part) << partition << " " << i;
    }
    next = range.end;
  }
  EXPECT_EQ(next, partition.size()) << partition;
}

TEST(PartitionTest, EverySmallOneIsAsDealtElementByElement) {
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t parts = 1; parts <= 12; ++parts) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const Partition chunks,
                                   Partition::CeilChunks(size, parts));
      EXPECT_EQ(chunks.Sizes(), ChunkedSizes(size, parts)) << chunks;
      ExpectCovers(chunks);
      for (int64_t block = 1; block <= 6; ++block) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const Partition blocks,
                                     Partition::Blocks(size, parts, block));
        EXPECT_EQ(blocks.Sizes(), DealtSizes(size, parts, block)) << blocks;
        ExpectCovers(blocks);
      }
    }
  }
}

TEST(PartitionTest, TheRulesDifferAsTheHeaderSays) {
  EXPECT_THAT(Partition::CeilChunks(10, 4)->Sizes(), ElementsAre(3, 3, 3, 1));
  EXPECT_THAT(Partition::Balanced(10, 4)->Sizes(), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(Partition::Blocks(10, 4, 4)->Sizes(), ElementsAre(4, 4, 2, 0));
  EXPECT_EQ(Partition::Blocks(10, 4, 4)->PaddedSizeOf(2), 4);
  EXPECT_EQ(Partition::Balanced(10, 4)->RangeOf(1), (IndexRange{3, 6}));
}

TEST(PartitionTest, EvenIsWhereAllPartsAreAlike) {
  EXPECT_TRUE(Partition::Balanced(12, 4)->even());
  EXPECT_TRUE(Partition::Balanced(0, 4)->even());
  EXPECT_FALSE(Partition::Balanced(13, 4)->even());
  EXPECT_FALSE(Partition::CeilChunks(3, 4)->even());
}

TEST(PartitionTest, TheLargestNumbersDoNotOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t parts : {1, 3, 1024}) {
    for (const auto& partition : {Partition::CeilChunks(kMost, parts),
                                  Partition::Balanced(kMost, parts),
                                  Partition::Blocks(kMost, parts, 1 << 20)}) {
      TESSERA_ASSERT_OK(partition);
      EXPECT_EQ(partition->RangeOf(parts - 1).end, kMost);
      EXPECT_EQ(partition->PartOf(kMost - 1), parts - 1);
    }
  }
}

TEST(PartitionTest, CountsThatCannotBeAreRefused) {
  EXPECT_THAT(Partition::Balanced(-1, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a dimension of -1 elements")));
  EXPECT_THAT(Partition::CeilChunks(8, 0),
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
