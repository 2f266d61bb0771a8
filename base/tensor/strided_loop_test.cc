#include "base/tensor/strided_loop.h"

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {

bool operator==(const LoopDim& a, const LoopDim& b) {
  return a.size == b.size && a.source_stride == b.source_stride &&
         a.target_stride == b.target_stride;
}

namespace {

using ::testing::ElementsAre;
using Strides = std::vector<int64_t>;

TEST(StridedLoopTest, MergesDimensionsContiguousInBoth) {
  const Strides shape = {2, 3, 4}, row_major = {12, 4, 1};
  EXPECT_THAT(MakeStridedLoop(shape, row_major, row_major),
              ElementsAre(LoopDim{24, 1, 1}));
  EXPECT_THAT(MakeStridedLoop(shape, Strides{24, 4, 1}, row_major),
              ElementsAre(LoopDim{2, 24, 12}, LoopDim{12, 1, 1}));
}

TEST(StridedLoopTest, MergesDimensionsInAnyOrder) {
  EXPECT_THAT(
      MakeStridedLoop(Strides{4, 2, 3}, Strides{1, 12, 4}, Strides{1, 12, 4}),
      ElementsAre(LoopDim{24, 1, 1}));
}

TEST(StridedLoopTest, WritesInTheOrderOfTheTarget) {
  EXPECT_THAT(MakeStridedLoop(Strides{2, 3}, Strides{3, 1}, Strides{1, 2}),
              ElementsAre(LoopDim{3, 1, 2}, LoopDim{2, 3, 1}));
}

TEST(StridedLoopTest, OneElementIsOneStep) {
  EXPECT_THAT(MakeStridedLoop({}, {}, {}), ElementsAre(LoopDim{1, 1, 1}));
  EXPECT_THAT(MakeStridedLoop(Strides{1, 1}, Strides{5, 9}, Strides{3, 2}),
              ElementsAre(LoopDim{1, 1, 1}));
}

TEST(StridedLoopTest, VisitsSamePairsAsPlainLoop) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 5000; ++i) {
    Strides shape, source, target;
    int64_t stride = 1;
    std::multimap<int64_t, int64_t> expected = {{0, 0}};
    for (uint64_t rank = random() % 5; rank > 0; --rank) {
      shape.push_back(1 + static_cast<int64_t>(random() % 4));
      source.push_back(static_cast<int64_t>(random() % 30) - 15);
      target.push_back(random() % 2 == 0 ? stride : -stride);
      stride *= shape.back() + static_cast<int64_t>(random() % 2);
      std::multimap<int64_t, int64_t> longer;
      for (const auto& [to, from] : expected) {
        for (int64_t k = 0; k < shape.back(); ++k) {
          longer.emplace(to + k * target.back(), from + k * source.back());
        }
      }
      expected = longer;
    }
    std::multimap<int64_t, int64_t> visited;
    ForEachStep(MakeStridedLoop(shape, source, target),
                [&](int64_t from, int64_t to) { visited.emplace(to, from); });
    ASSERT_EQ(visited, expected);
  }
}

}  // namespace
}  // namespace tessera
