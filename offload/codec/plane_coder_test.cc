#include "offload/codec/plane_coder.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/byte_planes.h"
#include "offload/codec/testing/arrays.h"

namespace tessera::offload {

namespace {

// Bit by bit: bit b of an element is bit (b + rotation) mod width of the
// stacked planes.
bool IsSplit(PlaneShape shape, const Bytes& values, size_t count,
             const std::vector<Bytes>& planes) {
  const size_t width = 8 * shape.planes;
  for (size_t i = 0; i < count; ++i) {
    for (size_t bit = 0; bit < width; ++bit) {
      const size_t to = (bit + static_cast<size_t>(shape.rotation)) % width;
      const int is = int(values[i * shape.planes + bit / 8] >> (bit % 8)) & 1;
      const int split = int(planes[to / 8][i] >> (to % 8)) & 1;
      if (is != split) return false;
    }
  }
  return true;
}

TEST(BytePlanesTest, RoundTripRotatedElements) {
  const PlaneShape shapes[] = {{1, 0}, {2, 0}, {2, 1}, {4, 0},
                               {4, 1}, {8, 0}, {8, 4}};
  ForEachInstructionSet([&] {
    for (const PlaneShape shape : shapes) {
      for (const size_t count :
           {0, 1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 255, 256, 257, 600}) {
        const Bytes values = RandomBytes(count * shape.planes, count);
        std::vector<Bytes> planes(shape.planes, Bytes(count + 1));
        std::array<std::byte*, 8> places = {};
        for (size_t p = 0; p < shape.planes; ++p) places[p] = planes[p].data();
        SplitPlanes(shape, values.data(), count, places.data());
        ASSERT_TRUE(IsSplit(shape, values, count, planes))
            << shape.planes << " planes, " << count;
        for (const Bytes& plane : planes) EXPECT_EQ(plane[count], std::byte{0});
        Bytes back(values.size() + 1);
        MergePlanes(shape, places.data(), count, back.data());
        EXPECT_EQ(back.back(), std::byte{0});
        back.pop_back();
        ASSERT_TRUE(back == values) << shape.planes << " planes, " << count;
      }
    }
  });
}

TEST(BytePlanesTest, TheHighestPlaneIsTheExponent) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const PlaneShape shape = ShapeOf(dtype);
    const Bytes values = ArrayOf(dtype, {1, -1, -1.5, 0.25, -0.0});
    std::vector<Bytes> planes(shape.planes, Bytes(5));
    std::array<std::byte*, 8> places = {};
    for (size_t p = 0; p < shape.planes; ++p) places[p] = planes[p].data();
    SplitPlanes(shape, values.data(), 5, places.data());
    EXPECT_EQ(planes.back(),
              (Bytes{std::byte{127}, std::byte{127}, std::byte{127},
                     std::byte{125}, std::byte{0}}));
  }
  EXPECT_EQ(ShapeOf(DType::kF64).rotation, 4);
  EXPECT_EQ(ShapeOf(DType::kI32).rotation, 0);
  EXPECT_EQ(ShapeOf(DType::kF8E5M2).rotation, 0);
}

// Bytes below `top`, each about half as likely as the next.
Bytes Falling(size_t count, int top, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::geometric_distribution<int> below(0.5);
  Bytes bytes(count);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(top - below(random));
  }
  return bytes;
}

// Uses the table of plane_coder.h, one byte at a time.
Bytes Reference(const Bytes& plane, int top) {
  const size_t groups = (plane.size() + 63) / 64;
  Bytes held(1 + 24 * groups), escapes;
  held[0] = static_cast<std::byte>(top);
  for (size_t i = 0; i < plane.size(); ++i) {
    const int below = (top - static_cast<int>(plane[i])) & 255;
    if (below >= 7) escapes.push_back(plane[i]);
    for (size_t k = 0; k < 3; ++k) {
      if ((std::min(below, 7) >> k & 1) == 0) continue;
      held[1 + 24 * (i / 64) + 8 * k + i % 64 / 8] |= std::byte{1} << i % 8;
    }
  }
  held.insert(held.end(), escapes.begin(), escapes.end());
  return held;
}

TEST(WindowCodeTest, MatchesDocumentationAndRoundTrips) {
  ForEachInstructionSet([] {
    for (const size_t count : {1, 2, 63, 64, 65, 127, 128, 1000, 65536}) {
      for (const int top : {0, 3, 6, 127, 255}) {  // Some wrap around.
        const Bytes plane = Falling(count, top, count + size_t(top));
        Bytes room(2 * count + 100);
        const size_t bytes = EncodeWindow(plane, room);
        ASSERT_GT(bytes, 0);
        room.resize(bytes);
        const int chosen = static_cast<int>(room[0]);
        EXPECT_TRUE(room == Reference(plane, chosen)) << count << " " << top;
        if (count >= 1000) {
          EXPECT_EQ(chosen, top);
        }
        Bytes back(count + 1, std::byte{0x77});
        EXPECT_TRUE(DecodeWindow(room, std::span(back).first(count)));
        EXPECT_EQ(back.back(), std::byte{0x77});
        back.pop_back();
        EXPECT_TRUE(back == plane);
      }
    }
  });
}

TEST(WindowCodeTest, ReturnsZeroIfOutputDoesNotFit) {
  const Bytes plane = Falling(1000, 127, 1);
  Bytes room(2000);
  const size_t bytes = EncodeWindow(plane, room);
  ASSERT_GT(bytes, 0);
  for (size_t less = 0; less < bytes; ++less) {
    EXPECT_EQ(EncodeWindow(plane, std::span(room).first(less)), 0);
  }
  EXPECT_EQ(EncodeWindow(plane, std::span(room).first(bytes)), bytes);
  Bytes big(70000);
  EXPECT_EQ(EncodeWindow(RandomBytes(65536, 1), big), 0);
}

TEST(WindowCodeTest, RejectsInvalidEncodings) {
  const Bytes plane = Falling(1000, 127, 1);
  Bytes held(2000);
  held.resize(EncodeWindow(plane, held));
  Bytes back(1000);
  for (size_t bytes = 0; bytes < held.size(); ++bytes) {
    EXPECT_FALSE(DecodeWindow(std::span(held).first(bytes), back));
  }
  held.push_back(std::byte{0});
  EXPECT_FALSE(DecodeWindow(held, back));
}

TEST(WindowCodeTest, AnyBytesAreSafe) {
  ForEachInstructionSet([] {
    for (uint64_t i = 0; i < 3000; ++i) {
      Bytes plane(1 + i % 200);
      const Bytes held = RandomBytes(i % 331, i);
      DecodeWindow(held, plane);
    }
  });
}

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

TEST_P(PlaneCoderTest, RoundTripsCompressedPlanes) {
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

TEST_P(PlaneCoderTest, ReturnsZeroIfOutputDoesNotFit) {
  const Bytes random = RandomBytes(kMaxPlaneBytes, 1);
  Bytes room(random.size() - random.size() / 64);
  EXPECT_EQ(coder_.Compress(GetParam(), random, room), 0);
  // The coder still works.
  EXPECT_GT(coder_.Compress(GetParam(), Skewed(5000, 1), room), 0);
}

TEST_P(PlaneCoderTest, RejectsOtherLengths) {
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
  // The entropy is 2 bits; the few matches cost more than they save.
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

TEST(LooksIncompressibleTest, RecognizesUniformBytes) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_TRUE(LooksIncompressible(RandomBytes(kMaxPlaneBytes, seed)));
    EXPECT_FALSE(LooksIncompressible(Skewed(kMaxPlaneBytes, seed)));
    // One bit of each byte is always set; the other 7 bits are random.
    Bytes seven = RandomBytes(2048, seed);
    for (std::byte& byte : seven) byte |= std::byte{1};
    EXPECT_FALSE(LooksIncompressible(seven));
  }
  EXPECT_FALSE(LooksIncompressible(RandomBytes(2047, 1)));
}

}  // namespace

}  // namespace tessera::offload
