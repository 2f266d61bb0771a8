#include "base/tensor/tensor.h"

#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<Tensor>);
static_assert(std::is_nothrow_move_assignable_v<Buffer>);

TEST(TensorTest, OwnsAlignedRowMajorMemoryOfEveryDType) {
  for (DType dtype : kAllDTypes) {
    TESSERA_ASSERT_OK_AND_ASSIGN(Tensor tensor,
                                 Tensor::Create(dtype, {{3, 5}}));
    EXPECT_EQ(tensor.dtype(), dtype);
    EXPECT_THAT(tensor.shape(), ElementsAre(3, 5));
    EXPECT_EQ(tensor.element_count(), 15);
    EXPECT_EQ(tensor.kind(), MemoryKind::kHost);
    EXPECT_EQ(tensor.buffer().size(), 15 * SizeInBytes(dtype));
    EXPECT_TRUE(tensor.view().IsContiguous());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data()) % 64, 0);
  }
}

TEST(TensorTest, ViewsSurviveAMove) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor tensor,
                               Tensor::Create(DType::kF32, {{2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(std::span<float> x,
                               tensor.view().AsSpan<float>());
  x[1] = 7;
  const Tensor moved = std::move(tensor);
  TESSERA_ASSERT_OK_AND_ASSIGN(std::span<const float> y,
                               moved.view().AsSpan<float>());
  EXPECT_EQ(y.data(), x.data());
  EXPECT_EQ(y[1], 7);
}

TEST(TensorTest, RankZeroAndZeroSizes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor scalar, Tensor::Create(DType::kF64, {}));
  EXPECT_EQ(scalar.element_count(), 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor empty,
                               Tensor::Create(DType::kF64, {{0, 4}}));
  EXPECT_EQ(empty.element_count(), 0);
  EXPECT_EQ(empty.buffer().data(), nullptr);
}

TEST(TensorTest, RejectsInvalidTensors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Tensor::Create(static_cast<DType>(10), {{1}}),
              StatusIs(kInvalid, HasSubstr("dtype number 10")));
  EXPECT_THAT(Tensor::Create(DType::kF32, {{-2}}), StatusIs(kInvalid));
  EXPECT_THAT(Tensor::Create(DType::kF32, {{int64_t{1} << 62}}),
              StatusIs(kInvalid, HasSubstr("more than 2^63-1 bytes")));
  EXPECT_THAT(
      Tensor::Create(DType::kF32, {{1}}, nullptr),
      StatusIs(kInvalid, HasSubstr("shape [1] of f32: buffer without")));
  EXPECT_THAT(Tensor::Create(DType::kU8, {{int64_t{1} << 60}}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("shape [1152921504606846976] of u8")));
}

}  // namespace
}  // namespace tessera
