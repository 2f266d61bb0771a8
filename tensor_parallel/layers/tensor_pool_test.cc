#include "tensor_parallel/layers/tensor_pool.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tensor_parallel {
namespace {

TEST(TensorPoolTest, WhatOneGivesBackTheNextOneTakes) {
  TensorPool pool(HostMemory());
  PooledTensor first(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView x,
                               first.Reserve(DType::kF32, {{4, 8}}));
  EXPECT_EQ(pool.taken_bytes(), 128);
  first.Release();
  EXPECT_FALSE(first.held());
  EXPECT_EQ(pool.taken_bytes(), 0);
  EXPECT_EQ(pool.free_bytes(), 128);
  PooledTensor second(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView y,
                               second.Reserve(DType::kF64, {{2, 8}}));
  EXPECT_EQ(x.data(), y.data());
  EXPECT_EQ(pool.blocks_made(), 1);
}

TEST(TensorPoolTest, BlocksAreLargerByAnEighthAtMostAndOfTheSameClassesOnly) {
  TensorPool pool(HostMemory());
  for (int64_t bytes = 1; bytes < 100'000; bytes += 1 + bytes / 50) {
    PooledTensor tensor(pool);
    TESSERA_ASSERT_OK(tensor.Reserve(DType::kU8, {{bytes}}).status());
    EXPECT_GE(pool.taken_bytes(), bytes);
    EXPECT_LE(pool.taken_bytes(), bytes + std::max<int64_t>(63, bytes / 8));
    const int64_t made = pool.blocks_made();
    tensor.Release();
    TESSERA_ASSERT_OK(tensor.Reserve(DType::kU8, {{bytes}}).status());
    EXPECT_EQ(pool.blocks_made(), made);
  }
  // Eight size classes per power of two for large blocks.
  EXPECT_LT(pool.blocks_made(), 100);
}

TEST(TensorPoolTest, ATensorKeepsItsMemoryWhereThatSuffices) {
  TensorPool pool(HostMemory());
  PooledTensor tensor(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView large,
                               tensor.Reserve(DType::kU8, {{64}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView small,
                               tensor.Reserve(DType::kU8, {{3}}));
  EXPECT_EQ(large.data(), small.data());
  EXPECT_EQ(tensor.bytes(), 3);
  EXPECT_EQ(pool.taken_bytes(), 64);
}

TEST(TensorPoolTest, MovedTensorsGiveTheirMemoryBackOnce) {
  TensorPool pool(HostMemory());
  PooledTensor a(pool);
  TESSERA_ASSERT_OK(a.Reserve(DType::kU8, {{10}}).status());
  PooledTensor b(std::move(a));
  EXPECT_FALSE(a.held());  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(b.held());
  PooledTensor c(pool);
  TESSERA_ASSERT_OK(c.Reserve(DType::kU8, {{20}}).status());
  c = std::move(b);
  EXPECT_EQ(c.bytes(), 10);
  EXPECT_EQ(pool.taken_bytes(), 64);
  c.Release();
  c.Release();
  EXPECT_EQ(pool.free_bytes(), 128);
}

TEST(TensorPoolTest, TensorsWithoutElementsAreHeldAndTakeNothing) {
  TensorPool pool(HostMemory());
  PooledTensor tensor(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView view,
                               tensor.Reserve(DType::kF32, {{0, 7}}));
  EXPECT_EQ(view.shape()[1], 7);
  EXPECT_TRUE(tensor.held());
  EXPECT_EQ(pool.taken_bytes(), 0);
}

TEST(TensorPoolTest, ThePeakIsThatSinceTheLastReset) {
  TensorPool pool(HostMemory());
  PooledTensor a(pool), b(pool);
  TESSERA_ASSERT_OK(a.Reserve(DType::kU8, {{10}}).status());
  TESSERA_ASSERT_OK(b.Reserve(DType::kU8, {{70}}).status());
  b.Release();
  EXPECT_EQ(pool.peak_bytes(), 64 + 128);
  pool.ResetPeak();
  EXPECT_EQ(pool.peak_bytes(), 64);
}

TEST(TensorPoolTest, AKeptTensorIsItsOwnOrSeenAndBothGo) {
  TensorPool pool(HostMemory());
  PooledTensor own(pool);
  const KeptTensor plain = {&own};
  EXPECT_FALSE(plain.value().has_value());
  TESSERA_ASSERT_OK(plain.Reserve(DType::kF32, {{3}}).status());
  EXPECT_EQ(plain.value()->data(), own.view().data());
  plain.Release();
  EXPECT_FALSE(own.held());

  const std::vector<float> borrowed(5);
  std::optional<ConstTensorView> view =
      *ConstTensorView::Of(std::span<const float>(borrowed), {{5}});
  const KeptTensor seen = {&own, &view};
  EXPECT_EQ(static_cast<const void*>(seen.value()->data()), borrowed.data());
  seen.Release();
  EXPECT_FALSE(view.has_value());
  EXPECT_FALSE(seen.value().has_value());
  TESSERA_ASSERT_OK(seen.Reserve(DType::kF32, {{5}}).status());
  EXPECT_EQ(view->data(), own.view().data());
}

TEST(TensorPoolTest, VaryingTensorsTakeTheSmallestBlockThatSuffices) {
  TensorPool pool(HostMemory());
  PooledTensor small(pool), large(pool), fixed(pool), next(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView x,
                               small.ReserveVarying(DType::kU8, {{100}}));
  TESSERA_ASSERT_OK(large.ReserveVarying(DType::kU8, {{1000}}).status());
  small.Release();
  large.Release();
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView y,
                               next.ReserveVarying(DType::kU8, {{65}}));
  EXPECT_EQ(x.data(), y.data());
  EXPECT_EQ(pool.blocks_made(), 2);
  // Other tensors have their own.
  TESSERA_ASSERT_OK(fixed.Reserve(DType::kU8, {{1000}}).status());
  EXPECT_EQ(pool.blocks_made(), 3);
}

TEST(TensorPoolTest, BlocksOfVaryingTensorsAreAsManyAsWereInUseAtOnce) {
  constexpr size_t kTensors = 5;
  constexpr int64_t kMost = 100'000;
  TensorPool pool(HostMemory());
  std::vector<PooledTensor> tensors;
  for (size_t i = 0; i < kTensors; ++i) tensors.emplace_back(pool);
  std::mt19937_64 random(7);
  int64_t largest = 0;
  for (int64_t call = 0; call < 10'000; ++call) {
    PooledTensor& tensor = tensors[random() % kTensors];
    tensor.Release();
    if (random() % 3 == 0) continue;
    const auto bytes = static_cast<int64_t>(random() % kMost);
    TESSERA_ASSERT_OK(tensor.ReserveVarying(DType::kU8, {{bytes}}).status());
    largest = std::max(largest, bytes);
    ASSERT_LE(pool.taken_bytes() + pool.free_bytes(),
              static_cast<int64_t>(kTensors) * (largest + largest / 8 + 64));
  }
  // Then each tensor has a block of the largest size.
  for (PooledTensor& tensor : tensors) {
    tensor.Release();
    TESSERA_ASSERT_OK(tensor.ReserveVarying(DType::kU8, {{kMost}}).status());
  }
  const int64_t made = pool.blocks_made();
  for (int64_t call = 0; call < 10'000; ++call) {
    PooledTensor& tensor = tensors[random() % kTensors];
    tensor.Release();
    const auto bytes = static_cast<int64_t>(random() % kMost);
    TESSERA_ASSERT_OK(tensor.ReserveVarying(DType::kU8, {{bytes}}).status());
  }
  EXPECT_EQ(pool.blocks_made(), made);
}

TEST(TensorPoolTest, ImpossibleTensorsAreRefusedAndLeaveNothingHeld) {
  TensorPool pool(HostMemory());
  PooledTensor tensor(pool);
  EXPECT_THAT(tensor.Reserve(DType::kU8, {{-1}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(tensor.Reserve(DType::kU8, {{int64_t{1} << 60}}).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(tensor.held());
  EXPECT_EQ(pool.taken_bytes(), 0);
}

}  // namespace
}  // namespace tessera::tensor_parallel
