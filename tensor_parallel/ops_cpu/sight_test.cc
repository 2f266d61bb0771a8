#include "tensor_parallel/ops_cpu/sight.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::tensor_parallel::cpu {
namespace {

void ExpectIsBruteForce(const std::vector<int64_t>& queries,
                        const std::vector<int64_t>& keys, bool causal,
                        int64_t size) {
  const Sight sight(queries, keys, causal, size);
  int64_t next = 0;
  for (const KeyTile& tile : sight.tiles()) {
    EXPECT_EQ(tile.keys.begin, next);
    EXPECT_LE(tile.keys.size(), size);
    next = tile.keys.end;
    int64_t width = 0;
    for (int64_t q = 0; q < static_cast<int64_t>(queries.size()); ++q) {
      const int64_t count = sight.Count(tile, q);
      width = std::max(width, count);
      for (int64_t j = 0; j < tile.keys.size(); ++j) {
        const int64_t key = tile.keys.begin + j;
        const bool sees = !causal || keys[key] <= queries[q];
        EXPECT_EQ(sight.Sees(q, key), sees);
        if (sees) {
          EXPECT_LT(j, count);
        }
        if (sight.SeesPrefix(tile)) {
          EXPECT_EQ(j < count, sees);
        }
      }
    }
    const IndexRange all = {0, static_cast<int64_t>(queries.size())};
    EXPECT_EQ(sight.Width(tile, all), width);
  }
  EXPECT_EQ(next, static_cast<int64_t>(keys.size()));
}

TEST(Sight, IsBruteForceForRandomPositions) {
  std::mt19937_64 random(1);
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::vector<int64_t> queries(random() % 6), keys(random() % 20);
    for (int64_t& x : queries) x = static_cast<int64_t>(random() % 12) - 1;
    for (int64_t& x : keys) x = static_cast<int64_t>(random() % 10);
    if (random() % 2 == 0) std::sort(keys.begin(), keys.end());
    for (const int64_t size : {1, 3, 8, 50}) {
      ExpectIsBruteForce(queries, keys, random() % 4 != 0, size);
    }
  }
}

TEST(Sight, OfNothingSeesNothing) {
  const Sight sight({}, {}, true, 4);
  EXPECT_TRUE(sight.tiles().empty());
}

}  // namespace
}  // namespace tessera::tensor_parallel::cpu
