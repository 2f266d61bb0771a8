#include "tools/model_files/stacked_experts.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::model_files {
namespace {

using ::testing::ElementsAre;

TEST(StackedExpertsTest, TransposesAndAlternates) {
  // Gates 0 and 1, ups 2 and 3, of three columns.
  const StackedExperts stack = {
      .experts = 5, .rows = 4, .columns = 3, .alternates = true};
  EXPECT_THAT(stack.FileShape(), ElementsAre(5, 3, 4));
  const std::vector<float> matrix = {0,  1,  2,  10, 11, 12,
                                     20, 21, 22, 30, 31, 32};
  std::vector<float> file(12), again(12);
  stack.ToFile(matrix, file);
  EXPECT_THAT(file, ElementsAre(0, 20, 10, 30, 1, 21, 11, 31, 2, 22, 12, 32));
  stack.FromFile(file, again);
  EXPECT_EQ(again, matrix);
}

TEST(StackedExpertsTest, KeepsTheOrderOfOtherRows) {
  const StackedExperts down = {.experts = 2, .rows = 3, .columns = 2};
  std::vector<float> matrix = {0, 1, 10, 11, 20, 21}, file(6);
  down.ToFile(matrix, file);
  EXPECT_THAT(file, ElementsAre(0, 10, 20, 1, 11, 21));
  const StackedExperts biases = {.experts = 2, .rows = 6, .alternates = true};
  EXPECT_THAT(biases.FileShape(), ElementsAre(2, 6));
  biases.ToFile(matrix, file);
  EXPECT_THAT(file, ElementsAre(0, 11, 1, 20, 10, 21));
}

// The 16 values of four bits, times 2 and 1/4; the lower bits come first.
TEST(DecodeMxfp4Test, DecodesEveryValue) {
  std::vector<std::byte> blocks(32);
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = static_cast<std::byte>(i % 8 * 2 + 16 * (i % 8 * 2 + 1));
  }
  const std::array<std::byte, 2> scales = {std::byte{128}, std::byte{125}};
  std::vector<float> numbers(64);
  DecodeMxfp4(blocks, scales, numbers);
  const float values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float factor = i < 32 ? 2 : 0.25;
    const float expected = values[i % 8] * (i % 16 < 8 ? factor : -factor);
    EXPECT_EQ(numbers[i], expected) << i;
    EXPECT_EQ(std::signbit(numbers[i]), i % 16 >= 8) << i;
  }
}

TEST(DecodeMxfp4Test, DecodesTheEndsOfTheExponents) {
  const std::vector<std::byte> blocks(48, std::byte{0x71});
  const std::array<std::byte, 3> scales = {std::byte{0}, std::byte{252},
                                           std::byte{255}};
  std::vector<float> numbers(96);
  DecodeMxfp4(blocks, scales, numbers);
  EXPECT_EQ(numbers[0], std::ldexp(0.5f, -127));
  EXPECT_EQ(numbers[1], std::ldexp(6.0f, -127));
  EXPECT_EQ(numbers[33], std::ldexp(6.0f, 125));
  EXPECT_TRUE(std::isnan(numbers[64]));
}

}  // namespace
}  // namespace tessera::model_files
