#include "zero3/state/shards/shard_store.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

// Shards that are on their way to the tier while others are worked on.
constexpr size_t kMostWrites = 2;

}  // namespace

ShardStore::ShardStore(std::vector<ShardBlock> blocks, offload::Purpose purpose,
                       offload::MemoryTier* tier,
                       std::shared_ptr<offload::Accounting> device)
    : purpose_(purpose), tier_(tier), device_(std::move(device)) {
  shards_.resize(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    shards_[i].block = std::move(blocks[i]);
  }
}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Create(
    std::vector<ShardBlock> blocks, offload::Purpose purpose,
    offload::MemoryTier* tier, std::shared_ptr<offload::Accounting> device) {
  std::unique_ptr<ShardStore> store(
      new ShardStore(std::move(blocks), purpose, tier, std::move(device)));
  TESSERA_RETURN_IF_ERROR(store->in_tier() ? store->PutZeros()
                                           : store->AllocateAll());
  return store;
}

ShardStore::~ShardStore() {
  if (tier_ == nullptr) return;
  for (Shard& shard : shards_) {
    shard.load.reset();
    shard.write.reset();
    shard.view = {};
    // Not there where Create has failed.
    if (shard.block.bytes > 0) tier_->Drop(shard.block.key).IgnoreError();
  }
}

absl::Status ShardStore::AllocateAll() {
  for (Shard& shard : shards_) {
    TESSERA_ASSIGN_OR_RETURN(
        shard.buffer, AccountedMemory::Allocate(device_, shard.block.key,
                                                shard.block.bytes, purpose_));
    shard.bytes = shard.buffer.bytes();
    std::fill(shard.bytes.begin(), shard.bytes.end(), std::byte{0});
  }
  return absl::OkStatus();
}

absl::Status ShardStore::PutZeros() {
  int64_t largest = 0;
  for (const Shard& shard : shards_) {
    largest = std::max(largest, shard.block.bytes);
  }
  const std::vector<std::byte> zeros(static_cast<size_t>(largest));
  for (const Shard& shard : shards_) {
    if (shard.block.bytes == 0) continue;
    TESSERA_RETURN_IF_ERROR(tier_->Put(
        shard.block.key,
        std::span(zeros).first(static_cast<size_t>(shard.block.bytes)),
        {purpose_, shard.block.dtype}));
  }
  return absl::OkStatus();
}

void ShardStore::Announce(size_t index) {
  Shard& shard = shards_[index];
  if (tier_ == nullptr || maps_ || !shard.buffer.bytes().empty() ||
      shard.block.bytes == 0) {
    return;
  }
  // Where it fails, Open tries again and says why.
  StartLoad(shard).IgnoreError();
}

absl::Status ShardStore::AllocateBuffer(Shard& shard) {
  TESSERA_ASSIGN_OR_RETURN(
      shard.buffer,
      AccountedMemory::Allocate(device_, shard.block.key, shard.block.bytes,
                                offload::Purpose::kBuffers));
  return absl::OkStatus();
}

absl::Status ShardStore::StartLoad(Shard& shard) {
  TESSERA_RETURN_IF_ERROR(AllocateBuffer(shard));
  shard.load = tier_->StartGet(shard.block.key, shard.buffer.bytes());
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> ShardStore::Open(size_t index,
                                                      ShardAccess access) {
  Shard& shard = shards_[index];
  if (shard.block.bytes == 0 || tier_ == nullptr) return shard.bytes;
  if (shard.changed) {
    // Its buffer is at hand; should the write have failed, Settle says so.
    FinishWrite(shard).IgnoreError();
  } else if (maps_) {
    auto view = tier_->Map(shard.block.key);
    if (view.ok()) {
      shard.view = *std::move(view);
      shard.bytes = shard.view.bytes;
      return shard.bytes;
    }
    if (!absl::IsUnimplemented(view.status())) return view.status();
    maps_ = false;
  }
  if (shard.buffer.bytes().empty()) {
    TESSERA_RETURN_IF_ERROR(access == ShardAccess::kOverwrite
                                ? AllocateBuffer(shard)
                                : StartLoad(shard));
  }
  if (shard.load) {
    const absl::Status loaded = shard.load->Wait();
    shard.load.reset();
    if (!loaded.ok()) {
      shard.buffer = {};
      return loaded;
    }
  }
  shard.bytes = shard.buffer.bytes();
  return shard.bytes;
}

absl::Status ShardStore::Close(size_t index, bool changed) {
  Shard& shard = shards_[index];
  if (shard.block.bytes == 0 || tier_ == nullptr) return absl::OkStatus();
  shard.bytes = {};
  if (shard.view.hold != nullptr) {
    shard.view = {};
    return absl::OkStatus();
  }
  shard.changed = shard.changed || changed;
  if (!shard.changed) {
    shard.buffer = {};
    return absl::OkStatus();
  }
  StartWrite(shard);
  writing_.push_back(index);
  return LimitWrites(kMostWrites);
}

void ShardStore::StartWrite(Shard& shard) {
  shard.write = tier_->StartPut(shard.block.key, shard.buffer.bytes(),
                                {purpose_, shard.block.dtype});
}

// The buffer stays; it is as the tier where that succeeds.
absl::Status ShardStore::FinishWrite(Shard& shard) {
  const bool was_started = shard.write.has_value();
  if (!was_started) StartWrite(shard);
  absl::Status written = shard.write->Wait();
  // There may be room by now.
  if (!written.ok() && was_started) {
    StartWrite(shard);
    written = shard.write->Wait();
  }
  shard.write.reset();
  shard.changed = !written.ok();
  return written;
}

absl::Status ShardStore::LimitWrites(size_t most) {
  while (writing_.size() > most) {
    Shard& shard = shards_[writing_.front()];
    writing_.pop_front();
    TESSERA_RETURN_IF_ERROR(FinishAndFree(shard));
  }
  return absl::OkStatus();
}

absl::Status ShardStore::FinishAndFree(Shard& shard) {
  // Opened again, or done.
  if (!shard.changed || !shard.bytes.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(FinishWrite(shard));
  shard.buffer = {};
  return absl::OkStatus();
}

absl::Status ShardStore::Settle() {
  writing_.clear();
  for (Shard& shard : shards_) {
    TESSERA_RETURN_IF_ERROR(FinishAndFree(shard));
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3
