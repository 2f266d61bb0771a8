#include "offload/codec/plane_coder.h"

#include <algorithm>
#include <random>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/arrays.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

// Bytes of which byte b is about twice as likely as b + 1.
Bytes Skewed(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::geometric_distribution<int> skewed(0.5);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(skewed(random));
  return bytes;
}

class PlaneCoderTest : public ::testing::TestWithParam<PlaneMethod> {
 protected:
  void SetUp() override {
    if (!HasPlaneMethod(GetParam())) GTEST_SKIP() << "not in this build";
  }
  PlaneCoder coder_;
};
INSTANTIATE_TEST_SUITE_P(
    , PlaneCoderTest, ::testing::Values(PlaneMethod::kZstd, PlaneMethod::kLz4),
    [](const auto& info) { return std::string(PlaneMethodName(info.param)); });

TEST_P(PlaneCoderTest, GivesBackWhatItShrinks) {
  for (const size_t count : {size_t{1000}, kMaxPlaneBytes}) {
    const Bytes plane = Skewed(count, count);
    Bytes room(count);
    const size_t bytes = coder_.Compress(GetParam(), plane, room);
    ASSERT_GT(bytes, 0);
    ASSERT_LT(bytes, count);
    Bytes back(count);
    TESSERA_EXPECT_OK(
        coder_.Decompress(GetParam(), std::span(room).first(bytes), back));
    EXPECT_TRUE(back == plane);
  }
}

TEST_P(PlaneCoderTest, SaysWhereItDoesNotFit) {
  const Bytes random = RandomBytes(kMaxPlaneBytes, 1);
  Bytes room(random.size() - random.size() / 64);
  EXPECT_EQ(coder_.Compress(GetParam(), random, room), 0);
  // And works afterwards.
  EXPECT_GT(coder_.Compress(GetParam(), Skewed(5000, 1), room), 0);
}

TEST_P(PlaneCoderTest, RefusesOtherLengths) {
  const Bytes plane = Skewed(5000, 1);
  Bytes room(5000);
  const size_t bytes = coder_.Compress(GetParam(), plane, room);
  const auto held = std::span(room).first(bytes);
  for (const size_t count : {4999, 5001, 1}) {
    Bytes back(count);
    EXPECT_THAT(coder_.Decompress(GetParam(), held, back),
                StatusIs(Code::kDataLoss, HasSubstr("damaged")));
  }
  Bytes back(5000);
  EXPECT_THAT(coder_.Decompress(GetParam(), held.first(bytes - 1), back),
              StatusIs(Code::kDataLoss));
  EXPECT_THAT(coder_.Decompress(GetParam(), {}, back),
              StatusIs(Code::kDataLoss));
}

TEST(PlaneMethodsTest, ZstdComesNearTheEntropy) {
  if (!HasPlaneMethod(PlaneMethod::kZstd)) GTEST_SKIP() << "not in this build";
  // The entropy is 2 bits; the few matches that are found cost more than they
  // save.
  const Bytes plane = Skewed(kMaxPlaneBytes, 3);
  Bytes room(plane.size());
  const size_t bytes = PlaneCoder().Compress(PlaneMethod::kZstd, plane, room);
  ASSERT_GT(bytes, 0);
  EXPECT_LT(8.0 * static_cast<double>(bytes) / double(plane.size()), 2.25);
}

TEST(PlaneMethodsTest, OtherMethodsAreDamage) {
  Bytes plane(10);
  PlaneCoder coder;
  EXPECT_EQ(coder.Compress(PlaneMethod::kStored, plane, plane), 0);
  for (const int method : {0, 1, 5, 15}) {
    EXPECT_THAT(
        coder.Decompress(static_cast<PlaneMethod>(method), plane, plane),
        StatusIs(Code::kDataLoss));
  }
  EXPECT_FALSE(HasPlaneMethod(static_cast<PlaneMethod>(5)));
  EXPECT_EQ(PlaneMethodName(static_cast<PlaneMethod>(5)), "unknown");
}

TEST(LooksIncompressibleTest, TellsEvenBytesFromOthers) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_TRUE(LooksIncompressible(RandomBytes(kMaxPlaneBytes, seed)));
    EXPECT_FALSE(LooksIncompressible(Skewed(kMaxPlaneBytes, seed)));
    // One bit of each byte is always set: 7 bits of 8 remain.
    Bytes seven = RandomBytes(2048, seed);
    for (std::byte& byte : seven) byte |= std::byte{1};
    EXPECT_FALSE(LooksIncompressible(seven));
  }
  EXPECT_FALSE(LooksIncompressible(RandomBytes(2047, 1)));
}

}  // namespace
}  // namespace tessera::offload
