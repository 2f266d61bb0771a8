#include "offload/file/block_table.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
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

// Reads zeros past the end of the sector.
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
      absl::StrCat("not a usable sector of a block file: ", what));
}

absl::Status CheckSeal(Reader& reader, uint64_t magic, SectorView sector) {
  if (reader.Number<uint64_t>() != magic) return Bad("wrong magic number");
  if (reader.Number<uint32_t>() != SectorCrc(sector))
    return Bad("wrong CRC-32C");
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

namespace {

constexpr int64_t kSector = kSectorBytes;
constexpr int64_t kSlot = 2 * kSector;
// The number of slots read or cleared at a time.
constexpr size_t kBatch = 64;

absl::StatusOr<Buffer> Sectors(size_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(Buffer buffer,
                           Buffer::Allocate(HostMemory(), bytes, kSectorBytes));
  std::fill_n(buffer.data(), bytes, std::byte{0});
  return buffer;
}

MutableSectorView SectorAt(Buffer& buffer, size_t at) {
  return buffer.bytes().subspan(at).first<kSectorBytes>();
}

bool IsZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

uint64_t RandomId() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32 | random()) | 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockTable>> BlockTable::Open(
    AsyncFile& file, std::shared_ptr<FileSpace> space, bool sync) {
  std::unique_ptr<BlockTable> table(
      new BlockTable(file, std::move(space), sync));
  TESSERA_ASSIGN_OR_RETURN(const bool exists, table->ReadSuperblock());
  if (!exists) {
    TESSERA_RETURN_IF_ERROR(table->Format());
    return table;
  }
  for (int64_t offset : table->superblock_.tables) {
    TESSERA_RETURN_IF_ERROR(table->LoadTable(offset));
  }
  return table;
}

absl::Status BlockTable::NoBlockFile(std::string_view why) const {
  return absl::DataLossError(absl::StrCat(
      "file ", file_.path(),
      " is not a block file, or both of its superblocks "
      "(offsets 0 and 4096) are damaged: ",
      why, ". It was not changed. Name another file, or remove this one"));
}

// Returns false if nothing was ever stored in the file.
absl::StatusOr<bool> BlockTable::ReadSuperblock() {
  if (space_->found_bytes() == 0) return false;
  if (space_->found_bytes() < kSlot) return NoBlockFile("it is too short");
  TESSERA_ASSIGN_OR_RETURN(Buffer sectors, Sectors(kSlot));
  TESSERA_RETURN_IF_ERROR(file_.ReadNow(0, sectors.bytes()));
  if (IsZero(sectors.bytes())) return false;
  absl::Status why;
  for (size_t half : {0, 1}) {
    auto parsed = ParseSuperblock(SectorAt(sectors, half * kSectorBytes));
    if (!parsed.ok()) {
      why = parsed.status();
    } else if (superblock_.file_id == 0 ||
               parsed->generation > superblock_.generation) {
      superblock_ = *std::move(parsed);
    }
  }
  if (superblock_.file_id == 0) return NoBlockFile(why.message());
  TESSERA_ASSIGN_OR_RETURN(auto head, space_->Claim(0, kSlot));
  extents_.push_back(std::move(head));
  return true;
}

absl::Status BlockTable::Format() {
  TESSERA_ASSIGN_OR_RETURN(auto head, space_->Allocate(kSlot));
  if (head->offset() != 0) {
    return absl::InternalError(
        absl::StrCat("file ", file_.path(), " is not empty at its start"));
  }
  extents_.push_back(std::move(head));
  superblock_.file_id = RandomId();
  absl::MutexLock lock(&grow_mutex_);
  return GrowTable();
}

absl::Status BlockTable::LoadTable(int64_t offset) {
  const size_t count = SlotsOfTable(extents_.size() - 1);
  TESSERA_ASSIGN_OR_RETURN(
      auto extent, space_->Claim(offset, static_cast<int64_t>(count) * kSlot),
      absl::DataLossError(absl::StrCat("file ", file_.path(),
                                       " has lost its table at offset ", offset,
                                       ": ", _.message())));
  extents_.push_back(std::move(extent));
  TESSERA_ASSIGN_OR_RETURN(Buffer batch, Sectors(kBatch * kSlot));
  for (size_t first = 0; first < count; first += kBatch) {
    const int64_t at = offset + static_cast<int64_t>(first) * kSlot;
    TESSERA_RETURN_IF_ERROR(file_.ReadNow(at, batch.bytes()));
    for (size_t i = 0; i < kBatch; ++i) {
      LoadSlot(at + static_cast<int64_t>(i) * kSlot,
               batch.bytes().subspan(i * kSlot, kSlot));
    }
  }
  return absl::OkStatus();
}

void BlockTable::LoadSlot(int64_t offset, std::span<const std::byte> sectors) {
  absl::MutexLock lock(&mutex_);
  const auto number = static_cast<uint32_t>(slots_.size());
  Slot slot;
  slot.offset = offset;
  std::vector<BlockRecord> records;
  for (size_t half : {0, 1}) {
    auto record =
        ParseRecord(sectors.subspan(half * kSectorBytes).first<kSectorBytes>());
    if (!record.ok() || record->file_id != superblock_.file_id ||
        record->slot != number) {
      continue;
    }
    slot.generations[half] = record->generation;
    generation_ = std::max(generation_, record->generation);
    records.push_back(*std::move(record));
  }
  slot.last = slot.generations[0] > slot.generations[1] ? 0 : 1;
  slots_.push_back(slot);
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
    return a.generation > b.generation;
  });
  if (records.empty() || !records.front().live) {
    free_.push_back(number);
    return;
  }
  if (!records.back().live) records.pop_back();
  found_.push_back(std::move(records));
}

void BlockTable::Keep(uint32_t slot, uint64_t generation) {
  absl::MutexLock lock(&mutex_);
  Slot& kept = slots_[slot];
  kept.last = kept.generations[0] == generation ? 0 : 1;
}

uint64_t BlockTable::NextGeneration() {
  absl::MutexLock lock(&mutex_);
  return ++generation_;
}

absl::StatusOr<uint32_t> BlockTable::TakeSlot() {
  const auto take = [this]() -> std::optional<uint32_t> {
    absl::MutexLock lock(&mutex_);
    if (free_.empty()) return std::nullopt;
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  };
  if (const auto slot = take(); slot.has_value()) return *slot;
  absl::MutexLock lock(&grow_mutex_);
  while (true) {
    if (const auto slot = take(); slot.has_value()) return *slot;
    TESSERA_RETURN_IF_ERROR(GrowTable());
  }
}

void BlockTable::ReturnSlot(uint32_t slot) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(slot);
}

// Clears the new table before the superblock refers to it.
absl::Status BlockTable::GrowTable() {
  const size_t index = superblock_.tables.size();
  if (index == kMostTables) {
    return absl::ResourceExhaustedError(
        absl::StrCat("file ", file_.path(), " has no room for more blocks"));
  }
  const size_t count = SlotsOfTable(index);
  TESSERA_ASSIGN_OR_RETURN(
      auto extent, space_->Allocate(static_cast<int64_t>(count) * kSlot));
  TESSERA_ASSIGN_OR_RETURN(const Buffer zeros, Sectors(kBatch * kSlot));
  for (size_t first = 0; first < count; first += kBatch) {
    TESSERA_RETURN_IF_ERROR(
        file_.WriteNow(extent->offset() + static_cast<int64_t>(first) * kSlot,
                       zeros.bytes(), sync_));
  }
  Superblock grown = superblock_;
  grown.tables.push_back(extent->offset());
  ++grown.generation;
  TESSERA_RETURN_IF_ERROR(WriteSuperblock(grown));
  superblock_ = std::move(grown);
  AddSlots(extent->offset(), count);
  extents_.push_back(std::move(extent));
  return absl::OkStatus();
}

absl::Status BlockTable::WriteSuperblock(const Superblock& superblock) {
  TESSERA_ASSIGN_OR_RETURN(Buffer sector, Sectors(kSectorBytes));
  EncodeSuperblock(superblock, SectorAt(sector, 0));
  const auto half = static_cast<int64_t>(superblock.generation % 2);
  return file_.WriteNow(half * kSector, sector.bytes(), sync_);
}

void BlockTable::AddSlots(int64_t offset, size_t count) {
  absl::MutexLock lock(&mutex_);
  // Slots are taken from the back, lowest first.
  for (size_t i = count; i-- > 0;) {
    free_.push_back(static_cast<uint32_t>(slots_.size() + i));
  }
  for (size_t i = 0; i < count; ++i) {
    Slot slot;
    slot.offset = offset + static_cast<int64_t>(i) * kSlot;
    slots_.push_back(slot);
  }
}

void BlockTable::Write(BlockRecord record, AsyncFile::Done done) {
  absl::StatusOr<Buffer> sector = Sectors(kSectorBytes);
  if (!sector.ok()) return done(sector.status());
  const uint32_t slot = record.slot;
  record.file_id = superblock_.file_id;
  EncodeRecord(record, SectorAt(*sector, 0));
  int64_t offset = 0;
  {
    absl::MutexLock lock(&mutex_);
    offset = slots_[slot].offset + (1 - slots_[slot].last) * kSector;
  }
  const auto held = std::make_shared<const Buffer>(*std::move(sector));
  file_.Write(offset, held->bytes(), sync_,
              [this, held, slot, done = std::move(done)](absl::Status status) {
                if (status.ok()) {
                  absl::MutexLock lock(&mutex_);
                  slots_[slot].last = 1 - slots_[slot].last;
                }
                done(std::move(status));
              });
}

}  // namespace tessera::offload
