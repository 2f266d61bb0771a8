#include <vector>

#include "collectives/algorithms/bruck_schedule.h"
#include "collectives/algorithms/chunks.h"
#include "collectives/algorithms/fold.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kMost = 64;

TEST(ChunksTest, PartTheRangeWithoutGapsAndNeverIntoNone) {
  for (int64_t total = 0; total <= 40; ++total) {
    for (int64_t size = 1; size <= 42; ++size) {
      const Chunks chunks(total, size);
      ASSERT_GE(chunks.count(), 1);
      int64_t next = 0;
      for (int64_t k = 0; k < chunks.count(); ++k) {
        ASSERT_EQ(chunks.first(k), next);
        ASSERT_LE(chunks.length(k), chunks.longest());
        ASSERT_TRUE(total == 0 || chunks.length(k) > 0);
        next += chunks.length(k);
      }
      ASSERT_EQ(next, total);
    }
  }
  EXPECT_EQ(ChunkElements(64, 4), 16);
  EXPECT_EQ(ChunkElements(1, 8), 1);
}

TEST(ChunksTest, LogarithmsAreThoseOfPowersOfTwo) {
  for (int64_t n = 1; n <= 5000; ++n) {
    ASSERT_GE(int64_t{1} << CeilLog2(n), n);
    ASSERT_TRUE(n == 1 || int64_t{1} << (CeilLog2(n) - 1) < n);
    ASSERT_LE(int64_t{1} << FloorLog2(n), n);
    ASSERT_GT(int64_t{2} << FloorLog2(n), n);
  }
}

TEST(FoldTest, EveryRankActsOrFoldsIntoItsNeighbour) {
  for (int64_t n = 1; n <= kMost; ++n) {
    const Fold fold(n);
    ASSERT_EQ(fold.power() + fold.extra(), n);
    ASSERT_LT(fold.extra(), fold.power());
    std::vector<int64_t> stands_for(static_cast<size_t>(fold.power()));
    for (int64_t rank = 0; rank < n; ++rank) {
      ++stands_for[static_cast<size_t>(fold.VirtualOf(rank))];
      if (fold.FoldsIn(rank)) {
        ASSERT_FALSE(fold.FoldsIn(Fold::Partner(rank)));
        ASSERT_EQ(fold.VirtualOf(rank), fold.VirtualOf(Fold::Partner(rank)));
      } else {
        ASSERT_EQ(fold.RankOf(fold.VirtualOf(rank)), rank);
      }
    }
    for (int64_t v = 0; v < fold.power(); ++v) {
      ASSERT_EQ(stands_for[static_cast<size_t>(v)], v < fold.extra() ? 2 : 1);
    }
  }
}

TEST(FoldTest, MergedBlocksCoverTheBlocksOfTheirRanks) {
  for (int64_t n = 1; n <= kMost; ++n) {
    std::vector<int64_t> counts;
    for (int64_t rank = 0; rank < n; ++rank) counts.push_back(rank * 7 % 5);
    const Blocks blocks = Blocks::Of(counts);
    const Fold fold(n);
    const Blocks merged = fold.Merge(blocks);
    ASSERT_EQ(merged.ranks(), fold.power());
    ASSERT_EQ(merged.total(), blocks.total());
    for (int64_t v = 0; v < fold.power(); ++v) {
      ASSERT_EQ(merged.offset(v), blocks.offset(fold.RankOf(v)));
    }
  }
}

TEST(BruckScheduleTest, AllGatherReachesEveryBlockOnce) {
  for (int64_t n = 1; n <= kMost; ++n) {
    int64_t has = 1;  // Blocks 0 to has - 1, counted from the own one.
    for (int64_t k = 0; k < CeilLog2(n); ++k) {
      ASSERT_EQ(has, int64_t{1} << k);
      has += BruckGatherBlocks(n, k);
    }
    ASSERT_EQ(has, n);
  }
}

TEST(BruckScheduleTest, AllToAllBringsEveryBlockToItsRank) {
  for (int64_t n = 1; n <= kMost; ++n) {
    // Where the block of slot j has come to, from rank 0.
    for (int64_t slot = 0; slot < n; ++slot) {
      int64_t at = 0;
      for (int64_t k = 0; k < CeilLog2(n); ++k) {
        if (BruckSlotMoves(slot, k)) at = (at + (int64_t{1} << k)) % n;
      }
      ASSERT_EQ(at, slot);
    }
    for (int64_t k = 0; k < CeilLog2(n); ++k) {
      int64_t moving = 0;
      for (int64_t slot = 0; slot < n; ++slot) {
        moving += BruckSlotMoves(slot, k) ? 1 : 0;
      }
      ASSERT_EQ(BruckMovingSlots(n, k), moving);
      ASSERT_LE(moving, n / 2);
    }
  }
}

}  // namespace
}  // namespace tessera::collectives
