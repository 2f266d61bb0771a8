#include "base/tensor/layout.h"

#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Index = std::vector<int64_t>;

// Every index in row-major order.
std::vector<Index> AllIndices(const Dims& shape) {
  std::vector<Index> indices = {{}};
  for (int64_t size : shape) {
    std::vector<Index> longer;
    for (const Index& index : indices) {
      for (int64_t i = 0; i < size; ++i) {
        longer.push_back(index);
        longer.back().push_back(i);
      }
    }
    indices = std::move(longer);
  }
  return indices;
}

int64_t Dot(const Index& index, const Dims& strides) {
  int64_t sum = 0;
  for (size_t i = 0; i < index.size(); ++i) sum += index[i] * strides[i];
  return sum;
}

Dims RandomShape(std::mt19937_64& random) {
  Dims shape;
  for (uint64_t rank = random() % 5; rank > 0; --rank) {
    shape.push_back(static_cast<int64_t>(random() % 5));
  }
  return shape;
}

Layout RandomStrided(std::mt19937_64& random) {
  const Dims shape = RandomShape(random);
  Dims strides;
  for (size_t i = 0; i < shape.size(); ++i) {
    strides.push_back(static_cast<int64_t>(random() % 41) - 20);
  }
  return *Layout::Strided(shape, strides);
}

TEST(LayoutTest, RowMajorNumbersElementsInOrder) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Dims shape = RandomShape(random);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::RowMajor(shape));
    const std::vector<Index> indices = AllIndices(shape);
    ASSERT_EQ(layout.element_count(), indices.size());
    for (size_t n = 0; n < indices.size(); ++n) {
      ASSERT_THAT(layout.OffsetOf(indices[n]), IsOkAndHolds(n)) << layout;
    }
    EXPECT_TRUE(layout.IsContiguous());
    EXPECT_TRUE(layout.HasDistinctElements());
  }
}

TEST(LayoutTest, RankZeroIsOneElement) {
  const Layout layout;
  EXPECT_EQ(layout.rank(), 0);
  EXPECT_EQ(layout.element_count(), 1);
  EXPECT_THAT(layout.OffsetOf({}), IsOkAndHolds(0));
  EXPECT_THAT(Layout::RowMajor({}), IsOkAndHolds(layout));
  EXPECT_TRUE(layout.IsContiguous());
}

TEST(LayoutTest, StridedMatchesBruteForce) {
  std::mt19937_64 random(2);
  int contiguous = 0;
  for (int i = 0; i < 20'000; ++i) {
    const Layout layout = RandomStrided(random);
    int64_t lowest = 0, highest = 0, expected = 0;
    bool in_order = true;
    std::set<int64_t> seen;
    const std::vector<Index> indices = AllIndices(layout.shape());
    for (const Index& index : indices) {
      const int64_t offset = Dot(index, layout.strides());
      lowest = std::min(lowest, offset);
      highest = std::max(highest, offset);
      in_order &= offset == expected++;
      seen.insert(offset);
    }
    ASSERT_EQ(layout.lowest_offset(), lowest) << layout;
    ASSERT_EQ(layout.highest_offset(), highest) << layout;
    ASSERT_EQ(layout.IsContiguous(), in_order) << layout;
    contiguous += in_order;
    if (layout.HasDistinctElements()) {
      ASSERT_EQ(seen.size(), indices.size()) << layout;
    }
  }
  EXPECT_GT(contiguous, 100);
}

// Applies random slices and transposes and tracks every element.
TEST(LayoutTest, ChainedSlicesPreserveIndices) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 5000; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(Layout layout,
                                 Layout::RowMajor(RandomShape(random)));
    int64_t base = 0;
    for (int step = 0; step < 4 && layout.rank() > 0; ++step) {
      const Layout before = layout;
      const int64_t before_base = base;
      const int dim = static_cast<int>(random() % layout.rank());
      const int other = static_cast<int>(random() % layout.rank());
      const int64_t size = layout.shape()[dim];
      std::function<Index(Index)> to_before;
      if (const uint64_t kind = random() % 3; kind == 0) {
        const int64_t start = static_cast<int64_t>(random() % (size + 1));
        const int64_t length =
            static_cast<int64_t>(random() % (size - start + 1));
        TESSERA_ASSERT_OK_AND_ASSIGN(LayoutSlice slice,
                                     layout.Narrow(dim, start, length));
        layout = slice.layout;
        base += slice.offset;
        to_before = [=](Index x) { return x[dim] += start, x; };
      } else if (kind == 1 && size > 0) {
        const int64_t index = static_cast<int64_t>(random() % size);
        TESSERA_ASSERT_OK_AND_ASSIGN(LayoutSlice slice,
                                     layout.Select(dim, index));
        layout = slice.layout;
        base += slice.offset;
        to_before = [=](Index x) {
          return x.insert(x.begin() + dim, index), x;
        };
      } else {
        TESSERA_ASSERT_OK_AND_ASSIGN(layout, layout.Transpose(dim, other));
        to_before = [=](Index x) { return std::swap(x[dim], x[other]), x; };
      }
      ASSERT_TRUE(layout.HasDistinctElements());
      for (const Index& index : AllIndices(layout.shape())) {
        ASSERT_EQ(base + Dot(index, layout.strides()),
                  before_base + Dot(to_before(index), before.strides()));
      }
    }
  }
}

TEST(LayoutTest, ReshapeKeepsRowMajorOrder) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::RowMajor({{4, 6}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout other,
                               layout.Reshape({{2, 3, 1, 4}}));
  EXPECT_THAT(other.shape(), ElementsAre(2, 3, 1, 4));
  EXPECT_THAT(other.strides(), ElementsAre(12, 4, 4, 1));
  EXPECT_THAT(layout.Reshape({{5, 5}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("[4,6] with 24 elements to [5,5] with 25")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout transposed, layout.Transpose(0, 1));
  EXPECT_THAT(transposed.Reshape({{24}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not contiguous")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout empty, Layout::RowMajor({{0, 3}}));
  TESSERA_EXPECT_OK(empty.Reshape({{7, 0}}));
}

TEST(LayoutTest, SizeOneDimensionsDoNotMatterForContiguity) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                               Layout::Strided({{1, 3, 1}}, {{99, 1, -5}}));
  EXPECT_TRUE(layout.IsContiguous());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout broadcast,
                               Layout::Strided({{3}}, {{0}}));
  EXPECT_FALSE(broadcast.HasDistinctElements());
}

TEST(LayoutTest, RejectsInvalidShapes) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Layout::RowMajor({{2, -1}}),
              StatusIs(kInvalid, HasSubstr("[2,-1]: dimension 1 has size -1")));
  EXPECT_THAT(Layout::RowMajor({{int64_t{1} << 32, int64_t{1} << 31}}),
              StatusIs(kInvalid, HasSubstr("more than 2^63-1 elements")));
  TESSERA_EXPECT_OK(
      Layout::RowMajor({{0, int64_t{1} << 62, int64_t{1} << 62}}));
  EXPECT_THAT(Layout::Strided({{2, 2}}, {{1}}),
              StatusIs(kInvalid, HasSubstr("one stride for each dimension")));
  EXPECT_THAT(Layout::Strided({{3}}, {{INT64_MAX}}),
              StatusIs(kInvalid, HasSubstr("spans more than")));
  EXPECT_THAT(Layout::Strided({{2, 2}}, {{INT64_MAX - 1, -1}}),
              StatusIs(kInvalid, HasSubstr("dimension 1")));
  EXPECT_THAT(Layout::Strided({{2}}, {{INT64_MIN}}), StatusIs(kInvalid));
  TESSERA_EXPECT_OK(Layout::Strided({{0, 9}}, {{INT64_MAX, INT64_MAX}}));
  TESSERA_EXPECT_OK(Layout::Strided({{1}}, {{INT64_MIN}}));
}

TEST(LayoutTest, RejectsOutOfRangeSlicesAndNamesRange) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::RowMajor({{4, 6}}));
  constexpr auto kRange = absl::StatusCode::kOutOfRange;
  for (int dim : {-1, 2}) {
    EXPECT_THAT(layout.Narrow(dim, 0, 1),
                StatusIs(kRange, HasSubstr("expected 0 to 1")));
    EXPECT_THAT(layout.Select(dim, 0), StatusIs(kRange));
    EXPECT_THAT(layout.Transpose(0, dim), StatusIs(kRange));
    EXPECT_THAT(layout.Transpose(dim, 0), StatusIs(kRange));
  }
  for (const auto& [start, length] : std::vector<std::pair<int64_t, int64_t>>{
           {-1, 1}, {0, 7}, {6, 1}, {7, 0}, {0, -1}, {1, INT64_MAX}}) {
    EXPECT_THAT(layout.Narrow(1, start, length),
                StatusIs(kRange, HasSubstr("it has 6")));
  }
  EXPECT_THAT(layout.Select(0, 4), StatusIs(kRange, HasSubstr("it has 4")));
  EXPECT_THAT(layout.Select(0, -1), StatusIs(kRange));
  EXPECT_THAT(layout.OffsetOf({{1}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("of rank 1 into shape [4,6] of rank 2")));
  EXPECT_THAT(layout.OffsetOf({{1, 6}}),
              StatusIs(kRange, HasSubstr("dimension 1 allows 0 to 5")));
}

TEST(LayoutTest, TruncatesLongShapes) {
  const std::vector<int64_t> shape(1000, 2);
  EXPECT_LT(DimsToString(shape).size(), 60);
  EXPECT_THAT(Layout::RowMajor(shape),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(",...]")));
}

}  // namespace
}  // namespace tessera
