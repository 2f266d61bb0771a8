#include "base/dtype/float8.h"

#include <cmath>
#include <cstdint>

#include "base/dtype/float16.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(Float8Test, E4M3HasTheConstantsOfTheSpecification) {
  EXPECT_EQ(static_cast<float>(F8E4M3::Max()), 448.0f);
  EXPECT_EQ(F8E4M3::Max().bits(), 0x7e);
  EXPECT_EQ(static_cast<float>(F8E4M3::MinNormal()), 0x1p-6f);
  EXPECT_EQ(static_cast<float>(F8E4M3::MinSubnormal()), 0x1p-9f);
  EXPECT_EQ(F8E4M3::QuietNan().bits(), 0x7f);
  for (int i = 0; i < 256; ++i) {
    const F8E4M3 x = F8E4M3::FromBits(static_cast<uint8_t>(i));
    EXPECT_EQ(x.IsNan(), i == 0x7f || i == 0xff);
    EXPECT_FALSE(x.IsInfinite());
  }
}

TEST(Float8Test, E4M3RoundsPastTheTieAt464ToNan) {
  EXPECT_EQ(F8E4M3(449.0f), F8E4M3::Max());
  EXPECT_EQ(F8E4M3(464.0f), F8E4M3::Max());
  EXPECT_EQ(F8E4M3(std::nextafter(464.0f, 500.0f)).bits(), 0x7f);
  EXPECT_EQ(F8E4M3(std::nextafter(464.0, 500.0)).bits(), 0x7f);
  EXPECT_EQ(F8E4M3(-480.0f).bits(), 0xff);
  EXPECT_EQ(F8E4M3(-INFINITY).bits(), 0xff);
  EXPECT_EQ(F8E4M3::Saturated(-480.0f), -F8E4M3::Max());
  EXPECT_EQ(F8E4M3::Saturated(INFINITY), F8E4M3::Max());
  EXPECT_TRUE(F8E4M3::Saturated(NAN).IsNan());
}

TEST(Float8Test, E5M2HasTheConstantsOfTheSpecification) {
  EXPECT_EQ(static_cast<float>(F8E5M2::Max()), 57344.0f);
  EXPECT_EQ(F8E5M2::Max().bits(), 0x7b);
  EXPECT_EQ(static_cast<float>(F8E5M2::MinNormal()), 0x1p-14f);
  EXPECT_EQ(static_cast<float>(F8E5M2::MinSubnormal()), 0x1p-16f);
  EXPECT_EQ(F8E5M2::Infinity().bits(), 0x7c);
  for (int i = 0; i < 256; ++i) {
    const F8E5M2 x = F8E5M2::FromBits(static_cast<uint8_t>(i));
    EXPECT_EQ(x.IsNan(), (i & 0x7f) > 0x7c);
    EXPECT_EQ(x.IsInfinite(), (i & 0x7f) == 0x7c);
  }
}

TEST(Float8Test, E5M2OverflowsToInfinity) {
  EXPECT_EQ(F8E5M2(std::nextafter(61440.0f, 0.0f)), F8E5M2::Max());
  EXPECT_EQ(F8E5M2(61440.0f), F8E5M2::Infinity());
  EXPECT_EQ(F8E5M2(-1e30f), -F8E5M2::Infinity());
}

TEST(Float8Test, E5M2IsTheUpperByteOfAnF16) {
  for (int i = 0; i < 256; ++i) {
    const F8E5M2 x = F8E5M2::FromBits(static_cast<uint8_t>(i));
    if (x.IsNan()) continue;
    EXPECT_EQ(static_cast<float>(x),
              static_cast<float>(F16::FromBits(static_cast<uint16_t>(i << 8))));
  }
}

}  // namespace
}  // namespace tessera
