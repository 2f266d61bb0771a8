// Compares with a map from every element to its location.
#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/checkpoint/held_tensor.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;

// The element of the whole tensor, by position in the held tensor.
std::vector<std::pair<int64_t, bool>> ElementsOf(const HeldTensor& tensor) {
  const int64_t width = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  std::vector<std::pair<int64_t, bool>> elements;
  for (const auto& rows : tensor.rows) {
    for (int64_t r = rows.range.begin; r < rows.range.end; ++r) {
      for (int64_t c = tensor.columns.begin; c < tensor.columns.end; ++c) {
        elements.emplace_back(r * width + c, rows.primary);
      }
    }
  }
  return elements;
}

// Cuts [0, size) into `parts` ranges, some of them empty.
std::vector<tensor_parallel::IndexRange> Cut(int64_t size, int64_t parts,
                                             std::mt19937_64& random) {
  std::vector<int64_t> cuts = {0, size};
  for (int64_t i = 1; i < parts; ++i) {
    cuts.push_back(static_cast<int64_t>(random() % (size + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<tensor_parallel::IndexRange> ranges;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    ranges.push_back({cuts[i], cuts[i + 1]});
  }
  return ranges;
}

// A tensor distributed over ranks as layers do it: by columns, or by rows in
// several ranges, some of them replicated.
std::vector<HeldTensor> RandomParts(std::vector<int64_t> shape,
                                    std::mt19937_64& random) {
  const auto ranks = static_cast<int64_t>(1 + random() % 4);
  std::vector<HeldTensor> parts(static_cast<size_t>(ranks),
                                WholeTensor("t", shape));
  if (shape.size() == 2 && random() % 3 == 0) {
    const auto columns = Cut(shape[1], ranks, random);
    for (size_t r = 0; r < parts.size(); ++r) parts[r].columns = columns[r];
    return parts;
  }
  for (HeldTensor& part : parts) part.rows.clear();
  for (const auto& fused : Cut(shape[0], 1 + random() % 3, random)) {
    const auto rows = Cut(fused.size(), ranks, random);
    const bool is_copied = random() % 4 == 0;
    for (size_t r = 0; r < parts.size(); ++r) {
      const auto& mine = rows[is_copied ? 0 : r];
      parts[r].rows.push_back(
          {{fused.begin + mine.begin, fused.begin + mine.end},
           !is_copied || r == 0});
      // A copy holds the whole fused range.
      if (is_copied) parts[r].rows.back().range = fused;
    }
  }
  return parts;
}

std::vector<const HeldTensor*> PointersTo(const std::vector<HeldTensor>& all) {
  std::vector<const HeldTensor*> pointers;
  for (const HeldTensor& one : all) pointers.push_back(&one);
  return pointers;
}

TEST(TensorCopiesTest, CopiesEveryElementOnce) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 4000; ++round) {
    std::vector<int64_t> shape = {static_cast<int64_t>(1 + random() % 9)};
    if (random() % 4 > 0) {
      shape.push_back(static_cast<int64_t>(1 + random() % 7));
    }
    const std::vector<HeldTensor> sources = RandomParts(shape, random);
    ASSERT_TRUE(CoverOnce(PointersTo(sources)));
    for (const HeldTensor& target : RandomParts(shape, random)) {
      const auto wanted = ElementsOf(target);
      const auto end = static_cast<int64_t>(random() % (wanted.size() + 1));
      const int64_t begin = end == 0 ? 0 : static_cast<int64_t>(random() % end);
      std::map<int64_t, int> seen;
      for (const TensorCopy& copy :
           CopiesTo(target, begin, end, PointersTo(sources))) {
        const auto there = ElementsOf(sources[copy.source]);
        for (int64_t r = 0; r < copy.rows; ++r) {
          for (int64_t c = 0; c < copy.columns; ++c) {
            const int64_t to = copy.to + r * copy.to_width + c;
            const int64_t from = copy.from + r * copy.from_width + c;
            ASSERT_GE(to, begin);
            ASSERT_LT(to, end);
            ASSERT_LT(from, static_cast<int64_t>(there.size()));
            ASSERT_TRUE(there[static_cast<size_t>(from)].second);
            ASSERT_EQ(there[static_cast<size_t>(from)].first,
                      wanted[static_cast<size_t>(to)].first);
            ASSERT_EQ(++seen[to], 1);
          }
        }
      }
      ASSERT_EQ(static_cast<int64_t>(seen.size()), end - begin);
    }
  }
}

TEST(TensorCopiesTest, WholeRowsAreOneRun) {
  const HeldTensor whole = WholeTensor("t", {6, 4});
  HeldTensor half = whole;
  half.rows = {{{3, 6}}};
  EXPECT_THAT(CopiesTo(half, 0, 12, PointersTo({whole})),
              ElementsAre(TensorCopy{0, 1, 12, 12, 12, 0, 12}));
  // The rest of a row, then whole rows.
  EXPECT_THAT(CopiesTo(half, 2, 12, PointersTo({whole})),
              ElementsAre(TensorCopy{0, 1, 2, 14, 2, 2, 2},
                          TensorCopy{0, 1, 8, 16, 8, 4, 8}));
}

TEST(TensorCopiesTest, DetectsHolesAndOverlaps) {
  const HeldTensor whole = WholeTensor("t", {6, 4});
  HeldTensor top = whole, bottom = whole, left = whole;
  top.rows = {{{0, 3}}};
  bottom.rows = {{{3, 6}}};
  left.columns = {0, 2};
  EXPECT_TRUE(CoverOnce(PointersTo({top, bottom})));
  EXPECT_FALSE(CoverOnce(PointersTo({top})));
  EXPECT_FALSE(CoverOnce(PointersTo({top, bottom, left})));
  EXPECT_FALSE(CoverOnce(PointersTo({top, left})));  // The counts match.
  EXPECT_FALSE(CoverOnce(PointersTo({top, top})));
  bottom.rows[0].primary = false;
  EXPECT_FALSE(CoverOnce(PointersTo({top, bottom})));
  EXPECT_FALSE(CoverOnce({}));
}

}  // namespace
}  // namespace tessera::train
