// Damaged sectors are rejected, or give a value that is within every limit and
// survives a round trip. Half of them get a new CRC-32C, so that the later
// checks run too.
#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/block_table.h"

namespace tessera::offload {
namespace {

using Sector = std::array<std::byte, kSectorBytes>;

BlockRecord SmallRecord() {
  BlockRecord record;
  record.generation = 3;
  record.slot = 5;
  record.live = true;
  record.key = "layer.0.weight";
  record.info = {static_cast<Purpose>(2), static_cast<DType>(3)};
  record.location = {1 << 20, 5000, {4096, {1, 2}}};
  return record;
}

BlockRecord LargestRecord() {
  BlockRecord record = SmallRecord();
  record.key = std::string(kMostKeyBytes, '\xff');
  record.info.original_bytes = int64_t{1} << 40;
  record.location = {
      1 << 20, 512 << 20, {1 << 20, std::vector<uint32_t>(512, 0xdeadbeef)}};
  return record;
}

std::vector<BlockRecord> Records() {
  BlockRecord tombstone;
  tombstone.generation = 1;
  BlockRecord empty = SmallRecord();
  empty.location = {0, 0, {4096, {}}};
  const BlockRecord size = {.generation = 1, .table_blocks = 64};
  return {SmallRecord(), LargestRecord(), tombstone, empty, size};
}

std::vector<Sector> Corpus() {
  std::vector<Sector> corpus;
  for (const BlockRecord& record : Records()) {
    EncodeRecord(record, corpus.emplace_back());
  }
  return corpus;
}

void Damage(Sector& sector, std::mt19937_64& random) {
  // Mostly in the header, which contains the numbers.
  const size_t bound = random() % 4 == 0 ? kSectorBytes : 100;
  const size_t at = random() % bound;
  const size_t length = std::min<size_t>(1 + random() % 16, kSectorBytes - at);
  switch (random() % 6) {
    case 0:
      sector[at] = static_cast<std::byte>(random());
      break;
    case 1:
      sector[at] ^= static_cast<std::byte>(1 << random() % 8);
      break;
    case 2:
      std::fill_n(sector.begin() + at, length, std::byte{0});
      break;
    case 3:
      std::fill_n(sector.begin() + at, length, std::byte{0xff});
      break;
    case 4:
      std::fill(sector.begin() + at, sector.end(), std::byte{0});
      break;
    default:
      std::memmove(sector.data() + at, sector.data() + random() % 100, length);
  }
}

void ExpectSound(const BlockRecord& record) {
  Sector again;
  ASSERT_LE(record.key.size(), kMostKeyBytes);
  ASSERT_LE(record.location.checksums.crcs.size(), 512u);
  ASSERT_EQ(record.live, !record.key.empty());
  ASSERT_EQ(record.location.offset % 4096, 0);
  ASSERT_GE(record.location.bytes, 0);
  EncodeRecord(record, again);
  ASSERT_THAT(ParseRecord(again), IsOkAndHolds(record));
}

TEST(BlockFormatFuzzTest, ParsesEncodedRecords) {
  for (const BlockRecord& record : Records()) {
    Sector sector;
    EncodeRecord(record, sector);
    EXPECT_THAT(ParseRecord(sector), IsOkAndHolds(record));
  }
}

TEST(BlockFormatFuzzTest, DetectsEveryFlippedBit) {
  const Sector whole = Corpus()[1];
  for (size_t bit = 0; bit < 8 * kSectorBytes; ++bit) {
    Sector sector = whole;
    sector[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ASSERT_THAT(ParseRecord(sector),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << bit;
  }
}

TEST(BlockFormatFuzzTest, DamagedSectorsAreRejectedOrValid) {
  std::mt19937_64 random(1);
  const std::vector<Sector> corpus = Corpus();
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 60000; ++i) {
    Sector sector = corpus[random() % corpus.size()];
    for (uint64_t n = 1 + random() % 3; n > 0; --n) Damage(sector, random);
    if (random() % 8 != 0) block_format_internal::Seal(sector);
    const auto record = ParseRecord(sector);
    if (record.ok()) {
      ASSERT_NO_FATAL_FAILURE(ExpectSound(*record));
    } else {
      ASSERT_THAT(record, StatusIs(absl::StatusCode::kInvalidArgument,
                                   testing::Not(testing::IsEmpty())));
    }
    accepted += record.ok();
    refused += !record.ok();
  }
  EXPECT_GT(accepted, 5000);
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace tessera::offload
