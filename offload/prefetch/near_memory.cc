#include "offload/prefetch/near_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/prefetch/near_memory_state.h"

namespace tessera::offload {

NearMemory::NearMemory(MemoryTier& far, Options options)
    : far_(far),
      options_(std::move(options)),
      pool_(options_.resource, options_.budget),
      loads_(options_.most_loads),
      stores_(options_.most_stores) {}

NearMemory::~NearMemory() = default;

void NearMemory::Open() {
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

void NearMemory::Close() {
  {
    absl::MutexLock lock(&mutex_);
    plan_ = nullptr;
    for (auto& [key, block] : blocks_) block->uses = 0;
    StoreAllDirty();
    closing_ = true;
    work_.SignalAll();
    while (!wanted_.empty() || loads_.in_flight() + stores_.in_flight() > 0) {
      changed_.Wait(&mutex_);
    }
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

NearMemory::Block& NearMemory::At(std::string_view key) {
  auto found = blocks_.find(key);
  if (found == blocks_.end()) {
    found = blocks_.emplace(key, std::make_unique<Block>()).first;
    found->second->key = std::string(key);
  }
  return *found->second;
}

void NearMemory::Follow(std::optional<Replacement> replacement) {
  absl::MutexLock lock(&mutex_);
  plan_ = nullptr;
  for (auto& [key, block] : blocks_) {
    block->planned.clear();
    block->gives_way.clear();
    block->announced = -1;
    block->load_error = absl::OkStatus();
  }
  announced_.clear();
  if (!replacement.has_value()) return;
  plan_ = std::make_unique<Plan>();
  for (const Replacement::Block& block : replacement->blocks()) {
    plan_->blocks.push_back(&At(block.key));
    if (plan_->blocks.back()->place == Block::Place::kFar) {
      plan_->blocks.back()->bytes = block.bytes;
    }
  }
  const std::vector<Replacement::Step>& steps = replacement->steps();
  plan_->store_after.assign(steps.size(), false);
  for (size_t use = 0; use < steps.size(); ++use) {
    plan_->blocks[steps[use].block]->planned.push_back(
        static_cast<int64_t>(use));
    for (const Replacement::Eviction& e : steps[use].evict) {
      if (!steps[use].load) {
        plan_->blocks[e.block]->gives_way.push_back(static_cast<int64_t>(use));
      }
      if (!e.store) continue;
      if (e.stored_after < 0) {
        WantStored(*plan_->blocks[e.block]);
      } else {
        plan_->store_after[static_cast<size_t>(e.stored_after)] = true;
      }
    }
  }
  plan_->replacement = *std::move(replacement);
  work_.SignalAll();
}

absl::StatusOr<NearMemory::Acquired> NearMemory::Acquire(std::string_view key,
                                                         int64_t position,
                                                         bool overwrite) {
  absl::MutexLock lock(&mutex_);
  Block& block = At(key);
  block.announced = -1;
  std::erase(announced_, &block);
  if (!block.load_error.ok()) {
    return std::exchange(block.load_error, absl::OkStatus());
  }
  if (plan_ != nullptr && position >= 0) plan_->cursor = position;
  Acquired acquired;
  acquired.found = block.place == Block::Place::kNear      ? Found::kNear
                   : block.place == Block::Place::kLoading ? Found::kOnTheWay
                                                           : Found::kMissing;
  ++block.uses;
  absl::Status status;
  if (acquired.found == Found::kMissing) status = Request(block, overwrite);
  if (status.ok()) status = Await(block);
  if (!status.ok()) {
    --block.uses;
    work_.SignalAll();
    return status;
  }
  if (plan_ != nullptr && position >= 0) plan_->cursor = position + 1;
  work_.SignalAll();
  acquired.bytes = block.memory.bytes();
  return acquired;
}

void NearMemory::Announce(std::string_view key) {
  const absl::StatusOr<BlockStat> stat = far_.Stat(key);
  absl::MutexLock lock(&mutex_);
  if (plan_ != nullptr || !stat.ok()) return;
  Block& block = At(key);
  if (block.uses > 0 || block.announced >= 0) return;
  block.announced = announcements_++;
  if (block.place != Block::Place::kFar) return;
  block.bytes = stat->bytes;
  announced_.push_back(&block);
  work_.SignalAll();
}

// Makes it the next to be loaded.
absl::Status NearMemory::Request(Block& block, bool overwrite) {
  mutex_.Unlock();
  const absl::StatusOr<BlockStat> stat = far_.Stat(block.key);
  mutex_.Lock();
  if (!stat.ok()) return stat.status();
  if (block.place != Block::Place::kFar) return absl::OkStatus();
  block.bytes = stat->bytes;
  if (overwrite) block.info = stat->info;
  if (block.bytes > pool_.budget() && !options_.grows) return NoRoom(block);
  for (auto& [key, other] : blocks_) other->store_error = absl::OkStatus();
  demanded_ = &block;
  demand_overwrites_ = overwrite;
  demand_error_ = absl::OkStatus();
  work_.SignalAll();
  return absl::OkStatus();
}

absl::Status NearMemory::Await(Block& block) {
  while (block.place != Block::Place::kNear || block.storing) {
    if (!block.load_error.ok()) {
      return std::exchange(block.load_error, absl::OkStatus());
    }
    if (!demand_error_.ok()) {
      demanded_ = nullptr;
      return std::exchange(demand_error_, absl::OkStatus());
    }
    changed_.Wait(&mutex_);
  }
  return absl::OkStatus();
}

absl::Status NearMemory::Release(std::string_view key, bool dirty) {
  absl::MutexLock lock(&mutex_);
  const auto found = blocks_.find(key);
  if (found == blocks_.end() || found->second->uses == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("block ", QuoteKey(key),
                     " is not in use: call Done once for each Use"));
  }
  Block& block = *found->second;
  block.dirty |= dirty;
  block.undefined &= !dirty;
  --block.uses;
  if (block.undefined && block.uses == 0) Evict(block);
  if (plan_ != nullptr && block.dirty && block.uses == 0) {
    const auto next = std::lower_bound(block.planned.begin(),
                                       block.planned.end(), plan_->cursor);
    if (next != block.planned.begin() &&
        plan_->store_after[static_cast<size_t>(*std::prev(next))]) {
      WantStored(block);
    }
  }
  work_.SignalAll();
  return absl::OkStatus();
}

absl::Status NearMemory::Flush() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [key, block] : blocks_) {
    if (block->dirty && block->uses > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("block ", QuoteKey(key),
                       " is dirty and in use: call Done before Flush"));
    }
  }
  StoreAllDirty();
  work_.SignalAll();
  while (!wanted_.empty() || stores_.in_flight() > 0) changed_.Wait(&mutex_);
  return FirstStoreError();
}

absl::Status NearMemory::PutAway(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return absl::OkStatus();
  Block& block = *found->second;
  if (block.uses > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "block ", QuoteKey(key), " is in use: call Done before PutAway"));
  }
  block.store_error = absl::OkStatus();
  if (block.dirty) WantStored(block);
  while (block.place == Block::Place::kLoading || block.storing ||
         (block.dirty && block.store_error.ok())) {
    changed_.Wait(&mutex_);
  }
  if (block.dirty) return block.store_error;
  if (block.place == Block::Place::kNear) Evict(block);
  work_.SignalAll();
  return absl::OkStatus();
}

absl::Status NearMemory::Forget(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return absl::OkStatus();
  Block& block = *found->second;
  if (block.uses > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "block ", QuoteKey(key), " is in use: call Done before Invalidate"));
  }
  while (block.place == Block::Place::kLoading || block.storing) {
    changed_.Wait(&mutex_);
  }
  if (block.place == Block::Place::kNear) Evict(block);
  block.load_error = block.store_error = absl::OkStatus();
  work_.SignalAll();
  return absl::OkStatus();
}

int64_t NearMemory::budget() const {
  absl::MutexLock lock(&mutex_);
  return pool_.budget();
}

std::vector<NearBlock> NearMemory::Blocks() const {
  absl::MutexLock lock(&mutex_);
  std::vector<NearBlock> near;
  for (const auto& [key, block] : blocks_) {
    if (block->place == Block::Place::kFar) continue;
    near.push_back({key, static_cast<int64_t>(block->memory.size()),
                    block->dirty || block->storing});
  }
  return near;
}

std::vector<std::string> NearMemory::InUse() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, block] : blocks_) {
    if (block->uses > 0) keys.push_back(key);
  }
  return keys;
}

absl::Status NearMemory::store_status() const {
  absl::MutexLock lock(&mutex_);
  return FirstStoreError();
}

absl::Status NearMemory::FirstStoreError() const {
  for (const auto& [key, block] : blocks_) {
    if (block->dirty && !block->store_error.ok()) return block->store_error;
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload
