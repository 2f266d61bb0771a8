#include "offload/tier/file_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_macros.h"

namespace tessera::offload {

// A Put on its way.
struct FileTier::Store {
  std::string key;
  std::shared_ptr<Version> version;
  Completion completion;
};

FileTier::~FileTier() {
  // Threads of the engine may be at the end of what they do here.
  engine_.reset();
}

void FileTier::AwaitIdle(std::string_view key) {
  const auto idle = [this, key]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = entries_.find(key);
    return found == entries_.end() || !found->second.busy;
  };
  mutex_.Await(absl::Condition(&idle));
}

// Counts the bytes and keeps other writers of the key away.
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
  TESSERA_ASSIGN_OR_RETURN(const uint32_t slot, table_->TakeSlot());
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
  // It only shrinks.
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

// The block is written; now what points to it.
void FileTier::Record(std::shared_ptr<Store> store) {
  if (table_ == nullptr) {
    EndPut(store->key, store->version);
    store->completion.Finish(absl::OkStatus());
    return;
  }
  const Version& version = *store->version;
  BlockRecord record;
  record.generation = table_->NextGeneration();
  record.live = true;
  record.purpose = static_cast<uint8_t>(version.info.purpose);
  record.dtype = static_cast<uint8_t>(version.info.dtype);
  record.key = store->key;
  record.offset = version.location.offset;
  record.bytes = version.location.bytes;
  record.original_bytes = version.info.original_bytes;
  record.checksums = version.location.checksums;
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
  // `version` keeps its extent from being used again.
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

// Written before the block is forgotten: a record of its own outlives it.
absl::Status FileTier::Entomb(std::string_view key, uint32_t slot) {
  BlockRecord tombstone;
  tombstone.generation = table_->NextGeneration();
  tombstone.slot = slot;
  absl::Notification over;
  absl::Status status;
  table_->Write(std::move(tombstone), [&](absl::Status s) {
    status = std::move(s);
    over.Notify();
  });
  over.WaitForNotification();
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

}  // namespace tessera::offload
