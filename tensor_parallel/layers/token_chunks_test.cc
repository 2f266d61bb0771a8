#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/chunked_collectives.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::ElementsAre;

void CheckCover(const Partition& tokens, int64_t asked) {
  const TokenChunks chunks(tokens, asked);
  EXPECT_GE(chunks.count(), 1);
  EXPECT_LE(chunks.count(), std::max<int64_t>(1, asked));
  std::vector<int> seen(static_cast<size_t>(tokens.size()));
  int64_t row = 0;
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
    EXPECT_EQ(chunks.RowsOf(chunk).begin, row);
    const std::vector<int64_t> sizes = chunks.SizesOf(chunk);
    for (int64_t rank = 0; rank < tokens.parts(); ++rank) {
      const IndexRange of = chunks.TokensOf(chunk, rank);
      const IndexRange mine = tokens.RangeOf(rank);
      EXPECT_EQ(Intersection(of, mine).size(), of.size());
      EXPECT_EQ(chunks.LocalOf(chunk, rank).begin, of.begin - mine.begin);
      EXPECT_EQ(sizes[static_cast<size_t>(rank)], of.size());
      EXPECT_EQ(chunks.RowsOf(chunk, rank), (IndexRange{row, row + of.size()}));
      row += of.size();
      const int64_t least = mine.size() / chunks.count();
      EXPECT_GE(of.size(), least);
      EXPECT_LE(of.size(), least + 1);
      for (int64_t i = of.begin; i < of.end; ++i) {
        ++seen[static_cast<size_t>(i)];
      }
    }
    EXPECT_EQ(chunks.RowsOf(chunk).end, row);
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), tokens.size());
}

TEST(TokenChunksTest, EveryTokenIsInOneChunk) {
  for (int64_t size = 0; size <= 30; ++size) {
    for (int64_t ranks = 1; ranks <= 5; ++ranks) {
      for (int64_t chunks = 0; chunks <= 7; ++chunks) {
        CheckCover(*Partition::Balanced(size, ranks), chunks);
        CheckCover(*Partition::Blocks(size, ranks, 4), chunks);
      }
    }
  }
}

TEST(TokenChunksTest, AreNoMoreThanTokens) {
  EXPECT_EQ(TokenChunks(*Partition::Balanced(10, 2), 2).count(), 2);
  EXPECT_EQ(TokenChunks(*Partition::Balanced(10, 2), 50).count(), 5);
  EXPECT_EQ(TokenChunks(*Partition::Balanced(0, 2), 4).count(), 1);
  EXPECT_THAT(TokenChunks(*Partition::Balanced(10, 2), 2).SizesOf(0),
              ElementsAre(3, 3));
}

}  // namespace
}  // namespace tessera::tensor_parallel
