#include "collectives/algorithms/schedule.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

constexpr int64_t kMost = 64;

TEST(ChunksTest, CoverRangeWithoutGaps) {
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

TEST(ChunksTest, ComputesBaseTwoLogarithms) {
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
    // The position of the block of slot j after its moves, from rank 0.
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

struct Item {
  int64_t window, step, block, first, length;
  friend bool operator==(const Item&, const Item&) = default;
};

std::vector<Item> ItemsOf(const Blocks& blocks, int64_t rank,
                          const RingShape& shape) {
  std::vector<Item> items;
  for (RingWalk walk(blocks, rank, shape); !walk.done(); walk.Next()) {
    items.push_back({walk.window(), walk.step(), walk.block(), walk.first(),
                     walk.length()});
  }
  return items;
}

Blocks SomeBlocks(int64_t ranks, int64_t seed) {
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    counts.push_back((rank * 5 + seed) * 7 % 11 * (seed % 3));
  }
  return Blocks::Of(counts);
}

TEST(RingWalkTest, CoversEveryBlockOfEveryStepInOrder) {
  for (int64_t n = 2; n <= 12; ++n) {
    for (int64_t seed = 0; seed < 6; ++seed) {
      const Blocks blocks = SomeBlocks(n, seed);
      for (const RingShape& shape :
           {RingShape{0, n - 1, 3, 2}, RingShape{0, 2 * n - 2, 4, 1},
            RingShape{n - 1, 2 * n - 2, 1, 3}}) {
        for (int64_t rank = 0; rank < n; ++rank) {
          std::map<std::pair<int64_t, int64_t>, int64_t> covered;
          Item last = {0, 0, 0, 0, 0};
          for (const Item& item : ItemsOf(blocks, rank, shape)) {
            ASSERT_LE(std::tie(last.window, last.step),
                      std::tie(item.window, item.step));
            ASSERT_EQ(item.block, RingBlock(n, rank, item.step));
            int64_t& at = covered[{item.step, item.block}];
            ASSERT_EQ(item.first, at);
            ASSERT_LE(item.length, shape.chunk);
            at += item.length;
            last = item;
          }
          for (int64_t s = shape.first_step; s < shape.end_step; ++s) {
            const int64_t block = RingBlock(n, rank, s);
            const auto it = covered.find({s, block});
            ASSERT_NE(it, covered.end());
            ASSERT_EQ(it->second, blocks.count(block));
          }
        }
      }
    }
  }
}

// In each step a rank sends the chunks that it received in the previous step,
// and its right neighbour expects the same chunks, window by window.
TEST(RingWalkTest, RightNeighbourExpectsSentChunks) {
  for (int64_t n = 2; n <= 12; ++n) {
    for (int64_t seed = 0; seed < 6; ++seed) {
      const Blocks blocks = SomeBlocks(n, seed);
      const RingShape shape = {0, 2 * n - 2, 3, 2};
      for (int64_t rank = 0; rank < n; ++rank) {
        std::vector<Item> sent;
        const RingWalk walk(blocks, rank, shape);
        const std::vector<Item> taken = ItemsOf(blocks, rank, shape);
        for (int64_t w = 0; w < walk.windows(); ++w) {
          const int64_t block = RingBlock(n, rank, -1);
          for (int64_t k = 0; k < walk.ChunksIn(w, block); ++k) {
            const int64_t first = (w * shape.depth + k) * shape.chunk;
            sent.push_back(
                {w, 0, block, first,
                 std::min(shape.chunk, blocks.count(block) - first)});
          }
          for (const Item& item : taken) {
            if (item.window != w || item.step + 1 == shape.end_step) continue;
            sent.push_back(item);
            ++sent.back().step;
          }
        }
        ASSERT_EQ(sent, ItemsOf(blocks, (rank + 1) % n, shape));
      }
    }
  }
}

TEST(RingWalkTest, ReduceScatterEndsWithTheOwnBlock) {
  for (int64_t n = 2; n <= 64; ++n) {
    for (int64_t rank = 0; rank < n; ++rank) {
      EXPECT_EQ(RingBlock(n, rank, n - 2), rank);
      EXPECT_EQ(RingBlock(n, rank, -1), (rank + n - 1) % n);
    }
  }
}

std::vector<TreePlace> All(int64_t n,
                           const std::function<TreePlace(int64_t)>& place_of) {
  std::vector<TreePlace> places;
  for (int64_t rank = 0; rank < n; ++rank) places.push_back(place_of(rank));
  return places;
}

// There is one root; parents and children agree; every rank is connected to the
// root at its stated depth, which is at most `height`.
void ExpectTree(const std::vector<TreePlace>& places, int64_t height) {
  const auto n = static_cast<int64_t>(places.size());
  int64_t roots = 0;
  for (int64_t rank = 0; rank < n; ++rank) {
    const TreePlace& place = places[static_cast<size_t>(rank)];
    EXPECT_LE(place.depth, height);
    for (int64_t child : place.children()) {
      ASSERT_TRUE(child >= 0 && child < n);
      EXPECT_EQ(places[static_cast<size_t>(child)].parent, rank);
    }
    if (place.parent < 0) {
      ++roots;
      EXPECT_EQ(place.depth, 0);
      continue;
    }
    const TreePlace& parent = places[static_cast<size_t>(place.parent)];
    EXPECT_EQ(parent.depth + 1, place.depth);
    EXPECT_EQ(
        std::count(parent.children().begin(), parent.children().end(), rank),
        1);
  }
  EXPECT_EQ(roots, 1);  // Parents are one level up, so no cycles.
}

TEST(TreePlaceTest, ChainIsATree) {
  for (int64_t n = 1; n <= kMost; ++n) {
    ExpectTree(All(n, [&](int64_t r) { return ChainPlace(n, r); }), n - 1);
  }
}

TEST(TreePlaceTest, BinomialIsATreeWithTheLargestChildFirst) {
  for (int64_t n = 1; n <= kMost; ++n) {
    const auto places = All(n, [&](int64_t r) { return BinomialPlace(n, r); });
    ExpectTree(places, CeilLog2(n));
    EXPECT_EQ(places[0].parent, -1);
    EXPECT_EQ(places[0].child_count, CeilLog2(n));
    for (const TreePlace& place : places) {
      EXPECT_TRUE(
          std::is_sorted(place.children().rbegin(), place.children().rend()));
    }
  }
}

TEST(TreePlaceTest, FirstTreeHasItsLeavesAtEvenRanks) {
  for (int64_t n = 1; n <= kMost; ++n) {
    const auto places =
        All(n, [&](int64_t r) { return DoubleTreePlace(n, r, 0); });
    ExpectTree(places, FloorLog2(n));
    for (int64_t rank = 0; rank < n; ++rank) {
      const TreePlace& place = places[static_cast<size_t>(rank)];
      EXPECT_LE(place.child_count, 2);
      if (rank % 2 == 0) {
        EXPECT_EQ(place.child_count, 0);
      }
    }
  }
}

TEST(TreePlaceTest, EveryRankIsALeafOfOneOfTheTwoTrees) {
  for (int64_t n = 1; n <= kMost; ++n) {
    std::vector<int64_t> children(static_cast<size_t>(n));
    std::vector<int> inner(static_cast<size_t>(n));
    for (int which : {0, 1}) {
      const auto places =
          All(n, [&](int64_t r) { return DoubleTreePlace(n, r, which); });
      ExpectTree(places, FloorLog2(n));
      for (size_t rank = 0; rank < places.size(); ++rank) {
        inner[rank] += places[rank].child_count > 0 ? 1 : 0;
        children[rank] += places[rank].child_count;
      }
    }
    for (size_t rank = 0; rank < inner.size(); ++rank) {
      EXPECT_LE(inner[rank], 1) << rank << " of " << n;
      EXPECT_LE(children[rank], 2);
    }
  }
}

TEST(TreePlaceTest, RootedDoubleTreeHasRankZeroAboveBothTrees) {
  for (int64_t n = 1; n <= kMost; ++n) {
    std::vector<int> inner(static_cast<size_t>(n));
    for (int which : {0, 1}) {
      const auto places =
          All(n, [&](int64_t r) { return RootedDoubleTree(n, r, which); });
      ExpectTree(places, n == 1 ? 0 : 1 + FloorLog2(n - 1));
      EXPECT_EQ(places[0].parent, -1);
      EXPECT_EQ(places[0].child_count, n == 1 ? 0 : 1);
      for (size_t rank = 1; rank < places.size(); ++rank) {
        inner[rank] += places[rank].child_count > 0 ? 1 : 0;
      }
    }
    for (int trees : inner) EXPECT_LE(trees, 1);
  }
}

}  // namespace

}  // namespace tessera::collectives
