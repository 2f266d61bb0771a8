#include "tools/train/model/shampoo_blocks.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tools/train/model/moment_tensors.h"

namespace tessera::train {
namespace {

TEST(ShampooBlocksTest, CoverTheMatrixAndTheStatistics) {
  for (const int64_t rows : {1, 4, 7, 8}) {
    for (const int64_t columns : {1, 5, 12}) {
      for (const int64_t most : {1, 3, 4, 100}) {
        std::vector<int> covered(static_cast<size_t>(rows * columns));
        int64_t begin = 0;
        for (const MatrixBlock& block : BlocksOf(rows, columns, most)) {
          EXPECT_LE(block.rows.size(), most);
          EXPECT_LE(block.columns.size(), most);
          EXPECT_EQ(block.left, begin);
          begin += 2 * (block.rows.size() * block.rows.size() +
                        block.columns.size() * block.columns.size());
          EXPECT_EQ(block.end(), begin);
          for (int64_t r = block.rows.begin; r < block.rows.end; ++r) {
            for (int64_t c = block.columns.begin; c < block.columns.end; ++c) {
              ++covered[static_cast<size_t>(r * columns + c)];
            }
          }
        }
        EXPECT_EQ(covered, std::vector<int>(covered.size(), 1));
        EXPECT_EQ(StatisticsElements(rows, columns, most), begin);
      }
    }
  }
}

TEST(ShampooBlocksTest, NamesAreThoseOfMoments) {
  EXPECT_EQ(StatisticsName("a.weight", 12), "a.weight.12.statistics");
  EXPECT_TRUE(IsMoments(StatisticsName("a.weight", 0)));
  EXPECT_FALSE(IsMoments("a.weight"));
}

}  // namespace
}  // namespace tessera::train
