#include "offload/tier/host_tier.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {

struct HostTier::Block {
  absl::Mutex mutex;
  bool detached ABSL_GUARDED_BY(mutex) = false;  // dropped or replaced
  BlockInfo info ABSL_GUARDED_BY(mutex);
  // The memory is freed before its bytes stop counting.
  Reservation room;
  Buffer memory;
};

namespace {

void CopyInto(std::byte* out, std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
}

}  // namespace

HostTier::HostTier(std::shared_ptr<Accounting> accounting,
                   std::shared_ptr<MemoryResource> resource)
    : accounting_(std::move(accounting)), resource_(std::move(resource)) {}

HostTier::~HostTier() = default;

std::shared_ptr<HostTier::Block> HostTier::Find(std::string_view key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = blocks_.find(key);
  return found == blocks_.end() ? nullptr : found->second;
}

// Returns false if there is no block of this size under `key`.
bool HostTier::Overwrite(std::string_view key, std::span<const std::byte> bytes,
                         BlockInfo info) {
  while (const std::shared_ptr<Block> block = Find(key)) {
    if (block->memory.size() != bytes.size()) return false;
    absl::MutexLock lock(&block->mutex);
    if (block->detached) continue;
    CopyInto(block->memory.data(), bytes);
    block->info = info;
    block->room.SetPurpose(info.purpose);
    return true;
  }
  return false;
}

absl::StatusOr<std::shared_ptr<HostTier::Block>> HostTier::NewBlock(
    std::string_view key, size_t bytes, BlockInfo info) {
  auto block = std::make_shared<Block>();
  TESSERA_ASSIGN_OR_RETURN(
      block->room,
      Accounting::Reserve(accounting_, key, static_cast<int64_t>(bytes),
                          info.purpose));
  TESSERA_ASSIGN_OR_RETURN(
      block->memory, Buffer::Allocate(resource_, bytes),
      Annotate(_, absl::StrCat("tier ", name(), ": block ", QuoteKey(key),
                               " of ", bytes, " bytes")));
  absl::MutexLock lock(&block->mutex);
  block->info = info;
  return block;
}

void HostTier::Publish(std::string_view key, std::shared_ptr<Block> block) {
  {
    absl::MutexLock lock(&mutex_);
    std::swap(blocks_.try_emplace(std::string(key)).first->second, block);
  }
  if (block == nullptr) return;
  absl::MutexLock lock(&block->mutex);
  block->detached = true;  // The lock is released before `block` is destroyed.
}

Operation HostTier::StartPut(std::string_view key,
                             std::span<const std::byte> bytes, BlockInfo info) {
  if (absl::Status bad = CheckBlock(name(), key, info); !bad.ok()) {
    return Operation(std::move(bad));
  }
  if (Overwrite(key, bytes, info)) return Operation();
  absl::StatusOr<std::shared_ptr<Block>> block =
      NewBlock(key, bytes.size(), info);
  if (!block.ok()) return Operation(block.status());
  CopyInto((*block)->memory.data(), bytes);
  Publish(key, *std::move(block));
  return Operation();
}

absl::StatusOr<BlockView> HostTier::MapNew(std::string_view key, int64_t bytes,
                                           BlockInfo info) {
  TESSERA_RETURN_IF_ERROR(CheckBlock(name(), key, info));
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("tier ", name(), ": block ",
                                                   QuoteKey(key), " of ", bytes,
                                                   " bytes; at least 0"));
  }
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Block> block,
                           NewBlock(key, static_cast<size_t>(bytes), info));
  Publish(key, block);
  const std::span<std::byte> view = block->memory.bytes();
  return BlockView{view, std::move(block)};
}

Operation HostTier::StartRead(std::string_view key,
                              std::optional<int64_t> offset,
                              std::span<std::byte> out) {
  const std::shared_ptr<Block> block = Find(key);
  if (block == nullptr) return Operation(NoSuchBlock(name(), key));
  absl::Status range =
      CheckRange(name(), key, static_cast<int64_t>(block->memory.size()),
                 offset, out.size());
  if (!range.ok()) return Operation(std::move(range));
  absl::ReaderMutexLock lock(&block->mutex);
  CopyInto(out.data(),
           block->memory.bytes().subspan(
               static_cast<size_t>(offset.value_or(0)), out.size()));
  return Operation();
}

absl::Status HostTier::Drop(std::string_view key) {
  std::shared_ptr<Block> block;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = blocks_.find(key);
    if (found == blocks_.end()) return NoSuchBlock(name(), key);
    block = std::move(found->second);
    blocks_.erase(found);
  }
  absl::MutexLock lock(&block->mutex);
  block->detached = true;
  return absl::OkStatus();
}

absl::StatusOr<BlockStat> HostTier::Stat(std::string_view key) const {
  const std::shared_ptr<Block> block = Find(key);
  if (block == nullptr) return NoSuchBlock(name(), key);
  absl::ReaderMutexLock lock(&block->mutex);
  const auto bytes = static_cast<int64_t>(block->memory.size());
  return BlockStat{bytes, bytes, block->info};
}

std::vector<std::string> HostTier::Keys() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  keys.reserve(blocks_.size());
  for (const auto& [key, block] : blocks_) keys.push_back(key);
  return keys;
}

std::vector<TierUsage> HostTier::usage() const {
  return {{std::string(name()), accounting_->usage()}};
}

absl::StatusOr<BlockView> HostTier::Map(std::string_view key) {
  std::shared_ptr<Block> block = Find(key);
  if (block == nullptr) return NoSuchBlock(name(), key);
  const std::span<std::byte> bytes = block->memory.bytes();
  return BlockView{bytes, std::move(block)};
}

}  // namespace tessera::offload
