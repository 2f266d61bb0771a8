#include "base/dtype/bfloat16.h"

#include <bit>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(Bfloat16Test, HasTheConstantsOfBfloat16) {
  EXPECT_EQ(static_cast<float>(BF16::Max()), 0x1.fep127f);
  EXPECT_EQ(static_cast<float>(BF16::MinNormal()), 0x1p-126f);
  EXPECT_EQ(static_cast<float>(BF16::MinSubnormal()), 0x1p-133f);
  EXPECT_EQ(BF16::Infinity().bits(), 0x7f80);
  EXPECT_EQ(BF16::QuietNan().bits(), 0x7fc0);
  EXPECT_EQ(static_cast<float>(BF16(3.14159f)), 3.140625f);
}

TEST(Bfloat16Test, IsTheUpperHalfOfAFloat) {
  for (uint32_t i = 0; i < 1 << 16; ++i) {
    const BF16 x = BF16::FromBits(static_cast<uint16_t>(i));
    const uint32_t quiet = x.IsNan() ? 0x400000 : 0;
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(x)), i << 16 | quiet);
  }
}

TEST(Bfloat16Test, TheLargestFloatOverflows) {
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(BF16(kMax), BF16::Infinity());
  EXPECT_EQ(BF16::Saturated(kMax), BF16::Max());
}

}  // namespace
}  // namespace tessera
