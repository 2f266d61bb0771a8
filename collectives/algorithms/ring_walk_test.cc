#include "collectives/algorithms/ring_walk.h"

#include <map>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

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

// What a rank receives in one step it sends in the next, to a right neighbour
// that expects just that: window by window the same chunks.
TEST(RingWalkTest, RightNeighbourExpectsWhatIsSent) {
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

}  // namespace
}  // namespace tessera::collectives
