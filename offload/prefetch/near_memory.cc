#include "offload/prefetch/near_memory.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {

namespace {

constexpr size_t kAlignment = 4096;

}  // namespace

NearBufferPool::NearBufferPool(std::shared_ptr<MemoryResource> resource,
                               int64_t budget)
    : resource_(std::move(resource)), budget_(budget) {}

absl::StatusOr<Buffer> NearBufferPool::Take(int64_t bytes, Event* last_use) {
  if (bytes < 0 || bytes > free_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot take ", bytes, " bytes of near memory: ", free_bytes(), " of ",
        budget_, " are free"));
  }
  if (const auto same = kept_.find(bytes); same != kept_.end()) {
    Kept kept = std::move(same->second.back());
    same->second.pop_back();
    if (same->second.empty()) kept_.erase(same);
    kept_bytes_ -= bytes;
    taken_bytes_ += bytes;
    if (last_use == nullptr) {
      TESSERA_RETURN_IF_ERROR(kept.last_use.Wait());
    } else {
      *last_use = std::move(kept.last_use);
    }
    return std::move(kept.buffer);
  }
  Shrink(free_bytes() - bytes);
  TESSERA_ASSIGN_OR_RETURN(
      Buffer buffer,
      Buffer::Allocate(resource_, static_cast<size_t>(bytes), kAlignment));
  taken_bytes_ += bytes;
  return buffer;
}

void NearBufferPool::GiveBack(Buffer buffer, Event last_use) {
  const auto bytes = static_cast<int64_t>(buffer.size());
  taken_bytes_ -= bytes;
  if (bytes == 0) return;
  kept_bytes_ += bytes;
  kept_[bytes].push_back({std::move(buffer), std::move(last_use)});
}

void NearBufferPool::Trim() {
  Shrink(0);
  for (const Kept& kept : retired_) kept.last_use.Wait().IgnoreError();
  retired_.clear();
}

// Keeps at most `bytes`; frees the largest buffers first.
void NearBufferPool::Shrink(int64_t bytes) {
  const auto is_done = [](const Kept& kept) {
    return kept.last_use.Test().value_or(true);
  };
  retired_.erase(std::remove_if(retired_.begin(), retired_.end(), is_done),
                 retired_.end());
  while (kept_bytes_ > bytes) {
    const auto largest = std::prev(kept_.end());
    if (!is_done(largest->second.back())) {
      retired_.push_back(std::move(largest->second.back()));
    }
    largest->second.pop_back();
    kept_bytes_ -= largest->first;
    if (largest->second.empty()) kept_.erase(largest);
  }
}

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct NearMemory::Block {
  enum class Place { kFar, kLoading, kNear };

  bool idle() const { return place == Place::kNear && uses == 0 && !storing; }

  std::string key;
  int64_t bytes = 0;
  BlockInfo info;
  Place place = Place::kFar;
  Buffer memory;     // Unless kFar.
  Event last_use;    // By a device, of the memory.
  int64_t uses = 0;  // Users and waiters.
  bool dirty = false;
  bool storing = false;
  bool wanted = false;  // In wanted_.
  // Acquired for overwriting: neither loaded nor released as dirty yet.
  bool undefined = false;
  int64_t announced =
      -1;  // Position in the order of announcements, until it is used.
  absl::Status load_error;
  absl::Status store_error;           // The result of the last store.
  std::vector<int64_t> planned = {};  // Its uses in the plan, ascending.
  // Uses of the plan that overwrite other blocks and need its memory,
  // ascending.
  std::vector<int64_t> gives_way = {};
};

struct NearMemory::Job {
  Block* block = nullptr;
  bool store = false;
  BlockInfo info;  // For a store.
  Event ready;     // The transfer begins after it.
};

struct NearMemory::Plan {
  Replacement replacement;
  std::vector<Block*> blocks;     // By number in the replacement.
  std::vector<bool> store_after;  // By use.
  size_t next_load = 0;           // The use that is loaded next.
  int64_t cursor = 0;             // Uses that have begun.
};

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
  // A thread of the tier may still hold a reference to this object after the
  // transfer it reported, so memory is returned here, not by the destructor.
  absl::MutexLock lock(&mutex_);
  for (auto& [key, block] : blocks_) {
    block->place = Block::Place::kFar;
    pool_.GiveBack(std::exchange(block->memory, Buffer()),
                   std::exchange(block->last_use, Event()));
  }
  pool_.Trim();
  grown_.clear();
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

// Makes the block the next one to be loaded.
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

absl::Status NearMemory::Release(std::string_view key, bool dirty,
                                 Event last_use) {
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
  if (last_use.state() != nullptr) block.last_use = std::move(last_use);
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

absl::StatusOr<NearMemory::Block*> NearMemory::FindIdle(
    std::string_view key, std::string_view call) const {
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return nullptr;
  if (found->second->uses == 0) return found->second.get();
  return absl::FailedPreconditionError(absl::StrCat(
      "block ", QuoteKey(key), " is in use: call Done before ", call));
}

absl::Status NearMemory::PutAway(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  TESSERA_ASSIGN_OR_RETURN(Block* const found, FindIdle(key, "PutAway"));
  if (found == nullptr) return absl::OkStatus();
  Block& block = *found;
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
  TESSERA_ASSIGN_OR_RETURN(Block* const found, FindIdle(key, "Invalidate"));
  if (found == nullptr) return absl::OkStatus();
  Block& block = *found;
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

// The threads: they choose the next transfer and free memory for it.

void NearMemory::Work() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    if (const std::optional<Job> job = NextJob()) {
      mutex_.Unlock();
      Issue(*job);
      mutex_.Lock();
    } else if (closing_ && wanted_.empty()) {
      return;
    } else {
      work_.Wait(&mutex_);
    }
  }
}

// The listener keeps the operation and this object alive until it has been
// called.
void NearMemory::Issue(Job job) {
  absl::Status ready = job.ready.Wait();
  if (ready.ok() && options_.device != nullptr) {
    const std::span<std::byte> bytes = job.block->memory.bytes();
    ready = job.store ? options_.device->HostAccess(ReadsFrom(bytes), "store")
                      : options_.device->HostAccess(WritesTo(bytes), "load");
  }
  if (!ready.ok()) return Finish(job, ready);
  if (!job.store) {
    const absl::StatusOr<BlockStat> stat = far_.Stat(job.block->key);
    if (!stat.ok()) return Finish(job, stat.status());
    job.info = stat->info;
  }
  const std::span<std::byte> bytes = job.block->memory.bytes();
  auto operation = std::make_shared<Operation>(
      job.store ? far_.StartPut(job.block->key, bytes, job.info)
                : far_.StartGet(job.block->key, bytes));
  operation->OnDone(
      [self = shared_from_this(), operation, job](const absl::Status& status) {
        self->Finish(job, status);
      });
}

void NearMemory::Finish(const Job& job, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  Block& block = *job.block;
  const int64_t moved =
      status.ok() ? static_cast<int64_t>(block.memory.size()) : 0;
  (job.store ? stores_ : loads_).Finish(NowNs(), moved);
  if (job.store) {
    block.storing = false;
    block.dirty = !status.ok();
    block.store_error = Annotate(
        status, absl::StrCat("cannot store block ", QuoteKey(block.key)));
  } else if (status.ok()) {
    block.place = Block::Place::kNear;
    block.info = job.info;
  } else {
    block.load_error = Annotate(
        status, absl::StrCat("cannot load block ", QuoteKey(block.key)));
    block.place = Block::Place::kFar;
    pool_.GiveBack(std::move(block.memory),
                   std::exchange(block.last_use, Event()));
    block.memory = Buffer();
  }
  work_.SignalAll();
  changed_.SignalAll();
}

std::optional<NearMemory::Job> NearMemory::NextJob() {
  std::optional<Job> job;
  if (demanded_ != nullptr) {
    job = Demanded();
  } else if (plan_ != nullptr && loads_.HasRoom()) {
    job = Planned();
  } else if (loads_.HasRoom()) {
    job = Announced();
  }
  if (!job.has_value() && stores_.HasRoom()) job = Wanted();
  if (!job.has_value() && demanded_ != nullptr) {
    GrowOrRefuse();
    if (demanded_ != nullptr) job = Demanded();
  }
  return job;
}

// Does nothing while a transfer in flight may still free memory.
void NearMemory::GrowOrRefuse() {
  if (loads_.in_flight() + stores_.in_flight() > 0) return;
  const bool grows = options_.grows && FirstStoreError().ok();
  demand_error_ = grows ? Grow(*demanded_) : NoRoom(*demanded_);
  if (demand_error_.ok()) return;
  demanded_ = nullptr;
  changed_.SignalAll();
}

absl::Status NearMemory::Grow(const Block& block) {
  const int64_t more = block.bytes - pool_.free_bytes();
  if (options_.accounting != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(Reservation room,
                             Accounting::Reserve(options_.accounting, block.key,
                                                 more, Purpose::kBuffers));
    grown_.push_back(std::move(room));
  }
  pool_.Grow(more);
  return absl::OkStatus();
}

std::optional<NearMemory::Job> NearMemory::Demanded() {
  Block& block = *demanded_;
  if (block.place != Block::Place::kFar) {
    demanded_ = nullptr;
    return std::nullopt;
  }
  std::span<const Replacement::Eviction> planned;
  if (plan_ != nullptr) {
    const auto use = static_cast<size_t>(plan_->cursor);
    const auto& steps = plan_->replacement.steps();
    if (use < steps.size() && plan_->blocks[steps[use].block] == &block) {
      planned = steps[use].evict;
    }
  }
  if (!MakeRoom(block.bytes, planned, /*needed_at=*/-1)) return std::nullopt;
  demanded_ = nullptr;
  if (!demand_overwrites_) return Load(block);
  if (TakeMemory(block)) {
    block.place = Block::Place::kNear;
    block.undefined = true;
    changed_.SignalAll();
  }
  return std::nullopt;
}

// Loads in the order of the announcements; the first one without memory waits.
std::optional<NearMemory::Job> NearMemory::Announced() {
  while (!announced_.empty()) {
    Block& block = *announced_.front();
    if (block.place == Block::Place::kFar && block.announced >= 0) {
      if (!MakeRoom(block.bytes, {}, block.announced)) return std::nullopt;
      announced_.pop_front();
      return Load(block);
    }
    announced_.pop_front();
  }
  return std::nullopt;
}

// Loads start in plan order; if one cannot start, it and all later ones wait.
std::optional<NearMemory::Job> NearMemory::Planned() {
  const auto& steps = plan_->replacement.steps();
  for (; plan_->next_load < steps.size(); ++plan_->next_load) {
    const Replacement::Step& step = steps[plan_->next_load];
    Block& block = *plan_->blocks[step.block];
    const auto use = static_cast<int64_t>(plan_->next_load);
    if (!step.load || use < plan_->cursor) continue;
    if (block.place != Block::Place::kFar) {
      // It may have to be evicted, and loaded again, before that use.
      const auto next = std::lower_bound(block.gives_way.begin(),
                                         block.gives_way.end(), plan_->cursor);
      if (next != block.gives_way.end() && *next < use) return std::nullopt;
      continue;
    }
    if (!block.load_error.ok()) return std::nullopt;
    for (const Replacement::Eviction& e : step.evict) {
      if (plan_->cursor <= e.after) return std::nullopt;
    }
    if (!MakeRoom(block.bytes, step.evict, use)) return std::nullopt;
    ++plan_->next_load;
    return Load(block);
  }
  return std::nullopt;
}

std::optional<NearMemory::Job> NearMemory::Wanted() {
  for (auto at = wanted_.begin(); at != wanted_.end();) {
    Block& block = **at;
    const bool needed = block.place == Block::Place::kNear && block.dirty;
    if (needed && !block.idle()) {
      ++at;
      continue;
    }
    at = wanted_.erase(at);
    block.wanted = false;
    if (!needed) {
      changed_.SignalAll();
      continue;
    }
    block.storing = true;
    stores_.Start(NowNs());
    return Job{&block, /*store=*/true, block.info, block.last_use};
  }
  return std::nullopt;
}

// Precondition: free memory is sufficient. If allocation fails, the load fails.
bool NearMemory::TakeMemory(Block& block) {
  absl::StatusOr<Buffer> memory = pool_.Take(block.bytes, &block.last_use);
  if (!memory.ok()) {
    block.load_error =
        Annotate(memory.status(),
                 absl::StrCat("cannot load block ", QuoteKey(block.key)));
    changed_.SignalAll();
    return false;
  }
  block.memory = *std::move(memory);
  return true;
}

std::optional<NearMemory::Job> NearMemory::Load(Block& block) {
  if (!TakeMemory(block)) return std::nullopt;
  block.place = Block::Place::kLoading;
  loads_.Start(NowNs());
  return Job{&block, /*store=*/false, {}, block.last_use};
}

// Evicts the plan's victims first; if they are missing or insufficient, blocks
// needed after `needed_at`, the last needed first.
bool NearMemory::MakeRoom(int64_t bytes,
                          std::span<const Replacement::Eviction> planned,
                          int64_t needed_at) {
  int64_t coming = 0;
  for (const auto& [key, block] : blocks_) {
    if (block->storing && block->uses == 0) coming += block->bytes;
  }
  for (const Replacement::Eviction& e : planned) {
    if (plan_->blocks[e.block]->idle()) Free(*plan_->blocks[e.block], coming);
  }
  if (pool_.free_bytes() + coming < bytes) {
    for (Block* block : Victims(needed_at)) {
      if (pool_.free_bytes() + coming >= bytes) break;
      Free(*block, coming);
    }
  }
  return pool_.free_bytes() >= bytes;
}

void NearMemory::Free(Block& block, int64_t& coming) {
  if (!block.dirty) {
    Evict(block);
  } else if (block.store_error.ok()) {
    WantStored(block);
    coming += block.bytes;
  }
}

std::vector<NearMemory::Block*> NearMemory::Victims(int64_t needed_at) {
  std::vector<std::pair<int64_t, Block*>> candidates;
  for (const auto& [key, block] : blocks_) {
    if (!block->idle() || block->memory.size() == 0) continue;
    const int64_t next = NextUse(*block);
    if (next > needed_at) candidates.push_back({next, block.get()});
  }
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Block*> victims;
  for (const auto& [next, block] : candidates) victims.push_back(block);
  return victims;
}

int64_t NearMemory::NextUse(const Block& block) const {
  if (plan_ == nullptr && block.announced >= 0) return block.announced;
  if (plan_ == nullptr || block.planned.empty()) return kNever;
  const auto next = std::lower_bound(block.planned.begin(), block.planned.end(),
                                     plan_->cursor);
  if (next != block.planned.end()) return *next;
  return block.planned.front() +
         static_cast<int64_t>(plan_->replacement.steps().size());
}

void NearMemory::Evict(Block& block) {
  block.place = Block::Place::kFar;
  block.dirty = block.undefined = false;
  pool_.GiveBack(std::move(block.memory),
                 std::exchange(block.last_use, Event()));
  block.memory = Buffer();
}

void NearMemory::WantStored(Block& block) {
  if (block.wanted || block.storing) return;
  block.wanted = true;
  wanted_.push_back(&block);
  work_.SignalAll();
}

void NearMemory::StoreAllDirty() {
  for (auto& [key, block] : blocks_) {
    block->store_error = absl::OkStatus();
    if (block->dirty) WantStored(*block);
  }
}

absl::Status NearMemory::NoRoom(const Block& block) const {
  if (block.bytes > pool_.budget()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "block ", QuoteKey(block.key), " of ", block.bytes,
        " bytes is larger than the whole near memory of ", pool_.budget(),
        " bytes. Raise the budget or split the block"));
  }
  const std::string what =
      absl::StrCat("no room for block ", QuoteKey(block.key), " of ",
                   block.bytes, " bytes in a near memory of ", pool_.budget());
  if (const absl::Status stuck = FirstStoreError(); !stuck.ok()) {
    return Annotate(stuck, what);
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      what, ": ", pool_.taken_bytes(),
      " bytes are taken by blocks in use. Call Done earlier, or raise the "
      "budget"));
}

NearMemory::Traffic NearMemory::traffic() const {
  absl::MutexLock lock(&mutex_);
  const int64_t now = NowNs();
  return {.bytes_loaded = loads_.bytes(),
          .load_busy_ns = loads_.busy_ns(now),
          .bytes_stored = stores_.bytes(),
          .store_busy_ns = stores_.busy_ns(now),
          .load_depth = loads_.depth(),
          .store_depth = stores_.depth()};
}

}  // namespace tessera::offload
