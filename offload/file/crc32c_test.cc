#include "offload/file/crc32c.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

using Bytes = std::vector<std::byte>;

uint32_t OfText(std::string_view text) {
  return Crc32c(std::as_bytes(std::span(text)));
}

// One bit at a time, by definition.
uint32_t Slow(std::span<const std::byte> bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<uint32_t>(byte);
    for (int i = 0; i < 8; ++i) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    }
  }
  return ~crc;
}

Bytes RandomBytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

// RFC 3720, B.4, and the check value of CRC catalogues.
TEST(Crc32cTest, AgreesWithPublishedVectors) {
  EXPECT_EQ(OfText(""), 0u);
  EXPECT_EQ(OfText("123456789"), 0xe3069283u);
  Bytes bytes(32);
  EXPECT_EQ(Crc32c(bytes), 0x8a9136aau);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
  EXPECT_EQ(Crc32c(bytes), 0x62a8ab43u);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Crc32c(bytes), 0x46dd794eu);
  std::reverse(bytes.begin(), bytes.end());
  EXPECT_EQ(Crc32c(bytes), 0x113fdb5cu);
}

TEST(Crc32cTest, EveryPathAgreesWithTheDefinition) {
  const Bytes bytes = RandomBytes(40000, 1);
  std::vector<size_t> lengths(300);
  std::iota(lengths.begin(), lengths.end(), 0);
  for (size_t near : {2048, 6144, 6152, 12288, 18432, 39000}) {
    for (size_t d = 0; d < 10; ++d) lengths.push_back(near + d - 5);
  }
  for (size_t length : lengths) {
    for (size_t start : {0, 1, 7}) {
      const auto part = std::span(bytes).subspan(start, length);
      const uint32_t expected = Slow(part);
      ASSERT_EQ(Crc32c(part), expected) << start << "+" << length;
      ASSERT_EQ(crc32c_internal::ExtendPortable(0, part), expected);
    }
  }
}

TEST(Crc32cTest, ExtendsAndCombines) {
  const Bytes bytes = RandomBytes(20000, 2);
  const std::span<const std::byte> all = bytes;
  std::mt19937_64 random(3);
  for (int i = 0; i < 500; ++i) {
    const size_t total = random() % bytes.size();
    const size_t cut = total == 0 ? 0 : random() % (total + 1);
    const uint32_t a = Crc32c(all.first(cut));
    const auto rest = all.subspan(cut, total - cut);
    const uint32_t expected = Crc32c(all.first(total));
    ASSERT_EQ(ExtendCrc32c(a, rest), expected);
    ASSERT_EQ(crc32c_internal::ExtendPortable(a, rest), expected);
    ASSERT_EQ(CombineCrc32c(a, Crc32c(rest), rest.size()), expected);
  }
}

}  // namespace
}  // namespace tessera::offload
