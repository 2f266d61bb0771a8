#include "zero3/layout/state_format.h"

#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

using offload::MomentFormat;

ModelParameter ParameterOf(DType dtype, bool trainable) {
  return {.spec = {.name = "p", .dtype = dtype, .trainable = trainable}};
}

TEST(StateFormatTest, PartsFollowTheTypeAndTheMoments) {
  const auto format = [](DType dtype, bool trainable, StatePart part) {
    return StateFormatOf(ParameterOf(dtype, trainable),
                         MomentFormat::Blockwise8(64), part);
  };
  const StateFormat eight_bit = {.dtype = DType::kU8, .block = 64};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    EXPECT_EQ(format(dtype, true, StatePart::kValue), StateFormat{dtype});
    EXPECT_EQ(format(dtype, true, StatePart::kMaster),
              StateFormat{DType::kF32});
    EXPECT_EQ(format(dtype, true, StatePart::kFirstMoment), eight_bit);
    EXPECT_EQ(format(dtype, true, StatePart::kSecondMoment), eight_bit);
  }
  EXPECT_EQ(format(DType::kF32, true, StatePart::kMaster), std::nullopt);
  EXPECT_EQ(format(DType::kF64, true, StatePart::kFirstMoment),
            StateFormat{DType::kF64});
  for (const StatePart part : kAllStateParts) {
    EXPECT_EQ(format(DType::kBF16, false, part).has_value(),
              part == StatePart::kValue);
  }
}

TEST(StateFormatTest, MomentsMatchOptimizer) {
  const ModelParameter parameter = ParameterOf(DType::kBF16, true);
  for (const int64_t count : {0, 1, 2}) {
    const MomentKinds kinds(MomentFormat::F32(), count);
    EXPECT_EQ(
        StateFormatOf(parameter, kinds, StatePart::kFirstMoment).has_value(),
        count >= 1);
    EXPECT_EQ(
        StateFormatOf(parameter, kinds, StatePart::kSecondMoment).has_value(),
        count == 2);
    EXPECT_TRUE(StateFormatOf(parameter, kinds, StatePart::kMaster));
  }
  EXPECT_EQ(MomentKinds(MomentFormat::BF16(), 1).ToString(), "1 of bf16");
}

TEST(StateFormatTest, OrthogonalizedParametersHaveNoSecondMoment) {
  ModelParameter parameter = ParameterOf(DType::kBF16, true);
  parameter.spec.orthogonalized = true;
  for (const StatePart part : kAllStateParts) {
    EXPECT_EQ(StateFormatOf(parameter, MomentFormat::F32(), part).has_value(),
              part != StatePart::kSecondMoment);
  }
}

TEST(StateFormatTest, BytesMatchMomentFormat) {
  const ModelParameter parameter = ParameterOf(DType::kF32, true);
  for (const MomentFormat& moments :
       {MomentFormat::F32(), MomentFormat::BF16(), MomentFormat::Blockwise8(64),
        MomentFormat::Blockwise8()}) {
    const StateFormat format =
        *StateFormatOf(parameter, moments, StatePart::kFirstMoment);
    EXPECT_EQ(format.ToString(), moments.ToString());
    for (const int64_t n : {0, 1, 63, 64, 65, 2048, 5000}) {
      EXPECT_EQ(format.BytesOf(n), *offload::MomentBytes(moments, n)) << n;
    }
  }
}

TEST(StateFormatTest, NamesParts) {
  EXPECT_EQ(StatePartName(StatePart::kValue), "value");
  EXPECT_EQ(StatePartName(StatePart::kSecondMoment), "second_moment");
  EXPECT_EQ(StatePartName(static_cast<StatePart>(4)), "invalid");
}

// Scale and code for an element of the parameter.
float ScaleOf(int64_t block) { return static_cast<float>(block) + 0.5f; }
std::byte CodeOf(int64_t element) {
  return static_cast<std::byte>(element * 37 % 251);
}

void Set(const StateArray& array, int64_t element) {
  const StateFormat& format = array.format;
  const int64_t at = element - array.begin;
  if (at % format.block == 0) {
    const float scale = ScaleOf(element / format.block);
    std::memcpy(array.bytes + 4 * (at / format.block), &scale, 4);
  }
  array.bytes[format.ScaleBytes(array.capacity) + at] = CodeOf(element);
}

bool IsSet(const StateArray& array, int64_t element) {
  const int64_t at = element - array.begin;
  float scale;
  std::memcpy(&scale, array.bytes + 4 * (at / array.format.block), 4);
  return scale == ScaleOf(element / array.format.block) &&
         array.bytes[array.format.ScaleBytes(array.capacity) + at] ==
             CodeOf(element);
}

TEST(StateFormatTest, RangesOfBlocksMoveBetweenArraysOfOtherBegins) {
  constexpr int64_t kBlock = 4, kElements = 30;
  const StateFormat format = {.dtype = DType::kU8, .block = kBlock};
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    const int64_t a = below(8) * kBlock, b = below(8) * kBlock;
    const int64_t begin = std::max(a, b) + below(3) * kBlock;
    const int64_t end = std::min(begin + (1 + below(3)) * kBlock, kElements);
    if (begin >= end) continue;
    std::vector<std::byte> from(200), to(200);
    const StateArray source = {format, a, end - a + below(9), from.data()};
    const StateArray target = {format, b, end - b + below(9), to.data()};
    for (int64_t e = a; e < end; ++e) Set(source, e);
    CopyElements({format, a, source.capacity, from.data()}, target, begin, end);
    for (int64_t e = begin; e < end; ++e) ASSERT_TRUE(IsSet(target, e)) << e;
    // Nothing else changed.
    int64_t changed = 0;
    for (const std::byte byte : to) changed += byte != std::byte{0};
    ASSERT_LE(changed, format.BytesOf(end - begin));
  }
}

TEST(StateFormatTest, PlainElementsMoveToo) {
  const StateFormat format = {.dtype = DType::kF32};
  std::vector<float> from = {3, 4, 5, 6}, to(5, -1);
  CopyElements({format, 3, 4, reinterpret_cast<std::byte*>(from.data())},
               {format, 2, 5, reinterpret_cast<std::byte*>(to.data())}, 4, 6);
  EXPECT_EQ(to, (std::vector<float>{-1, -1, 4, 5, -1}));
  CopyElements({format, 0, 0, nullptr}, {format, 0, 0, nullptr}, 0, 0);
}

}  // namespace
}  // namespace tessera::zero3
