#include "offload/tier/file_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {

// A Put in flight.
struct FileTier::Store {
  std::string key;
  std::shared_ptr<Version> version;
  Completion completion;
};

FileTier::~FileTier() {
  // Waits for engine threads that still use members.
  engine_.reset();
}

void FileTier::AwaitIdle(std::string_view key) {
  const auto idle = [this, key]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = entries_.find(key);
    return found == entries_.end() || !found->second.busy;
  };
  mutex_.Await(absl::Condition(&idle));
}

// Counts the bytes and excludes other writers of the key.
absl::Status FileTier::BeginPut(std::string_view key, int64_t bytes,
                                Purpose purpose) {
  absl::MutexLock lock(&mutex_);
  AwaitIdle(key);
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    Entry& entry = found->second;
    if (bytes > entry.room.bytes()) {
      TESSERA_RETURN_IF_ERROR(entry.room.Resize(key, bytes));
    }
    entry.busy = true;
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(
      Reservation room, Accounting::Reserve(accounting_, key, bytes, purpose));
  Entry& entry = entries_[std::string(key)];
  entry.room = std::move(room);
  entry.busy = true;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<FileTier::Version>> FileTier::MakeRoom(
    std::string_view key, int64_t bytes, BlockInfo info) {
  auto version = std::make_shared<Version>();
  TESSERA_ASSIGN_OR_RETURN(
      version->extent, space_->Allocate(bytes),
      Annotate(_, absl::StrCat("tier ", name(), ": block ", QuoteKey(key))));
  version->location = {version->extent->offset(), bytes, {}};
  version->info = info;
  if (table_ == nullptr) return version;
  {
    absl::MutexLock lock(&mutex_);
    if (entries_.find(key)->second.slot.has_value()) return version;
  }
  TESSERA_ASSIGN_OR_RETURN(
      const uint32_t slot, table_->TakeSlot(),
      Annotate(_, absl::StrCat("tier ", name(), ": block ", QuoteKey(key))));
  absl::MutexLock lock(&mutex_);
  entries_.find(key)->second.slot = slot;
  return version;
}

void FileTier::EndPut(const std::string& key,
                      std::shared_ptr<const Version> version) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  Entry& entry = found->second;
  if (version != nullptr) entry.version.swap(version);
  if (entry.version == nullptr) {
    if (entry.slot.has_value()) table_->ReturnSlot(*entry.slot);
    entries_.erase(found);
    return;
  }
  entry.busy = false;
  // Cannot fail: it only shrinks.
  entry.room.Resize(key, entry.version->location.bytes).IgnoreError();
  entry.room.SetPurpose(entry.version->info.purpose);
}

Operation FileTier::StartPut(std::string_view key,
                             std::span<const std::byte> bytes, BlockInfo info) {
  const auto size = static_cast<int64_t>(bytes.size());
  absl::Status status = CheckBlock(name(), key, info);
  if (status.ok()) status = BeginPut(key, size, info.purpose);
  if (!status.ok()) return Operation(std::move(status));
  auto version = MakeRoom(key, size, info);
  if (!version.ok()) {
    EndPut(std::string(key), nullptr);
    return Operation(version.status());
  }
  auto [operation, completion] = Operation::Pending();
  auto store = std::make_shared<Store>(
      Store{std::string(key), *std::move(version), std::move(completion)});
  transfer_->Write(
      store->version->location.offset, bytes, options_.sync,
      [this, store](absl::StatusOr<BlockChecksums> sums) {
        if (sums.ok()) {
          store->version->location.checksums = *std::move(sums);
          Record(store);
          return;
        }
        EndPut(store->key, nullptr);
        store->completion.Finish(Annotate(
            sums.status(),
            absl::StrCat("tier ", name(), ": block ", QuoteKey(store->key))));
      });
  return std::move(operation);
}

// The block is written; now writes the record that refers to it.
void FileTier::Record(std::shared_ptr<Store> store) {
  if (table_ == nullptr) {
    EndPut(store->key, store->version);
    store->completion.Finish(absl::OkStatus());
    return;
  }
  BlockRecord record;
  record.live = true;
  record.key = store->key;
  record.info = store->version->info;
  record.location = store->version->location;
  {
    absl::MutexLock lock(&mutex_);
    record.slot = *entries_.find(store->key)->second.slot;
  }
  table_->Write(std::move(record), [this, store](const absl::Status& status) {
    EndPut(store->key, status.ok() ? store->version : nullptr);
    store->completion.Finish(
        Annotate(status, absl::StrCat("tier ", name(), ": record of block ",
                                      QuoteKey(store->key))));
  });
}

Operation FileTier::StartRead(std::string_view key,
                              std::optional<int64_t> offset,
                              std::span<std::byte> out) {
  const std::shared_ptr<const Version> version = Find(key);
  if (version == nullptr) return Operation(NoSuchBlock(name(), key));
  absl::Status range =
      CheckRange(name(), key, version->location.bytes, offset, out.size());
  if (!range.ok()) return Operation(std::move(range));
  auto [operation, completion] = Operation::Pending();
  // `version` keeps its extent allocated.
  transfer_->Read(
      version->location, offset.value_or(0), out,
      [this, version, key = std::string(key),
       completion = completion](const absl::Status& status) {
        completion.Finish(Annotate(
            status, absl::StrCat("tier ", name(), ": block ", QuoteKey(key))));
      });
  return std::move(operation);
}

std::shared_ptr<const FileTier::Version> FileTier::Find(
    std::string_view key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second.version;
}

// Writes a tombstone before the block is removed.
absl::Status FileTier::Entomb(std::string_view key, uint32_t slot) {
  BlockRecord tombstone;
  tombstone.slot = slot;
  const absl::Status status = AwaitDone([&](AsyncFile::Done done) {
    table_->Write(std::move(tombstone), std::move(done));
  });
  return Annotate(
      status, absl::StrCat("tier ", name(), ": drop of block ", QuoteKey(key)));
}

absl::Status FileTier::Drop(std::string_view key) {
  std::optional<uint32_t> slot;
  {
    absl::MutexLock lock(&mutex_);
    AwaitIdle(key);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return NoSuchBlock(name(), key);
    found->second.busy = true;
    slot = found->second.slot;
  }
  absl::Status status =
      slot.has_value() ? Entomb(key, *slot) : absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  found->second.busy = false;
  if (status.ok()) {
    if (slot.has_value()) table_->ReturnSlot(*slot);
    entries_.erase(found);
  }
  return status;
}

absl::StatusOr<BlockStat> FileTier::Stat(std::string_view key) const {
  const std::shared_ptr<const Version> version = Find(key);
  if (version == nullptr) return NoSuchBlock(name(), key);
  return BlockStat{version->location.bytes, version->location.bytes,
                   version->info};
}

std::vector<std::string> FileTier::Keys() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, entry] : entries_) {
    if (entry.version != nullptr) keys.push_back(key);
  }
  return keys;
}

std::vector<TierUsage> FileTier::usage() const {
  return {{std::string(name()), accounting_->usage()}};
}

absl::Status FileTier::Flush() {
  if (!options_.keep || fdatasync(opened_.fd.get()) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno,
                             absl::StrCat("fdatasync of ", opened_.path));
}

// Opening a file and recovering its blocks.

namespace {

absl::Status CheckOptions(const FileTierOptions& options) {
  const int64_t piece = options.piece_bytes;
  if (options.path.empty()) {
    return absl::InvalidArgumentError(
        "a file tier needs a path: a directory, or with keep the file");
  }
  if (piece < FileSpace::kUnit || piece > (int64_t{1} << 30) ||
      (piece & (piece - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pieces of ", piece, " bytes; a power of two from 4096 to 2^30"));
  }
  if (options.kept_blocks < 1 || options.kept_blocks > kMostKeptBlocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.kept_blocks, " kept blocks; 1 to ", kMostKeptBlocks));
  }
  if (options.bounce_bytes < piece || options.bounce_bytes % piece != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.bounce_bytes,
                     " bytes of bounce buffers; a "
                     "multiple of the piece size, ",
                     piece));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileTier>> FileTier::Create(
    std::shared_ptr<Accounting> accounting, FileTierOptions options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<FileTier> tier(
      new FileTier(std::move(accounting), std::move(options)));
  TESSERA_RETURN_IF_ERROR(tier->Open(),
                          Annotate(_, absl::StrCat("tier ", tier->name())));
  return tier;
}

absl::Status FileTier::Open() {
  TESSERA_ASSIGN_OR_RETURN(
      opened_, options_.keep ? OpenKeptFile(options_.path, options_.direct,
                                            options_.lock_wait)
                             : OpenScratchFile(options_.path, options_.direct));
  TESSERA_ASSIGN_OR_RETURN(
      engine_, CreateIoEngine(options_.engine, options_.queue_depth));
  if (options_.wrap != nullptr) engine_ = options_.wrap(std::move(engine_));
  TESSERA_ASSIGN_OR_RETURN(
      pool_, BouncePool::Create(
                 options_.bounce_accounting != nullptr
                     ? options_.bounce_accounting
                     : std::make_shared<Accounting>("bounce", kUnlimited),
                 options_.bounce_memory, options_.piece_bytes,
                 options_.bounce_bytes / options_.piece_bytes));
  file_ = std::make_unique<AsyncFile>(*engine_, opened_.fd.get(), opened_.path,
                                      opened_.alignment);
  transfer_ =
      std::make_unique<BlockTransfer>(*file_, *pool_, options_.piece_bytes);
  TESSERA_ASSIGN_OR_RETURN(
      space_,
      FileSpace::Create(opened_.fd.get(), opened_.path, options_.space));
  if (!options_.keep) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      table_,
      BlockTable::Open(*file_, space_, options_.kept_blocks, options_.sync));
  return Recover();
}

// Later versions claim their space first; overwritten ones are dropped.
absl::Status FileTier::Recover() {
  std::vector<std::vector<BlockRecord>> found = table_->found();
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.front().generation > b.front().generation;
  });
  for (const std::vector<BlockRecord>& records : found) {
    TESSERA_RETURN_IF_ERROR(RecoverBlock(records));
  }
  std::sort(recovery_.lost.begin(), recovery_.lost.end());
  return absl::OkStatus();
}

absl::Status FileTier::RecoverBlock(const std::vector<BlockRecord>& records) {
  absl::MutexLock lock(&mutex_);
  for (const BlockRecord& record : records) {
    if (entries_.contains(record.key)) continue;
    absl::StatusOr<std::shared_ptr<const Version>> version = Restore(record);
    if (absl::IsDataLoss(version.status()) ||
        absl::IsInvalidArgument(version.status())) {
      continue;  // Damaged, or its space is in use.
    }
    TESSERA_RETURN_IF_ERROR(version.status());
    TESSERA_ASSIGN_OR_RETURN(
        Reservation room,
        Accounting::Reserve(accounting_, record.key, record.location.bytes,
                            record.info.purpose));
    Entry& entry = entries_[record.key];
    entry.version = *std::move(version);
    entry.slot = record.slot;
    entry.room = std::move(room);
    table_->Keep(record.slot, record.generation);
    ++recovery_.blocks;
    if (&record != &records.front()) ++recovery_.older;
    return absl::OkStatus();
  }
  recovery_.lost.push_back(records.front().key);
  table_->ReturnSlot(records.front().slot);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const FileTier::Version>> FileTier::Restore(
    const BlockRecord& record) {
  TESSERA_RETURN_IF_ERROR(CheckBlock(name(), record.key, record.info));
  auto version = std::make_shared<Version>(
      Version{.location = record.location, .info = record.info});
  const int64_t bytes = record.location.bytes;
  // A block without bytes has no space, whatever the offset in its record.
  TESSERA_ASSIGN_OR_RETURN(
      version->extent,
      space_->Claim(bytes == 0 ? 0 : record.location.offset, bytes));
  if (options_.verify) TESSERA_RETURN_IF_ERROR(Verify(version->location));
  return version;
}

absl::Status FileTier::Verify(const BlockLocation& location) {
  if (location.bytes == 0) return absl::OkStatus();
  const int64_t unit = location.checksums.unit_bytes;
  const int64_t window = std::min(
      location.bytes, std::max(unit, options_.bounce_bytes / unit * unit));
  TESSERA_ASSIGN_OR_RETURN(
      Buffer buffer, Buffer::Allocate(HostMemory(), static_cast<size_t>(window),
                                      static_cast<size_t>(FileSpace::kUnit)));
  for (int64_t at = 0; at < location.bytes; at += window) {
    const auto bytes =
        static_cast<size_t>(std::min(window, location.bytes - at));
    TESSERA_RETURN_IF_ERROR(AwaitDone([&](AsyncFile::Done done) {
      transfer_->Read(location, at, buffer.bytes().first(bytes),
                      std::move(done));
    }));
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload
