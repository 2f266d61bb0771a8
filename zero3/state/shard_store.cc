#include "zero3/state/shard_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "offload/prefetch/prefetcher.h"

namespace tessera::zero3 {

ShardPrefetch::ShardPrefetch(const Options& options) : options_(options) {}

ShardPrefetch::~ShardPrefetch() = default;

absl::StatusOr<offload::Prefetcher*> ShardPrefetch::For(
    offload::MemoryTier& tier) {
  std::unique_ptr<offload::Prefetcher>& prefetcher = prefetchers_[&tier];
  if (prefetcher == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        prefetcher,
        offload::Prefetcher::Create(
            tier, {.budget = std::max<int64_t>(options_.near_bytes, 1),
                   .grows = true,
                   .resource = options_.device.memory,
                   .accounting = options_.device.accounting,
                   .prefetch = options_.reads_ahead}));
    if (in_step_) TESSERA_RETURN_IF_ERROR(prefetcher->BeginStep());
  }
  return prefetcher.get();
}

absl::Status ShardPrefetch::BeginStep() {
  if (in_step_) return absl::OkStatus();
  in_step_ = true;
  for (const auto& [tier, prefetcher] : prefetchers_) {
    if (prefetcher == nullptr) continue;
    TESSERA_RETURN_IF_ERROR(prefetcher->BeginStep());
  }
  return absl::OkStatus();
}

// Waits for different tiers add up; of their bounds the largest holds.
absl::StatusOr<ShardTraffic> ShardPrefetch::EndStep() {
  ShardTraffic traffic;
  if (!in_step_) return traffic;
  for (const auto& [tier, prefetcher] : prefetchers_) {
    if (prefetcher == nullptr) continue;
    TESSERA_ASSIGN_OR_RETURN(const offload::StepReport report,
                             prefetcher->EndStep());
    traffic.bytes_read += report.bytes_loaded;
    traffic.bytes_written += report.bytes_stored;
    traffic.stall_ns += report.stall_ns;
    traffic.least_stall_ns =
        std::max(traffic.least_stall_ns, report.least_stall_ns());
    traffic.near_bytes += prefetcher->budget();
  }
  in_step_ = false;
  return traffic;
}

using offload::Prefetcher;

ShardStore::ShardStore(std::vector<ShardBlock> blocks,
                       const ShardStoreOptions& options)
    : options_(options) {
  int64_t largest = 0;
  shards_.resize(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    largest = std::max(largest, blocks[i].bytes);
    shards_[i].block = std::move(blocks[i]);
  }
  if (options_.prefetch == nullptr) {
    options_.prefetch = std::make_shared<ShardPrefetch>(ShardPrefetch::Options{
        .near_bytes = 3 * largest, .device = options_.device});
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
    shard.view = {};
    if (shard.prefetcher != nullptr) {
      if (!shard.bytes.empty()) {
        shard.prefetcher->Done(shard.block.key).IgnoreError();
      }
      shard.prefetcher->Invalidate(shard.block.key).IgnoreError();
    }
    // The block does not exist if Create failed.
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
      shard.memory,
      AccountedMemory::Allocate(options_.device, shard.block.key,
                                shard.block.bytes, options_.purpose));
  shard.bytes = shard.memory.bytes();
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
  shard.is_rounded =
      !shard.block.tier->IsLossless(options_.purpose, shard.block.dtype);
  TESSERA_RETURN_IF_ERROR(PutZeroBuffer(shard));
  if (shard.block.tier->Map(shard.block.key).ok()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(shard.prefetcher,
                           options_.prefetch->For(*shard.block.tier));
  return absl::OkStatus();
}

absl::Status ShardStore::PutZeroBuffer(Shard& shard) {
  TESSERA_ASSIGN_OR_RETURN(
      const AccountedMemory buffer,
      AccountedMemory::Allocate(options_.device, shard.block.key,
                                shard.block.bytes, offload::Purpose::kBuffers));
  options_.device.ops->Zero(buffer.bytes());
  return shard.block.tier->Put(shard.block.key, buffer.bytes(),
                               {options_.purpose, shard.block.dtype});
}

void ShardStore::Announce(size_t index) {
  const Shard& shard = shards_[index];
  if (shard.prefetcher != nullptr) shard.prefetcher->Announce(shard.block.key);
}

// A block that cannot be mapped in place, or not now because memory in front of
// a stack is short, is loaded into near memory from now on.
absl::Status ShardStore::MapBlock(Shard& shard) {
  auto view = shard.block.tier->Map(shard.block.key);
  if (view.ok()) {
    shard.view = *std::move(view);
    shard.bytes = shard.view.bytes;
    return absl::OkStatus();
  }
  if (!absl::IsUnimplemented(view.status()) &&
      !absl::IsResourceExhausted(view.status())) {
    return view.status();
  }
  TESSERA_ASSIGN_OR_RETURN(shard.prefetcher,
                           options_.prefetch->For(*shard.block.tier));
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> ShardStore::Open(size_t index,
                                                      ShardAccess access) {
  Shard& shard = shards_[index];
  if (shard.block.bytes == 0 || shard.block.tier == nullptr) {
    return shard.bytes;
  }
  if (shard.prefetcher == nullptr) TESSERA_RETURN_IF_ERROR(MapBlock(shard));
  if (shard.prefetcher != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        shard.bytes, shard.prefetcher->Use(shard.block.key,
                                           access == ShardAccess::kOverwrite
                                               ? Prefetcher::Access::kOverwrite
                                               : Prefetcher::Access::kUpdate));
  }
  return shard.bytes;
}

absl::Status ShardStore::Close(size_t index, bool changed) {
  Shard& shard = shards_[index];
  if (shard.block.bytes == 0 || shard.block.tier == nullptr) {
    return absl::OkStatus();
  }
  shard.bytes = {};
  shard.view = {};
  if (shard.prefetcher == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(shard.prefetcher->Done(shard.block.key, changed));
  return changed && shard.is_rounded
             ? shard.prefetcher->PutAway(shard.block.key)
             : absl::OkStatus();
}

absl::Status ShardStore::Discard(size_t index) {
  const Shard& shard = shards_[index];
  return shard.prefetcher == nullptr
             ? absl::OkStatus()
             : shard.prefetcher->Invalidate(shard.block.key);
}

absl::Status ShardStore::Settle() {
  std::set<Prefetcher*> prefetchers;
  for (const Shard& shard : shards_) prefetchers.insert(shard.prefetcher);
  prefetchers.erase(nullptr);
  absl::Status status;
  for (Prefetcher* prefetcher : prefetchers) {
    status.Update(prefetcher->Flush());
  }
  return status;
}

void ShardStore::SetToZeros() {
  for (Shard& shard : shards_) {
    if (shard.block.tier != nullptr) continue;
    options_.device.ops->Zero(shard.bytes);
  }
}

}  // namespace tessera::zero3
