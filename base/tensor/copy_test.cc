#include "base/tensor/copy.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "base/dtype/dtype_traits.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kStorage = 4096;
constexpr std::byte kUntouched{0xcd};

// A layout with random, possibly negative strides and no aliased elements: a
// permuted and subsampled row-major layout.
Layout RandomLayout(const Dims& shape, std::mt19937_64& random,
                    int64_t* offset) {
  std::vector<size_t> order(shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  Dims strides(shape.size(), 1);
  int64_t stride = 1 + static_cast<int64_t>(random() % 2);
  for (size_t dim : order) {
    strides[dim] = random() % 4 == 0 ? -stride : stride;
    stride = stride * std::max<int64_t>(shape[dim], 1) +
             static_cast<int64_t>(random() % 2);
  }
  Layout layout = *Layout::Strided(shape, strides);
  *offset = -layout.lowest_offset() + static_cast<int64_t>(random() % 3);
  return layout;
}

void ForEachIndex(const Dims& shape,
                  const std::function<void(const Dims&)>& visit) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  for (int64_t n = 0; n < count; ++n) {
    Dims index(shape.size());
    int64_t rest = n;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
      index[d] = rest % shape[d];
    }
    visit(index);
  }
}

Dims RandomShape(std::mt19937_64& random) {
  Dims shape;
  for (uint64_t rank = random() % 5; rank > 0; --rank) {
    shape.push_back(static_cast<int64_t>(random() % 5));
  }
  return shape;
}

TEST(CopyTest, CopiesEveryElementAndNothingElse) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const DType dtype = kAllDTypes[random() % kAllDTypes.size()];
    const auto size = static_cast<size_t>(SizeInBytes(dtype));
    const Dims shape = RandomShape(random);
    std::vector<std::byte> from(kStorage * size), to(kStorage * size);
    for (std::byte& b : from) b = static_cast<std::byte>(random());
    std::fill(to.begin(), to.end(), kUntouched);
    std::vector<std::byte> expected = to;
    int64_t source_offset = 0, target_offset = 0;
    const Layout source_layout = RandomLayout(shape, random, &source_offset);
    const Layout target_layout = RandomLayout(shape, random, &target_offset);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        ConstTensorView source,
        ConstTensorView::Create(from, dtype, source_layout, source_offset));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        TensorView target,
        TensorView::Create(to, dtype, target_layout, target_offset));
    TESSERA_ASSERT_OK(Copy(source, target));
    ForEachIndex(shape, [&](const Dims& index) {
      const auto a = source_offset + *source_layout.OffsetOf(index);
      const auto b = target_offset + *target_layout.OffsetOf(index);
      std::memcpy(&expected[static_cast<size_t>(b) * size],
                  &from[static_cast<size_t>(a) * size], size);
    });
    ASSERT_EQ(to, expected) << source_layout << " to " << target_layout;
  }
}

// Sizes around the tile size and above.
TEST(CopyTest, TransposesMatricesOfEverySize) {
  for (int64_t rows : {1, 2, 31, 32, 33, 64, 100}) {
    for (int64_t columns : {1, 3, 31, 32, 33, 65, 129}) {
      std::vector<int32_t> from(static_cast<size_t>(rows * columns));
      std::vector<int32_t> to(from.size(), -1);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int>(i);
      const Dims shape = {rows, columns}, transposed = {columns, rows};
      TESSERA_ASSERT_OK_AND_ASSIGN(TensorView source,
                                   TensorView::Of(std::span(from), shape));
      TESSERA_ASSERT_OK_AND_ASSIGN(TensorView target,
                                   TensorView::Of(std::span(to), transposed));
      TESSERA_ASSERT_OK_AND_ASSIGN(source, source.Transpose(0, 1));
      TESSERA_ASSERT_OK(Copy(source, target));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          ASSERT_EQ(to[static_cast<size_t>(c * rows + r)], r * columns + c);
        }
      }
    }
  }
}

TEST(CopyTest, OverlapActsAsIfSourceWereReadFirst) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 5'000; ++i) {
    const Dims shape = RandomShape(random);
    std::vector<int32_t> values(kStorage);
    for (int32_t& value : values) value = static_cast<int32_t>(random());
    std::vector<int32_t> expected = values;
    const std::vector<int32_t> before = values;
    const auto storage = std::as_writable_bytes(std::span(values));
    int64_t source_offset = 0, target_offset = 0;
    const Layout source_layout = RandomLayout(shape, random, &source_offset);
    const Layout target_layout = RandomLayout(shape, random, &target_offset);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        TensorView source,
        TensorView::Create(storage, DType::kI32, source_layout, source_offset));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        TensorView target,
        TensorView::Create(storage, DType::kI32, target_layout, target_offset));
    TESSERA_ASSERT_OK(Copy(source, target));
    ForEachIndex(shape, [&](const Dims& index) {
      const auto a = source_offset + *source_layout.OffsetOf(index);
      const auto b = target_offset + *target_layout.OffsetOf(index);
      expected[static_cast<size_t>(b)] = before[static_cast<size_t>(a)];
    });
    ASSERT_EQ(values, expected) << source_layout << " to " << target_layout;
  }
}

TEST(CopyTest, BroadcastsASourceOfStrideZero) {
  std::vector<float> row = {1, 2, 3};
  std::vector<float> matrix(12);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                               Layout::Strided({{4, 3}}, {{0, 1}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      ConstTensorView source,
      ConstTensorView::Create(std::as_bytes(std::span(row)), DType::kF32,
                              layout));
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView target,
                               TensorView::Of(std::span(matrix), {{4, 3}}));
  TESSERA_ASSERT_OK(Copy(source, target));
  EXPECT_THAT(matrix, ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3));
}

TEST(FillTest, ConvertsTheValueToEveryDType) {
  for (DType dtype : kAllDTypes) {
    DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
      std::vector<T> values(70);
      TESSERA_ASSERT_OK_AND_ASSIGN(
          TensorView view, TensorView::Of(std::span(values), {{7, 10}}));
      TESSERA_ASSERT_OK(Fill(view, 3.0));
      EXPECT_THAT(values, Each(ConvertValue<T>(3.0)));
      TESSERA_ASSERT_OK(Fill(view, int64_t{-1}));
      EXPECT_THAT(values, Each(ConvertValue<T>(int64_t{-1})));
      TESSERA_ASSERT_OK(Fill(view, BF16(0.5f)));
      EXPECT_THAT(values, Each(ConvertValue<T>(0.5)));
    });
  }
}

TEST(FillTest, FillsOnlyView) {
  std::vector<int64_t> values(12, 7);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView view,
                               TensorView::Of(std::span(values), {{3, 4}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView column, view.Select(1, 2));
  TESSERA_ASSERT_OK(Fill(column, std::numeric_limits<int64_t>::max()));
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(values, ElementsAre(7, 7, kMax, 7, 7, 7, kMax, 7, 7, 7, kMax, 7));
}

class RejectionTest : public ::testing::Test {
 protected:
  TensorView Floats(const Layout& layout, MemoryKind kind = MemoryKind::kHost) {
    return *TensorView::Create(std::as_writable_bytes(std::span(values_)),
                               DType::kF32, layout, 0, kind);
  }

  std::vector<float> values_ = std::vector<float>(16, 5);
  const Layout row_ = *Layout::RowMajor({{2, 3}});
  std::vector<float> other_ = std::vector<float>(6, 1);
  const TensorView source_ = *TensorView::Of(std::span(other_), {{2, 3}});
};

TEST_F(RejectionTest, CopyRejectsInvalidViewsWithoutWriting) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Copy(source_, Floats(*Layout::RowMajor({{3, 2}}))),
              StatusIs(kInvalid, HasSubstr("shape [2,3] to shape [3,2]")));
  EXPECT_THAT(Copy(source_, Floats(*Layout::Strided({{2, 3}}, {{0, 1}}))),
              StatusIs(kInvalid, HasSubstr("several indices")));
  std::vector<int32_t> ints(6, 5);
  EXPECT_THAT(Copy(source_, *TensorView::Of(std::span(ints), {{2, 3}})),
              StatusIs(kInvalid, HasSubstr("f32 elements to i32")));
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  const TensorView device = Floats(row_, MemoryKind::kDevice);
  EXPECT_THAT(Copy(source_, device),
              StatusIs(kPrecondition, HasSubstr("cannot write device")));
  EXPECT_THAT(Copy(device, source_),
              StatusIs(kPrecondition, HasSubstr("cannot read device")));
  EXPECT_THAT(values_, Each(5));
  EXPECT_THAT(other_, Each(1));
  EXPECT_THAT(ints, Each(5));
}

TEST_F(RejectionTest, FillRejectsInvalidViewsWithoutWriting) {
  EXPECT_THAT(Fill(Floats(*Layout::Strided({{4}}, {{0}})), 1.0f),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Fill(Floats(row_, MemoryKind::kDevice), 1.0f),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(FillBytes(Floats(row_), std::vector<std::byte>(3)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("element of 3 bytes; f32 has 4")));
  EXPECT_THAT(values_, Each(5));
}

}  // namespace
}  // namespace tessera
