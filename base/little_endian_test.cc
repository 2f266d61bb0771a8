#include "base/little_endian.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(LittleEndianTest, StoresTheLowestByteFirst) {
  std::array<std::byte, 4> bytes;
  StoreLittleEndian(uint32_t{0x01020384}, bytes.data());
  EXPECT_EQ(bytes[0], std::byte{0x84});
  EXPECT_EQ(bytes[1], std::byte{3});
  EXPECT_EQ(bytes[2], std::byte{2});
  EXPECT_EQ(bytes[3], std::byte{1});
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data()), 0x01020384u);
  EXPECT_EQ(LoadLittleEndian<uint16_t>(bytes.data()), 0x0384u);
}

template <typename T>
void ExpectRoundTrip(T value) {
  std::string bytes = "x";
  AppendLittleEndian(value, &bytes);
  ASSERT_EQ(bytes.size(), 1 + sizeof(T));
  std::string_view rest = std::string_view(bytes).substr(1);
  T taken = 0;
  ASSERT_TRUE(TakeLittleEndian(&rest, &taken));
  EXPECT_EQ(taken, value);
  EXPECT_TRUE(rest.empty());
}

template <typename T>
void ExpectRoundTrips() {
  ExpectRoundTrip<T>(0);
  ExpectRoundTrip<T>(1);
  ExpectRoundTrip<T>(std::numeric_limits<T>::min());
  ExpectRoundTrip<T>(std::numeric_limits<T>::max());
}

TEST(LittleEndianTest, RoundTripsEveryWidth) {
  ExpectRoundTrips<uint8_t>();
  ExpectRoundTrips<uint16_t>();
  ExpectRoundTrips<int32_t>();
  ExpectRoundTrips<uint32_t>();
  ExpectRoundTrips<int64_t>();
  ExpectRoundTrips<uint64_t>();
}

TEST(LittleEndianTest, TakesNothingFromTooFewBytes) {
  std::string_view rest = "\1\2\3";
  uint32_t value = 5;
  EXPECT_FALSE(TakeLittleEndian(&rest, &value));
  EXPECT_EQ(value, 5u);
  EXPECT_EQ(rest.size(), 3u);
}

}  // namespace
}  // namespace tessera
