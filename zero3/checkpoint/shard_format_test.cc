#include "zero3/checkpoint/shard_format.h"

#include <functional>
#include <string>

#include "base/little_endian.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/crc32c.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

constexpr StateFormat kF32 = {.dtype = DType::kF32};
constexpr StateFormat kBlockwise = {.dtype = DType::kU8, .block = 64};

std::vector<BlockEntry> Entries() {
  return {
      {{ParameterId(0), StatePart::kValue, kF32, 0, 10}, 32, 1},
      {{ParameterId(0), StatePart::kValue, kF32, 10, 12}, 72, 2},
      {{ParameterId(0), StatePart::kFirstMoment, kBlockwise, 64, 130}, 80, 3},
      {{ParameterId(7), StatePart::kValue, kF32, 5, 6}, 154, 0xffffffff}};
}

ShardFooter FooterOf(const std::vector<BlockEntry>& entries) {
  const auto index = FormatShardIndex(entries);
  return {.index_offset = 158,
          .entries = static_cast<int64_t>(entries.size()),
          .index_crc32c = offload::Crc32c(index)};
}

TEST(ShardFormatTest, EverythingReadsBack) {
  const ShardHeader header = {.step = int64_t{1} << 40, .rank = 3, .ranks = 5};
  EXPECT_THAT(ParseShardHeader(FormatShardHeader(header)),
              IsOkAndHolds(header));
  const auto entries = Entries();
  const auto index = FormatShardIndex(entries);
  const ShardFooter footer = FooterOf(entries);
  EXPECT_THAT(ParseShardIndex(index, footer), IsOkAndHolds(entries));
  const int64_t size = 158 + static_cast<int64_t>(index.size()) + 32;
  EXPECT_THAT(ParseShardFooter(FormatShardFooter(footer), size),
              IsOkAndHolds(footer));
}

// Pins the bytes of the format.
TEST(ShardFormatTest, MatchesDocumentedBytes) {
  const auto header =
      FormatShardHeader({.step = 0x0102, .rank = 3, .ranks = 5});
  const std::string text(reinterpret_cast<const char*>(header.data()), 28);
  EXPECT_EQ(text, std::string("TessStat\1\0\0\0\3\0\0\0\5\0\0\0"
                              "\2\1\0\0\0\0\0\0",
                              28));
  const auto index = FormatShardIndex(std::vector<BlockEntry>{Entries()[2]});
  const std::string entry(reinterpret_cast<const char*>(index.data()), 48);
  EXPECT_EQ(entry, std::string("\0\0\0\0\2\11\0\0\100\0\0\0\3\0\0\0"
                               "\100\0\0\0\0\0\0\0\202\0\0\0\0\0\0\0"
                               "\120\0\0\0\0\0\0\0\112\0\0\0\0\0\0\0",
                               48));
}

TEST(ShardFormatTest, AnEmptyShardIsAShard) {
  const ShardFooter footer = {.index_offset = 32, .entries = 0};
  EXPECT_THAT(ParseShardFooter(FormatShardFooter(footer), 64),
              IsOkAndHolds(footer));
  EXPECT_THAT(ParseShardIndex({}, footer),
              IsOkAndHolds(std::vector<BlockEntry>()));
}

TEST(ShardFormatTest, RejectsEveryFlippedBit) {
  const auto header = FormatShardHeader({.step = 9, .rank = 0, .ranks = 1});
  const auto entries = Entries();
  const auto index = FormatShardIndex(entries);
  const ShardFooter footer = FooterOf(entries);
  const auto end = FormatShardFooter(footer);
  const int64_t size = 158 + static_cast<int64_t>(index.size()) + 32;
  for (int bit = 0; bit < 8; ++bit) {
    const std::byte flip = static_cast<std::byte>(1 << bit);
    for (size_t i = 0; i < header.size(); ++i) {
      auto damaged = header;
      damaged[i] ^= flip;
      ASSERT_FALSE(ParseShardHeader(damaged).ok()) << i;
    }
    for (size_t i = 0; i < end.size(); ++i) {
      auto damaged = end;
      damaged[i] ^= flip;
      ASSERT_FALSE(ParseShardFooter(damaged, size).ok()) << i;
    }
    for (size_t i = 0; i < index.size(); ++i) {
      auto damaged = index;
      damaged[i] ^= flip;
      ASSERT_FALSE(ParseShardIndex(damaged, footer).ok()) << i;
    }
  }
}

void ExpectRefused(const std::function<void(std::vector<BlockEntry>&)>& change,
                   std::string_view message) {
  auto entries = Entries();
  change(entries);
  EXPECT_THAT(ParseShardIndex(FormatShardIndex(entries), FooterOf(entries)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(std::string(message))));
}

TEST(ShardFormatTest, RejectsInvalidBlocks) {
  ExpectRefused([](auto& e) { e[0].offset = 33; },
                "block 0: offset 33 instead of 32");
  ExpectRefused([](auto& e) { e[1].range.part = static_cast<StatePart>(4); },
                "block 1: an unknown part or format");
  ExpectRefused([](auto& e) { e[2].range.format.block = 65; },
                "an unknown part or format");
  ExpectRefused([](auto& e) { e[2].range.format.dtype = DType::kF32; },
                "an unknown part or format");
  ExpectRefused([](auto& e) { e[0].range.begin = -1; }, "elements -1 to 10");
  ExpectRefused([](auto& e) { e[0].range.end = 0; }, "elements 0 to 0");
  ExpectRefused([](auto& e) { e[0].range.end = int64_t{1} << 49; },
                "elements 0 to");
  ExpectRefused([](auto& e) { e[0].range.end = int64_t{1} << 25; },
                "allowed: at most 67108864");
  ExpectRefused([](auto& e) { e[1].range.begin = 9, e[1].range.end = 11; },
                "block 1: elements that do not follow");
  ExpectRefused([](auto& e) { e[3].range.parameter = ParameterId(0); },
                "block 3: elements that do not follow");
  ExpectRefused([](auto& e) { e.pop_back(); }, "blocks end at offset 154");
}

TEST(ShardFormatTest, RejectsInvalidFooters) {
  const auto message = [](ShardFooter footer, int64_t size) {
    return std::string(
        ParseShardFooter(FormatShardFooter(footer), size).status().message());
  };
  EXPECT_THAT(message({.index_offset = 32, .entries = 1}, 64),
              HasSubstr("an index of 1 blocks at offset 32 in a file of 64"));
  EXPECT_THAT(message({.index_offset = 31, .entries = 0}, 64),
              HasSubstr("an index of 0 blocks"));
  EXPECT_THAT(message({.index_offset = 32, .entries = int64_t{1} << 62}, 64),
              HasSubstr("an index of"));
  EXPECT_THAT(message({.index_offset = 32, .entries = -1}, 64),
              HasSubstr("an index of -1"));
}

TEST(ShardFormatTest, RejectsOtherVersionsAndPlaces) {
  EXPECT_THAT(ParseShardHeader(FormatShardHeader({.rank = 2, .ranks = 2})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 2 of 2 at step 0 cannot be")));
  auto newer = FormatShardHeader({});
  newer[8] = std::byte{2};
  const uint32_t crc = offload::Crc32c(std::span(newer).first(28));
  StoreLittleEndian(crc, newer.data() + 28);
  EXPECT_THAT(ParseShardHeader(newer),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("version 2 of the format; 1 can be read")));
}

}  // namespace
}  // namespace tessera::zero3
