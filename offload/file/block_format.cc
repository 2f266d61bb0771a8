#include "offload/file/block_format.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "offload/file/crc32c.h"

namespace tessera::offload {
namespace {

constexpr uint64_t kSuperblockMagic = 0x3130424c42535354;  // "TSSBLB01"
constexpr uint64_t kRecordMagic = 0x3130434552535354;      // "TSSREC01"
constexpr size_t kCrcAt = 8;
constexpr int64_t kUnit = 4096;
constexpr int64_t kLargest = int64_t{1} << 60;

// Numbers, lowest byte first.
class Writer {
 public:
  explicit Writer(MutableSectorView sector) : sector_(sector) {
    std::memset(sector.data(), 0, sector.size());
  }
  template <typename T>
  void Number(T value) {
    auto bits = static_cast<uint64_t>(value);
    for (size_t i = 0; i < sizeof(T); ++i, bits >>= 8) {
      sector_[at_++] = static_cast<std::byte>(bits & 0xff);
    }
  }
  void Text(std::string_view text) {
    std::memcpy(sector_.data() + at_, text.data(), text.size());
    at_ += text.size();
  }

 private:
  MutableSectorView sector_;
  size_t at_ = 0;
};

// Zeros once the sector has ended.
class Reader {
 public:
  explicit Reader(SectorView sector) : sector_(sector) {}
  template <typename T>
  T Number() {
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T) && at_ < sector_.size(); ++i, ++at_) {
      bits |= std::to_integer<uint64_t>(sector_[at_]) << (8 * i);
    }
    return static_cast<T>(bits);
  }
  std::string Text(size_t bytes) {
    bytes = std::min(bytes, sector_.size() - at_);
    std::string text(bytes, '\0');
    std::memcpy(text.data(), sector_.data() + at_, bytes);
    at_ += bytes;
    return text;
  }

 private:
  SectorView sector_;
  size_t at_ = 0;
};

uint32_t SectorCrc(SectorView sector) {
  constexpr std::byte kNoCrc[4] = {};
  uint32_t crc = Crc32c(sector.first<kCrcAt>());
  crc = ExtendCrc32c(crc, kNoCrc);
  return ExtendCrc32c(crc, sector.subspan<kCrcAt + 4>());
}

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a sector of a block file that can be used: ", what));
}

absl::Status CheckSeal(Reader& reader, uint64_t magic, SectorView sector) {
  if (reader.Number<uint64_t>() != magic) return Bad("another magic number");
  if (reader.Number<uint32_t>() != SectorCrc(sector)) return Bad("its CRC-32C");
  return absl::OkStatus();
}

absl::Status CheckChecksums(const BlockRecord& record) {
  const int64_t unit = record.checksums.unit_bytes;
  const auto count = static_cast<int64_t>(record.checksums.crcs.size());
  if (unit < kUnit || unit > kLargest || (unit & (unit - 1)) != 0) {
    return Bad(absl::StrCat("checksums every ", unit, " bytes"));
  }
  if (count != (record.bytes + unit - 1) / unit) {
    return Bad(absl::StrCat(count, " checksums for ", record.bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

namespace block_format_internal {

void Seal(MutableSectorView sector) {
  uint32_t crc = SectorCrc(sector);
  for (size_t i = 0; i < 4; ++i, crc >>= 8) {
    sector[kCrcAt + i] = static_cast<std::byte>(crc & 0xff);
  }
}

}  // namespace block_format_internal

void EncodeSuperblock(const Superblock& superblock, MutableSectorView sector) {
  Writer writer(sector);
  writer.Number(kSuperblockMagic);
  writer.Number(uint32_t{0});
  writer.Number(superblock.file_id);
  writer.Number(superblock.generation);
  writer.Number(static_cast<uint32_t>(superblock.tables.size()));
  for (int64_t offset : superblock.tables) writer.Number(offset);
  block_format_internal::Seal(sector);
}

absl::StatusOr<Superblock> ParseSuperblock(SectorView sector) {
  Reader reader(sector);
  absl::Status seal = CheckSeal(reader, kSuperblockMagic, sector);
  if (!seal.ok()) return seal;
  Superblock superblock;
  superblock.file_id = reader.Number<uint64_t>();
  superblock.generation = reader.Number<uint64_t>();
  const auto tables = reader.Number<uint32_t>();
  if (tables > kMostTables) return Bad(absl::StrCat(tables, " tables"));
  for (uint32_t i = 0; i < tables; ++i) {
    const auto offset = reader.Number<int64_t>();
    if (offset < 2 * kUnit || offset > kLargest || offset % kUnit != 0) {
      return Bad(absl::StrCat("a table at offset ", offset));
    }
    superblock.tables.push_back(offset);
  }
  return superblock;
}

void EncodeRecord(const BlockRecord& record, MutableSectorView sector) {
  Writer writer(sector);
  writer.Number(kRecordMagic);
  writer.Number(uint32_t{0});
  writer.Number(record.file_id);
  writer.Number(record.generation);
  writer.Number(record.slot);
  writer.Number(static_cast<uint8_t>(record.live ? 1 : 0));
  if (record.live) {
    writer.Number(record.purpose);
    writer.Number(record.dtype);
    writer.Number(static_cast<uint16_t>(record.key.size()));
    writer.Number(static_cast<uint16_t>(record.checksums.crcs.size()));
    writer.Number(record.offset);
    writer.Number(record.bytes);
    writer.Number(record.original_bytes);
    writer.Number(record.checksums.unit_bytes);
    writer.Text(record.key);
    for (uint32_t crc : record.checksums.crcs) writer.Number(crc);
  }
  block_format_internal::Seal(sector);
}

absl::StatusOr<BlockRecord> ParseRecord(SectorView sector) {
  Reader reader(sector);
  absl::Status seal = CheckSeal(reader, kRecordMagic, sector);
  if (!seal.ok()) return seal;
  BlockRecord record;
  record.file_id = reader.Number<uint64_t>();
  record.generation = reader.Number<uint64_t>();
  record.slot = reader.Number<uint32_t>();
  const auto state = reader.Number<uint8_t>();
  if (state > 1) return Bad(absl::StrCat("state ", state));
  record.live = state == 1;
  if (!record.live) return record;
  record.purpose = reader.Number<uint8_t>();
  record.dtype = reader.Number<uint8_t>();
  const auto key_bytes = reader.Number<uint16_t>();
  const auto crcs = reader.Number<uint16_t>();
  record.offset = reader.Number<int64_t>();
  record.bytes = reader.Number<int64_t>();
  record.original_bytes = reader.Number<int64_t>();
  record.checksums.unit_bytes = reader.Number<int64_t>();
  if (key_bytes == 0 || key_bytes > kMostKeyBytes) {
    return Bad(absl::StrCat("a key of ", key_bytes, " bytes"));
  }
  if (crcs > BlockChecksums::kMost) {
    return Bad(absl::StrCat(crcs, " checksums"));
  }
  if (record.offset < 0 || record.offset % kUnit != 0 || record.bytes < 0 ||
      record.offset > kLargest || record.bytes > kLargest ||
      record.original_bytes < -1) {
    return Bad(absl::StrCat("a block of ", record.bytes, " bytes at offset ",
                            record.offset));
  }
  record.key = reader.Text(key_bytes);
  for (uint16_t i = 0; i < crcs; ++i) {
    record.checksums.crcs.push_back(reader.Number<uint32_t>());
  }
  absl::Status checksums = CheckChecksums(record);
  if (!checksums.ok()) return checksums;
  return record;
}

}  // namespace tessera::offload
