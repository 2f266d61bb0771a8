#include "base/tensor/tensor_view.h"

#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

static_assert(std::is_convertible_v<TensorView, ConstTensorView>);
static_assert(!std::is_convertible_v<ConstTensorView, TensorView>);

std::vector<int32_t> Iota(size_t count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(TensorViewTest, ReadsAndWritesUnderlyingMemory) {
  std::vector<int32_t> values = Iota(24);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView matrix,
                               TensorView::Of(std::span(values), {{4, 6}}));
  EXPECT_EQ(matrix.dtype(), DType::kI32);
  EXPECT_EQ(matrix.kind(), MemoryKind::kHost);
  EXPECT_EQ(matrix.size_in_bytes(), 96);
  TESSERA_ASSERT_OK_AND_ASSIGN(Elements<int32_t> x, matrix.As<int32_t>());
  EXPECT_EQ(x(2, 3), 15);
  x(2, 3) = -1;
  EXPECT_EQ(values[15], -1);
  const std::vector<int64_t> index = {3, 5};
  EXPECT_EQ(x[index], 23);
}

TEST(TensorViewTest, ConstViewsGiveConstElements) {
  const std::vector<int32_t> values = Iota(6);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      ConstTensorView view, ConstTensorView::Of(std::span(values), {{2, 3}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Elements<const int32_t> x, view.As<int32_t>());
  static_assert(std::is_same_v<decltype(x(0, 0)), const int32_t&>);
  EXPECT_EQ(x(1, 2), 5);
  TESSERA_ASSERT_OK_AND_ASSIGN(std::span<const int32_t> span,
                               view.AsSpan<int32_t>());
  EXPECT_THAT(span, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(TensorViewTest, RankZeroIsOneElement) {
  float value = 3;
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView view,
                               TensorView::Of(std::span(&value, 1), {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Elements<float> x, view.As<float>());
  EXPECT_EQ(x(), 3);
}

TEST(TensorViewTest, EmptyViewsNeedNoMemory) {
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView view,
                               TensorView::Create({}, DType::kF64, {{3, 0}}));
  EXPECT_EQ(view.element_count(), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView part, view.Narrow(0, 1, 2));
  EXPECT_THAT(part.shape(), ElementsAre(2, 0));
  EXPECT_EQ(part.data(), nullptr);
  TESSERA_ASSERT_OK_AND_ASSIGN(std::span<double> span, part.AsSpan<double>());
  EXPECT_TRUE(span.empty());
}

// Each value is its own row-major index, which identifies it after slicing.
TEST(TensorViewTest, ChainsOfSlicesShowTheRightElements) {
  std::mt19937_64 random(1);
  std::vector<int32_t> values = Iota(3 * 4 * 5);
  for (int i = 0; i < 5000; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        TensorView view, TensorView::Of(std::span(values), {{3, 4, 5}}));
    // For each dimension of the whole: the first index and, if it was not
    // removed, its dimension in the view.
    int64_t start[3] = {0, 0, 0};
    std::vector<int> origin = {0, 1, 2};
    for (int step = 0; step < 3 && view.rank() > 0; ++step) {
      const int dim = static_cast<int>(random() % view.rank());
      const int other = static_cast<int>(random() % view.rank());
      const int64_t size = view.shape()[dim];
      const auto at = static_cast<int64_t>(random() % size);
      switch (random() % 3) {
        case 0: {
          const auto length = 1 + static_cast<int64_t>(random() % (size - at));
          TESSERA_ASSERT_OK_AND_ASSIGN(view, view.Narrow(dim, at, length));
          start[origin[dim]] += at;
          break;
        }
        case 1: {
          TESSERA_ASSERT_OK_AND_ASSIGN(view, view.Select(dim, at));
          start[origin[dim]] += at;
          origin.erase(origin.begin() + dim);
          break;
        }
        default: {
          TESSERA_ASSERT_OK_AND_ASSIGN(view, view.Transpose(dim, other));
          std::swap(origin[dim], origin[other]);
        }
      }
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(Elements<int32_t> x, view.As<int32_t>());
    for (int sample = 0; sample < 5; ++sample) {
      std::vector<int64_t> index;
      int64_t whole[3] = {start[0], start[1], start[2]};
      for (int d = 0; d < view.rank(); ++d) {
        index.push_back(static_cast<int64_t>(random() % view.shape()[d]));
        whole[origin[d]] += index.back();
      }
      ASSERT_EQ(x[index], (whole[0] * 4 + whole[1]) * 5 + whole[2]);
    }
  }
}

TEST(TensorViewTest, ReshapesContiguousViews) {
  std::vector<int32_t> values = Iota(24);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView matrix,
                               TensorView::Of(std::span(values), {{4, 6}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView rows, matrix.Narrow(0, 1, 2));
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView flat, rows.Reshape({{3, 4}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Elements<int32_t> x, flat.As<int32_t>());
  EXPECT_EQ(x(0, 0), 6);
  EXPECT_EQ(x(2, 3), 17);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView columns, matrix.Narrow(1, 1, 2));
  EXPECT_THAT(columns.Reshape({{8}}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(columns.AsSpan<int32_t>(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("shape [4,2] with strides [6,1] is not "
                                 "contiguous")));
}

TEST(TensorViewTest, AcceptsAnyLayoutWithinStorage) {
  std::vector<int32_t> values = Iota(6);
  const auto storage = std::as_writable_bytes(std::span(values));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout backwards,
                               Layout::Strided({{6}}, {{-1}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      TensorView view,
      TensorView::Create(storage, DType::kI32, backwards, /*offset=*/5));
  TESSERA_ASSERT_OK_AND_ASSIGN(Elements<int32_t> x, view.As<int32_t>());
  EXPECT_EQ(x(0), 5);
  EXPECT_EQ(x(5), 0);
  for (int64_t offset :
       {int64_t{4}, int64_t{6}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    EXPECT_THAT(TensorView::Create(storage, DType::kI32, backwards, offset),
                StatusIs(absl::StatusCode::kOutOfRange,
                         HasSubstr("24 bytes, which holds 6 i32 elements")));
  }
}

TEST(TensorViewTest, RejectsTooSmallStorage) {
  std::vector<std::byte> storage(23);
  EXPECT_THAT(
      TensorView::Create(std::span(storage), DType::kF32, {{2, 3}}),
      StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("shape [2,3]")));
  TESSERA_EXPECT_OK(TensorView::Create(std::span(storage), DType::kF32, {{5}}));
  EXPECT_THAT(
      TensorView::Create(std::span(storage), DType::kF64, {{INT64_MAX}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2^63-1 bytes")));
  EXPECT_THAT(TensorView::Create(std::span(storage), DType::kF32, {{-1}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      TensorView::Create(std::span(storage), static_cast<DType>(40), {{1}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("dtype number 40")));
}

TEST(TensorViewTest, RejectsWrongTypesUnalignedDataAndDeviceMemory) {
  alignas(8) std::byte storage[32];
  const std::span<std::byte> bytes(storage);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView view,
                               TensorView::Create(bytes, DType::kF32, {{8}}));
  EXPECT_THAT(view.As<int32_t>(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("view of f32 elements read as i32")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      TensorView odd, TensorView::Create(bytes.subspan(1), DType::kF32, {{7}}));
  EXPECT_THAT(odd.As<float>(), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("1 bytes past a multiple "
                                                  "of 4")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      TensorView device,
      TensorView::Create(bytes, DType::kF32, {{8}}, MemoryKind::kDevice));
  EXPECT_THAT(
      device.As<float>(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("device")));
  TESSERA_EXPECT_OK(device.Narrow(0, 1, 2));
}

}  // namespace
}  // namespace tessera
