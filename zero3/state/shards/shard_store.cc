#include "zero3/state/shards/shard_store.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace tessera::zero3 {

ShardStore::ShardStore(std::vector<ShardBlock> blocks,
                       const ShardStoreOptions& options)
    : options_(options) {
  shards_.resize(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    shards_[i].block = std::move(blocks[i]);
  }
}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Create(
    std::vector<ShardBlock> blocks, const ShardStoreOptions& options) {
  std::unique_ptr<ShardStore> store(new ShardStore(std::move(blocks), options));
  TESSERA_RETURN_IF_ERROR(store->AllocateAll());
  return store;
}

ShardStore::~ShardStore() {
  for (Shard& shard : shards_) {
    if (shard.block.tier == nullptr || shard.block.bytes == 0) continue;
    shard.load.reset();
    shard.write.reset();
    shard.view = {};
    // Not there where Create has failed.
    shard.block.tier->Drop(shard.block.key).IgnoreError();
  }
}

bool ShardStore::in_tier() const {
  return std::any_of(shards_.begin(), shards_.end(), [](const Shard& shard) {
    return shard.block.tier != nullptr;
  });
}

absl::Status ShardStore::AllocateAll() {
  for (Shard& shard : shards_) {
    if (shard.block.bytes == 0) continue;
    TESSERA_RETURN_IF_ERROR(shard.block.tier == nullptr ? AllocateHere(shard)
                                                        : PutZeros(shard));
  }
  return absl::OkStatus();
}

absl::Status ShardStore::AllocateHere(Shard& shard) {
  TESSERA_ASSIGN_OR_RETURN(
      shard.buffer,
      AccountedMemory::Allocate(options_.device, shard.block.key,
                                shard.block.bytes, options_.purpose));
  shard.bytes = shard.buffer.bytes();
  options_.device.ops->Zero(shard.bytes);
  return absl::OkStatus();
}

absl::Status ShardStore::PutZeros(Shard& shard) {
  const offload::BlockInfo info = {options_.purpose, shard.block.dtype};
  auto view =
      shard.block.tier->MapNew(shard.block.key, shard.block.bytes, info);
  if (view.ok()) {
    options_.device.ops->Zero(view->bytes);
    return absl::OkStatus();
  }
  if (!absl::IsUnimplemented(view.status())) return view.status();
  TESSERA_RETURN_IF_ERROR(AllocateBuffer(shard));
  const std::span<std::byte> zeros = shard.buffer.bytes();
  options_.device.ops->Zero(zeros);
  const absl::Status put = shard.block.tier->Put(shard.block.key, zeros, info);
  shard.buffer = {};
  TESSERA_RETURN_IF_ERROR(put);
  // Announce reads ahead only what cannot be used in place.
  shard.maps =
      !absl::IsUnimplemented(shard.block.tier->Map(shard.block.key).status());
  return absl::OkStatus();
}

void ShardStore::Announce(size_t index) {
  Shard& shard = shards_[index];
  if (shard.block.tier == nullptr || shard.maps || shard.block.bytes == 0 ||
      !shard.buffer.bytes().empty()) {
    return;
  }
  // Where it fails, Open tries again and says why.
  StartLoad(shard).IgnoreError();
}

absl::Status ShardStore::AllocateBuffer(Shard& shard) {
  TESSERA_ASSIGN_OR_RETURN(
      shard.buffer,
      AccountedMemory::Allocate(options_.device, shard.block.key,
                                shard.block.bytes, offload::Purpose::kBuffers));
  return absl::OkStatus();
}

// False where the bytes cannot be reached in place, or not now.
absl::StatusOr<bool> ShardStore::MapBlock(Shard& shard) {
  auto view = shard.block.tier->Map(shard.block.key);
  if (!view.ok()) {
    shard.maps = shard.maps && !absl::IsUnimplemented(view.status());
    // A stack has no room in front.
    if (!shard.maps || absl::IsResourceExhausted(view.status())) return false;
    return view.status();
  }
  shard.view = *std::move(view);
  shard.bytes = shard.view.bytes;
  return true;
}

absl::Status ShardStore::StartLoad(Shard& shard) {
  TESSERA_RETURN_IF_ERROR(AllocateBuffer(shard));
  shard.load =
      shard.block.tier->StartGet(shard.block.key, shard.buffer.bytes());
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> ShardStore::Open(size_t index,
                                                      ShardAccess access) {
  Shard& shard = shards_[index];
  if (shard.block.bytes == 0 || shard.block.tier == nullptr) {
    return shard.bytes;
  }
  if (shard.changed) {
    // Its buffer is at hand; should the write have failed, Settle says so.
    FinishWrite(shard).IgnoreError();
  } else if (shard.maps && shard.buffer.bytes().empty()) {
    TESSERA_ASSIGN_OR_RETURN(const bool is_mapped, MapBlock(shard));
    if (is_mapped) return shard.bytes;
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
  if (shard.block.bytes == 0 || shard.block.tier == nullptr) {
    return absl::OkStatus();
  }
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
  return LimitWrites(options_.writes_behind);
}

void ShardStore::StartWrite(Shard& shard) {
  shard.write =
      shard.block.tier->StartPut(shard.block.key, shard.buffer.bytes(),
                                 {options_.purpose, shard.block.dtype});
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

void ShardStore::SetToZeros() {
  for (Shard& shard : shards_) {
    if (shard.block.tier != nullptr) continue;
    options_.device.ops->Zero(shard.bytes);
  }
}

}  // namespace tessera::zero3
