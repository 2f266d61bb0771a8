#include "collectives/mpi/pieces.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(PiecesTest, CoverEveryRangeInOrder) {
  for (int64_t count = 0; count < 50; ++count) {
    for (int limit = 1; limit < 20; ++limit) {
      int64_t next = 0;
      for (Piece piece : Pieces(count, limit)) {
        EXPECT_EQ(piece.first, next);
        EXPECT_LE(piece.length, limit);
        EXPECT_TRUE(piece.length > 0 || count == 0);
        next += piece.length;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(PiecesTest, CountsPastAnIntAreCut) {
  constexpr int kLimit = std::numeric_limits<int>::max();
  const int64_t count = int64_t{5} << 30;
  std::vector<Piece> pieces;
  for (Piece piece : Pieces(count, kLimit)) pieces.push_back(piece);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[1], (Piece{kLimit, kLimit}));
  EXPECT_EQ(pieces[2].first + pieces[2].length, count);
}

TEST(PiecesTest, EmptyRangeIsOneEmptyPiece) {
  EXPECT_THAT(Pieces(0, 4), ::testing::ElementsAre(Piece{0, 0}));
}

}  // namespace
}  // namespace tessera::collectives
