#include "offload/file/block_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "offload/file/crc32c.h"

namespace tessera::offload {

namespace {

constexpr uint64_t kMagic = 0x3230434552535354;  // "TSSREC02"
constexpr int64_t kUnit = 4096;
constexpr int64_t kLargest = int64_t{1} << 60;

// A record in the file.
struct Sector {
  uint64_t magic;
  uint32_t crc;  // of the sector with zeros here
  uint32_t slot;
  uint64_t generation;
  int64_t offset;
  int64_t bytes;
  int64_t original_bytes;
  int64_t unit_bytes;
  int64_t table_blocks;
  uint16_t key_bytes;
  uint16_t crc_count;
  uint8_t live;
  uint8_t purpose;
  uint8_t dtype;
  uint8_t zero;
  char key[kMostKeyBytes];
  uint32_t crcs[BlockChecksums::kMost];
  std::byte zeros[1720];
};
static_assert(sizeof(Sector) == kSectorBytes);
static_assert(std::endian::native == std::endian::little);

uint32_t CrcOf(Sector sector) {
  sector.crc = 0;
  return Crc32c(std::as_bytes(std::span(&sector, 1)));
}

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a usable record of a block file: ", what));
}

absl::Status CheckLimits(const Sector& s) {
  if (s.live > 1) return Bad(absl::StrCat("state ", s.live));
  if (s.table_blocks < 0 || s.table_blocks > kMostKeptBlocks) {
    return Bad(absl::StrCat("a table for ", s.table_blocks, " blocks"));
  }
  if (s.live == 0) return absl::OkStatus();
  if (s.key_bytes == 0 || s.key_bytes > kMostKeyBytes) {
    return Bad(absl::StrCat("a key of ", s.key_bytes, " bytes"));
  }
  if (s.offset < 0 || s.offset % kUnit != 0 || s.offset > kLargest ||
      s.bytes < 0 || s.bytes > kLargest || s.original_bytes < -1) {
    return Bad(
        absl::StrCat("a block of ", s.bytes, " bytes at offset ", s.offset));
  }
  if (s.unit_bytes < kUnit || s.unit_bytes > kLargest ||
      !std::has_single_bit(static_cast<uint64_t>(s.unit_bytes))) {
    return Bad(absl::StrCat("checksums every ", s.unit_bytes, " bytes"));
  }
  if (s.crc_count > BlockChecksums::kMost ||
      s.crc_count != (s.bytes + s.unit_bytes - 1) / s.unit_bytes) {
    return Bad(absl::StrCat(s.crc_count, " checksums for ", s.bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

namespace block_format_internal {

void Seal(MutableSectorView bytes) {
  Sector sector;
  std::memcpy(&sector, bytes.data(), bytes.size());
  sector.crc = CrcOf(sector);
  std::memcpy(bytes.data(), &sector, bytes.size());
}

}  // namespace block_format_internal

void EncodeRecord(const BlockRecord& record, MutableSectorView bytes) {
  Sector sector = {};
  sector.magic = kMagic;
  sector.slot = record.slot;
  sector.generation = record.generation;
  sector.table_blocks = record.table_blocks;
  if (record.live) {
    sector.live = 1;
    const BlockLocation& location = record.location;
    sector.purpose = static_cast<uint8_t>(record.info.purpose);
    sector.dtype = static_cast<uint8_t>(record.info.dtype);
    sector.original_bytes = record.info.original_bytes;
    sector.offset = location.offset;
    sector.bytes = location.bytes;
    sector.unit_bytes = location.checksums.unit_bytes;
    sector.key_bytes = static_cast<uint16_t>(record.key.size());
    sector.crc_count = static_cast<uint16_t>(location.checksums.crcs.size());
    std::copy(record.key.begin(), record.key.end(), sector.key);
    std::copy(location.checksums.crcs.begin(), location.checksums.crcs.end(),
              sector.crcs);
  }
  sector.crc = CrcOf(sector);
  std::memcpy(bytes.data(), &sector, bytes.size());
}

absl::StatusOr<BlockRecord> ParseRecord(SectorView bytes) {
  Sector sector;
  std::memcpy(&sector, bytes.data(), bytes.size());
  if (sector.magic != kMagic) return Bad("wrong magic number");
  if (sector.crc != CrcOf(sector)) return Bad("wrong CRC-32C");
  TESSERA_RETURN_IF_ERROR(CheckLimits(sector));
  BlockRecord record = {.generation = sector.generation,
                        .slot = sector.slot,
                        .table_blocks = sector.table_blocks,
                        .live = sector.live == 1};
  if (!record.live) return record;
  record.key.assign(sector.key, sector.key_bytes);
  record.info = {static_cast<Purpose>(sector.purpose),
                 static_cast<DType>(sector.dtype), sector.original_bytes};
  record.location = {
      sector.offset,
      sector.bytes,
      {sector.unit_bytes, {sector.crcs, sector.crcs + sector.crc_count}}};
  return record;
}

namespace {

constexpr int64_t kSector = kSectorBytes;
constexpr int64_t kSlot = 2 * kSector;
// The number of slots read at a time.
constexpr size_t kBatch = 64;

absl::StatusOr<Buffer> Sectors(size_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(Buffer buffer,
                           Buffer::Allocate(HostMemory(), bytes, kSectorBytes));
  std::fill_n(buffer.data(), bytes, std::byte{0});
  return buffer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockTable>> BlockTable::Open(
    AsyncFile& file, std::shared_ptr<FileSpace> space, int64_t blocks,
    bool sync) {
  std::unique_ptr<BlockTable> table(new BlockTable(file, sync));
  TESSERA_ASSIGN_OR_RETURN(const int64_t found, table->ReadSize(*space));
  const int64_t slots = 1 + (found > 0 ? found : blocks);
  if (found > 0) {
    TESSERA_ASSIGN_OR_RETURN(
        table->extent_, space->Claim(0, slots * kSlot),
        absl::DataLossError(absl::StrCat(
            "file ", file.path(), " has lost its table: ", _.message())));
  } else {
    TESSERA_ASSIGN_OR_RETURN(table->extent_, space->Allocate(slots * kSlot));
  }
  {
    absl::MutexLock lock(&table->mutex_);
    table->slots_.resize(static_cast<size_t>(slots));
  }
  TESSERA_RETURN_IF_ERROR(found > 0 ? table->Load()
                                    : table->Format(space->found_bytes()));
  return table;
}

absl::StatusOr<int64_t> BlockTable::ReadSize(const FileSpace& space) const {
  if (space.found_bytes() == 0) return 0;
  absl::Status why = Bad("it is too short");
  if (space.found_bytes() >= kSlot) {
    TESSERA_ASSIGN_OR_RETURN(Buffer slot, Sectors(kSlot));
    TESSERA_RETURN_IF_ERROR(file_.ReadNow(0, slot.bytes()));
    if (std::all_of(slot.bytes().begin(), slot.bytes().end(),
                    [](std::byte b) { return b == std::byte{0}; })) {
      return 0;
    }
    for (const size_t half : {size_t{0}, kSectorBytes}) {
      const auto record =
          ParseRecord(slot.bytes().subspan(half).first<kSectorBytes>());
      why = record.status();
      if (why.ok() && record->slot == 0 && record->table_blocks > 0) {
        return record->table_blocks;
      }
    }
  }
  return absl::DataLossError(absl::StrCat(
      "file ", file_.path(),
      " is not a block file, or both of its first sectors (offsets 0 and 4096) "
      "are damaged: ",
      why.message(),
      ". It was not changed. Name another file, or remove this one"));
}

// New space of a file reads as zeros, which are no records. The size of the
// table identifies the file; it is written to both sectors.
absl::Status BlockTable::Format(int64_t old_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const Buffer zeros, Sectors(kSlot));
  const int64_t end = std::min(old_bytes, extent_->bytes());
  for (int64_t at = 0; at < end; at += kSlot) {
    TESSERA_RETURN_IF_ERROR(file_.WriteNow(at, zeros.bytes(), sync_));
  }
  uint32_t slots = 0;
  {
    absl::MutexLock lock(&mutex_);
    slots = static_cast<uint32_t>(slots_.size());
    // Slots are taken from the back, lowest first.
    for (uint32_t slot = slots; --slot > 0;) free_.push_back(slot);
  }
  for (int sector = 0; sector < 2; ++sector) {
    TESSERA_RETURN_IF_ERROR(AwaitDone([&](AsyncFile::Done done) {
      Write({.table_blocks = slots - 1}, std::move(done));
    }));
  }
  return absl::OkStatus();
}

absl::Status BlockTable::Load() {
  const auto slots = static_cast<uint32_t>(extent_->bytes() / kSlot);
  TESSERA_ASSIGN_OR_RETURN(Buffer batch, Sectors(kBatch * kSlot));
  for (uint32_t slot = 0; slot < slots; ++slot) {
    const size_t at = slot % kBatch * kSlot;
    if (at == 0) {
      const size_t count = std::min<size_t>(kBatch, slots - slot);
      TESSERA_RETURN_IF_ERROR(
          file_.ReadNow(slot * kSlot, batch.bytes().first(count * kSlot)));
    }
    std::vector<BlockRecord> records =
        LoadSlot(slot, batch.bytes().subspan(at, kSlot));
    if (slot == 0) continue;
    if (records.empty() || !records.front().live) {
      ReturnSlot(slot);
      continue;
    }
    if (!records.back().live) records.pop_back();
    found_.push_back(std::move(records));
  }
  return absl::OkStatus();
}

std::vector<BlockRecord> BlockTable::LoadSlot(
    uint32_t number, std::span<const std::byte> sectors) {
  absl::MutexLock lock(&mutex_);
  Slot& slot = slots_[number];
  std::vector<BlockRecord> records;
  for (const size_t half : {0, 1}) {
    auto record =
        ParseRecord(sectors.subspan(half * kSectorBytes).first<kSectorBytes>());
    if (!record.ok() || record->slot != number) continue;
    slot.generations[half] = record->generation;
    generation_ = std::max(generation_, record->generation);
    records.push_back(*std::move(record));
  }
  slot.last = slot.generations[0] > slot.generations[1] ? 0 : 1;
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
    return a.generation > b.generation;
  });
  return records;
}

void BlockTable::Keep(uint32_t slot, uint64_t generation) {
  absl::MutexLock lock(&mutex_);
  Slot& kept = slots_[slot];
  kept.last = kept.generations[0] == generation ? 0 : 1;
}

absl::StatusOr<uint32_t> BlockTable::TakeSlot() {
  absl::MutexLock lock(&mutex_);
  if (free_.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "file ", file_.path(), " has ", slots_.size() - 1,
        " blocks, the most that its table has room for. Drop blocks, or create "
        "a file with more kept_blocks"));
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void BlockTable::ReturnSlot(uint32_t slot) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(slot);
}

void BlockTable::Write(BlockRecord record, AsyncFile::Done done) {
  absl::StatusOr<Buffer> sector = Sectors(kSectorBytes);
  if (!sector.ok()) return done(sector.status());
  const uint32_t slot = record.slot;
  int64_t offset = 0;
  {
    absl::MutexLock lock(&mutex_);
    record.generation = ++generation_;
    offset = slot * kSlot + (1 - slots_[slot].last) * kSector;
  }
  EncodeRecord(record, sector->bytes().first<kSectorBytes>());
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
