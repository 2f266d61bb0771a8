#include "tools/train/predict/counting_tier.h"

#include "base/status_macros.h"

namespace tessera::train {

using offload::Operation;

absl::StatusOr<std::shared_ptr<CountingTier::Block>> CountingTier::Replace(
    std::string_view key, int64_t bytes, offload::BlockInfo info) {
  auto block = std::make_shared<Block>();
  block->bytes = bytes;
  block->info = info;
  TESSERA_ASSIGN_OR_RETURN(
      block->room,
      offload::Accounting::Reserve(accounting_, key, bytes, info.purpose));
  if (memory_ != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        block->memory, Buffer::Allocate(memory_, static_cast<size_t>(bytes)));
  }
  blocks_.insert_or_assign(std::string(key), block);
  return block;
}

absl::StatusOr<offload::BlockView> CountingTier::Map(std::string_view key) {
  if (!in_place_) return MemoryTier::Map(key);
  absl::MutexLock lock(&mutex_);
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return offload::NoSuchBlock(name(), key);
  return offload::BlockView{found->second->memory.bytes(), found->second};
}

absl::StatusOr<offload::BlockView> CountingTier::MapNew(
    std::string_view key, int64_t bytes, offload::BlockInfo info) {
  if (!in_place_) return MemoryTier::MapNew(key, bytes, info);
  absl::MutexLock lock(&mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Block> block,
                           Replace(key, bytes, info));
  return offload::BlockView{block->memory.bytes(), block};
}

Operation CountingTier::StartPut(std::string_view key,
                                 std::span<const std::byte> bytes,
                                 offload::BlockInfo info) {
  const auto size = static_cast<int64_t>(bytes.size());
  absl::MutexLock lock(&mutex_);
  const auto found = blocks_.find(key);
  if (found != blocks_.end() && found->second->bytes == size) {
    found->second->info = info;
    found->second->room.SetPurpose(info.purpose);
    return Operation();
  }
  return Operation(Replace(key, size, info).status());
}

Operation CountingTier::StartRead(std::string_view key,
                                  std::optional<int64_t> offset,
                                  std::span<std::byte> out) {
  absl::MutexLock lock(&mutex_);
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) {
    return Operation(offload::NoSuchBlock(name(), key));
  }
  return Operation(offload::CheckRange(name(), key, found->second->bytes,
                                       offset, out.size()));
}

absl::Status CountingTier::Drop(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return offload::NoSuchBlock(name(), key);
  blocks_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<offload::BlockStat> CountingTier::Stat(
    std::string_view key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return offload::NoSuchBlock(name(), key);
  return offload::BlockStat{found->second->bytes, found->second->bytes,
                            found->second->info};
}

std::vector<std::string> CountingTier::Keys() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, block] : blocks_) keys.push_back(key);
  return keys;
}

}  // namespace tessera::train
