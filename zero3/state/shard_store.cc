#include "zero3/state/shard_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "offload/prefetch/prefetcher.h"

namespace tessera::zero3 {

StateDevice HostOf(const StateDevice& device) {
  StateDevice host;
  if (device.ops->computes()) return host;
  host.memory = device.queue->device().staging_memory();
  host.ops = device.ops;
  return host;
}

namespace {

// Memory in which tiers read and write blocks of `device`.
StateDevice NearDeviceOf(const StateDevice& device) {
  if (device.queue->is_immediate()) return device;
  StateDevice near = HostOf(device);
  near.memory = device.queue->device().staging_memory();
  return near;
}

}  // namespace

ShardPrefetch::ShardPrefetch(const Options& options)
    : options_(options),
      blocks_(options.device, BufferPool::Reuse::kDoubleBuffered) {}

ShardPrefetch::~ShardPrefetch() { AwaitWork(); }

absl::StatusOr<ShardPrefetch::CopyQueues*> ShardPrefetch::Copies() {
  Device& device = options_.device.queue->device();
  if (copies_.up == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(copies_.up, device.CreateQueue("upload"));
  }
  if (copies_.down == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(copies_.down, device.CreateQueue("download"));
  }
  return &copies_;
}

// Errors are returned by later calls of the queues.
void ShardPrefetch::AwaitWork() {
  options_.device.queue->Synchronize().IgnoreError();
  if (copies_.up != nullptr) copies_.up->Synchronize().IgnoreError();
  if (copies_.down != nullptr) copies_.down->Synchronize().IgnoreError();
}

absl::StatusOr<offload::Prefetcher*> ShardPrefetch::For(
    offload::MemoryTier& tier) {
  std::unique_ptr<offload::Prefetcher>& prefetcher = prefetchers_[&tier];
  if (prefetcher == nullptr) {
    const StateDevice near = NearDeviceOf(options_.device);
    TESSERA_ASSIGN_OR_RETURN(
        prefetcher,
        offload::Prefetcher::Create(
            tier, {.budget = std::max<int64_t>(options_.near_bytes, 1),
                   .grows = true,
                   .resource = near.memory,
                   .device = &near.queue->device(),
                   .accounting = near.accounting,
                   .prefetch = options_.reads_ahead}));
    if (in_step_) TESSERA_RETURN_IF_ERROR(prefetcher->BeginStep());
  }
  return prefetcher.get();
}

absl::Status ShardPrefetch::BeginStep() {
  if (in_step_) return absl::OkStatus();
  in_step_ = true;
  blocks_.BeginStep();
  for (const auto& [tier, prefetcher] : prefetchers_) {
    if (prefetcher == nullptr) continue;
    TESSERA_RETURN_IF_ERROR(prefetcher->BeginStep());
  }
  return absl::OkStatus();
}

// Waits for different tiers add up, but only the largest of their lower bounds
// holds for the sum.
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
  if (in_tier()) options_.prefetch->AwaitWork();
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
  TESSERA_RETURN_IF_ERROR(options_.device.ops->Zero(shard.bytes));
  return MarkWrite(shard);
}

absl::Status ShardStore::MarkWrite(Shard& shard) {
  if (!options_.marks_writes) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(shard.last_write, options_.device.Mark());
  return absl::OkStatus();
}

// The device's queue waits for the arrival; its mark then represents the
// arrival.
absl::Status ShardStore::AwaitArrival(Shard& shard) {
  if (shard.arrival.state() == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(options_.device.queue->Wait(shard.arrival));
  shard.arrival = {};
  return MarkWrite(shard);
}

absl::StatusOr<Event> ShardStore::ReadyAfter(size_t index,
                                             const QueuePoint& other) {
  const Shard& shard = shards_[index];
  const Event last = Later(other, shard.last_write).event;
  if (shard.arrival.state() == nullptr) return last;
  TESSERA_ASSIGN_OR_RETURN(auto* const copies, options_.prefetch->Copies());
  Queue& up = *copies->up;
  TESSERA_RETURN_IF_ERROR(up.Wait(last));
  TESSERA_RETURN_IF_ERROR(up.Wait(shard.arrival));
  return up.Record();
}

absl::Status ShardStore::PutZeros(Shard& shard) {
  const offload::BlockInfo info = {options_.purpose, shard.block.dtype};
  if (!on_device()) {
    auto view =
        shard.block.tier->MapNew(shard.block.key, shard.block.bytes, info);
    if (view.ok()) return options_.device.ops->Zero(view->bytes);
    if (!absl::IsUnimplemented(view.status())) return view.status();
  }
  shard.is_rounded =
      !shard.block.tier->IsLossless(options_.purpose, shard.block.dtype);
  TESSERA_RETURN_IF_ERROR(PutZeroBuffer(shard));
  if (!on_device() && shard.block.tier->Map(shard.block.key).ok()) {
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(shard.prefetcher,
                           options_.prefetch->For(*shard.block.tier));
  return absl::OkStatus();
}

absl::Status ShardStore::PutZeroBuffer(Shard& shard) {
  const StateDevice near = NearDeviceOf(options_.device);
  TESSERA_ASSIGN_OR_RETURN(
      const AccountedMemory buffer,
      AccountedMemory::Allocate(near, shard.block.key, shard.block.bytes,
                                offload::Purpose::kBuffers));
  TESSERA_RETURN_IF_ERROR(near.ops->Zero(buffer.bytes()));
  return shard.block.tier->Put(shard.block.key, buffer.bytes(),
                               {options_.purpose, shard.block.dtype});
}

void ShardStore::Announce(size_t index) {
  const Shard& shard = shards_[index];
  if (shard.prefetcher != nullptr) shard.prefetcher->Announce(shard.block.key);
}

// A block that cannot be mapped in place (permanently, or now because the first
// tier of a stack is full) is loaded into near memory from now on.
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
    if (access != ShardAccess::kElsewhere) {
      TESSERA_RETURN_IF_ERROR(AwaitArrival(shard));
    }
    return shard.bytes;
  }
  if (!on_device()) return OpenNear(shard, access);
  if (shard.opens == 0) TESSERA_RETURN_IF_ERROR(OpenOnDevice(shard, access));
  ++shard.opens;
  return shard.bytes;
}

absl::StatusOr<std::span<std::byte>> ShardStore::OpenNear(Shard& shard,
                                                          ShardAccess access) {
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

absl::Status ShardStore::OpenOnDevice(Shard& shard, ShardAccess access) {
  TESSERA_ASSIGN_OR_RETURN(
      AccountedMemory memory,
      options_.prefetch->blocks().Take(shard.block.key, shard.block.bytes));
  absl::StatusOr<std::span<std::byte>> near = OpenNear(shard, access);
  if (!near.ok()) {
    const Event last_use = memory.last_use().event;
    options_.prefetch->blocks().Give(std::move(memory), last_use);
    return near.status();
  }
  shard.near = *near;
  shard.memory = std::move(memory);
  shard.bytes = shard.memory.bytes();
  Queue& queue = *options_.device.queue;
  if (access == ShardAccess::kOverwrite) {
    TESSERA_RETURN_IF_ERROR(queue.Wait(shard.memory.last_use().event));
  } else {
    TESSERA_RETURN_IF_ERROR(Upload(shard));
    TESSERA_RETURN_IF_ERROR(queue.Wait(shard.near_read));
  }
  return MarkWrite(shard);
}

absl::Status ShardStore::Upload(Shard& shard) {
  TESSERA_ASSIGN_OR_RETURN(auto* const copies, options_.prefetch->Copies());
  Queue& up = *copies->up;
  TESSERA_RETURN_IF_ERROR(up.Wait(shard.memory.last_use().event));
  TESSERA_RETURN_IF_ERROR(up.Wait(shard.near_written));
  TESSERA_RETURN_IF_ERROR(up.Copy(shard.near, shard.bytes));
  TESSERA_ASSIGN_OR_RETURN(shard.near_read, up.Record());
  return absl::OkStatus();
}

absl::Status ShardStore::Download(Shard& shard) {
  TESSERA_ASSIGN_OR_RETURN(auto* const copies, options_.prefetch->Copies());
  Queue& down = *copies->down;
  TESSERA_ASSIGN_OR_RETURN(const Event written,
                           options_.device.queue->Record());
  TESSERA_RETURN_IF_ERROR(down.Wait(written));
  TESSERA_RETURN_IF_ERROR(down.Copy(shard.bytes, shard.near));
  TESSERA_ASSIGN_OR_RETURN(shard.near_written, down.Record());
  return absl::OkStatus();
}

absl::Status ShardStore::Close(size_t index, bool changed) {
  Shard& shard = shards_[index];
  if (shard.block.bytes == 0) return absl::OkStatus();
  if (changed) TESSERA_RETURN_IF_ERROR(MarkWrite(shard));
  if (shard.block.tier == nullptr) return AwaitArrival(shard);
  if (!on_device()) return CloseNear(shard, changed, Event());
  shard.is_changed |= changed;
  return --shard.opens > 0 ? absl::OkStatus() : CloseOnDevice(shard);
}

absl::StatusOr<std::span<std::byte>> ShardStore::OpenOnHost(
    size_t index, ShardAccess access) {
  Shard& shard = shards_[index];
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> near,
                           OpenNear(shard, access));
  for (Event* const last : {&shard.near_read, &shard.near_written}) {
    TESSERA_RETURN_IF_ERROR(std::exchange(*last, {}).Wait());
  }
  TESSERA_RETURN_IF_ERROR(options_.device.queue->device().HostAccess(
      WritesTo(near), "use a block of a tier"));
  return near;
}

absl::Status ShardStore::CloseOnHost(size_t index, bool changed) {
  return CloseNear(shards_[index], changed, Event());
}

absl::Status ShardStore::CloseOnDevice(Shard& shard) {
  const bool changed = std::exchange(shard.is_changed, false);
  BufferPool& blocks = options_.prefetch->blocks();
  if (changed) {
    TESSERA_RETURN_IF_ERROR(Download(shard));
    blocks.Give(std::exchange(shard.memory, {}), shard.near_written);
  } else {
    blocks.Give(std::exchange(shard.memory, {}));
  }
  shard.near = {};
  return CloseNear(shard, changed,
                   changed ? shard.near_written : shard.near_read);
}

absl::Status ShardStore::CloseNear(Shard& shard, bool changed, Event last_use) {
  shard.bytes = {};
  shard.view = {};
  if (shard.prefetcher == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      shard.prefetcher->Done(shard.block.key, changed, std::move(last_use)));
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
  const bool waits = !on_device() && !options_.writes_late;
  for (Prefetcher* prefetcher : prefetchers) {
    status.Update(waits ? prefetcher->Flush() : prefetcher->store_status());
  }
  return status;
}

absl::Status ShardStore::SetToZeros() {
  for (Shard& shard : shards_) {
    if (shard.block.tier != nullptr || shard.bytes.empty()) continue;
    TESSERA_RETURN_IF_ERROR(options_.device.ops->Zero(shard.bytes));
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3
