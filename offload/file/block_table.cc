#include "offload/file/block_table.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"

namespace tessera::offload {
namespace {

constexpr int64_t kSector = kSectorBytes;
constexpr int64_t kSlot = 2 * kSector;
// Slots read or cleared at once.
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
      " is no block file, or both its superblocks "
      "(offsets 0 and 4096) are damaged: ",
      why, ". It was left as it is. Name another file, or remove this one"));
}

// False where nothing was ever stored in the file.
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

// Clears the new table before the superblock names it.
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
  // Taken from the back: the lowest first.
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
