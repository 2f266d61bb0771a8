// Mutated headers, indices and footers, most of them with recomputed checksums
// so that later checks run: each is rejected with an error, or is valid and
// formats to the same bytes.
#include <cstring>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "offload/file/crc32c.h"
#include "zero3/checkpoint/shard_format.h"

namespace tessera::zero3 {
namespace {

template <typename Bytes>
std::string TextOf(const Bytes& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::vector<std::string> Tokens() {
  return {std::string(8, '\0'), std::string(8, '\xff'), "\x7f", "\x80",
          std::string("\0\0\0\0\0\0\0\x7f", 8)};
}

void Seal(std::string& text, size_t at) {
  const uint32_t crc = offload::Crc32c(BytesOf(text).first(at));
  for (size_t i = 0; i < 4; ++i) {
    text[at + i] = static_cast<char>((crc >> (8 * i)) & 0xff);
  }
}

template <typename T>
void ExpectRefusal(const absl::StatusOr<T>& result) {
  ASSERT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_FALSE(result.status().message().empty());
  ASSERT_LT(result.status().message().size(), 400u);
}

TEST(ShardFormatFuzzTest, Headers) {
  TextMutator mutator(
      {TextOf(FormatShardHeader({.step = 7, .rank = 2, .ranks = 900}))},
      Tokens(), 1);
  int valid = 0;
  for (int round = 0; round < 60'000; ++round) {
    std::string text = mutator.Next();
    text.resize(kShardHeaderBytes);
    if (round % 8 != 0) Seal(text, 28);
    std::array<std::byte, kShardHeaderBytes> bytes;
    std::memcpy(bytes.data(), text.data(), bytes.size());
    const auto header = ParseShardHeader(bytes);
    if (!header.ok()) {
      ASSERT_NO_FATAL_FAILURE(ExpectRefusal(header));
      continue;
    }
    ++valid;
    ASSERT_EQ(FormatShardHeader(*header), bytes);
  }
  EXPECT_GT(valid, 1000);
}

TEST(ShardFormatFuzzTest, Footers) {
  TextMutator mutator({TextOf(FormatShardFooter({4000, 2, 77})),
                       TextOf(FormatShardFooter({32, 0, 0}))},
                      Tokens(), 2);
  int valid = 0;
  for (int round = 0; round < 60'000; ++round) {
    std::string text = mutator.Next();
    text.resize(kShardFooterBytes);
    if (round % 8 != 0) Seal(text, 20);
    std::array<std::byte, kShardFooterBytes> bytes;
    std::memcpy(bytes.data(), text.data(), bytes.size());
    const auto footer = ParseShardFooter(bytes, round % 2 == 0 ? 4128 : 64);
    if (!footer.ok()) {
      ASSERT_NO_FATAL_FAILURE(ExpectRefusal(footer));
      continue;
    }
    ++valid;
    ASSERT_EQ(FormatShardFooter(*footer), bytes);
  }
  EXPECT_GT(valid, 1000);
}

TEST(ShardFormatFuzzTest, Indices) {
  const StateFormat f32 = {.dtype = DType::kF32};
  const StateFormat blockwise = {.dtype = DType::kU8, .block = 64};
  std::vector<BlockEntry> entries;
  int64_t offset = kShardHeaderBytes;
  for (int i = 0; i < 6; ++i) {
    const BlockRange range = {
        ParameterId(i / 2), i % 2 == 0 ? StatePart::kValue : StatePart::kMaster,
        i == 5 ? blockwise : f32, 64 * i, 64 * i + 100 + i};
    entries.push_back({range, offset, 5});
    offset += range.bytes();
  }
  TextMutator mutator({TextOf(FormatShardIndex(entries))}, Tokens(), 3);
  int valid = 0;
  for (int round = 0; round < 60'000; ++round) {
    const std::string text = mutator.Next();
    const ShardFooter footer = {
        .index_offset = offset,
        .entries = static_cast<int64_t>(text.size()) / kShardEntryBytes,
        .index_crc32c = offload::Crc32c(BytesOf(text))};
    const auto parsed = ParseShardIndex(BytesOf(text), footer);
    if (!parsed.ok()) {
      ASSERT_NO_FATAL_FAILURE(ExpectRefusal(parsed));
      continue;
    }
    ++valid;
    ASSERT_EQ(TextOf(FormatShardIndex(*parsed)), text);
  }
  EXPECT_GT(valid, 300);
}

}  // namespace
}  // namespace tessera::zero3
