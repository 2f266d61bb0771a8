#include "offload/prefetch/near_memory.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

absl::Status TooLarge(std::string_view key, int64_t bytes, int64_t budget) {
  return absl::ResourceExhaustedError(
      absl::StrCat("block ", QuoteKey(key), " of ", bytes,
                   " bytes is larger than the whole near memory of ", budget,
                   " bytes. Raise the budget or split the block"));
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
  absl::Status load_error;
  absl::Status store_error;  // The result of the last store.
  // The positions of its expected uses, ascending. In an order, those of past
  // uses stay.
  std::vector<int64_t> positions = {};
};

struct NearMemory::Job {
  Block* block = nullptr;
  bool store = false;
  BlockInfo info;  // For a store.
  Event ready;     // The transfer begins after it.
};

struct NearMemory::ExpectedUse {
  Block* block = nullptr;
  bool overwrite = false;
};

NearMemory::NearMemory(MemoryTier& far, PrefetchOptions options)
    : far_(far),
      options_(std::move(options)),
      pool_(options_.resource, options_.budget),
      loads_(options_.most_loads),
      stores_(options_.most_stores) {
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

NearMemory::~NearMemory() = default;

void NearMemory::Close() {
  {
    absl::MutexLock lock(&mutex_);
    expected_.clear();
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

absl::Status NearMemory::Follow(std::span<const BlockUse> order) {
  std::vector<int64_t> sizes;
  for (const BlockUse& use : order) {
    TESSERA_ASSIGN_OR_RETURN(const BlockStat stat, far_.Stat(use.key));
    sizes.push_back(stat.bytes);
  }
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < order.size(); ++i) {
    if (sizes[i] > pool_.budget()) {
      return TooLarge(order[i].key, sizes[i], pool_.budget());
    }
  }
  for (auto& [key, block] : blocks_) {
    block->positions.clear();
    block->load_error = absl::OkStatus();
  }
  expected_.clear();
  positions_ = cursor_ = 0;
  follows_order_ = !order.empty();
  for (size_t i = 0; i < order.size(); ++i) {
    Block& block = At(order[i].key);
    if (block.place == Block::Place::kFar) block.bytes = sizes[i];
    Expect(block, order[i].overwrite);
  }
  work_.SignalAll();
  return absl::OkStatus();
}

void NearMemory::Expect(Block& block, bool overwrite) {
  block.positions.push_back(positions_);
  expected_[positions_++] = {&block, overwrite};
}

int64_t NearMemory::uses_left() const {
  absl::MutexLock lock(&mutex_);
  return follows_order_ ? positions_ - cursor_ : 0;
}

void NearMemory::Announce(std::string_view key) {
  const absl::StatusOr<BlockStat> stat = far_.Stat(key);
  absl::MutexLock lock(&mutex_);
  if (follows_order_ || !stat.ok()) return;
  Block& block = At(key);
  if (block.uses > 0 || !block.positions.empty()) return;
  if (block.place == Block::Place::kFar) block.bytes = stat->bytes;
  Expect(block, /*overwrite=*/false);
  work_.SignalAll();
}

absl::StatusOr<NearMemory::Acquired> NearMemory::Acquire(std::string_view key,
                                                         bool overwrite) {
  absl::MutexLock lock(&mutex_);
  Block& block = At(key);
  if (!block.load_error.ok()) {
    return std::exchange(block.load_error, absl::OkStatus());
  }
  Acquired acquired;
  acquired.found = block.place == Block::Place::kNear      ? Found::kNear
                   : block.place == Block::Place::kLoading ? Found::kOnTheWay
                                                           : Found::kMissing;
  acquired.in_order = NextUse(block) == cursor_;
  ++block.uses;
  absl::Status status;
  if (acquired.found == Found::kMissing) status = Request(block, overwrite);
  if (status.ok()) status = Await(block);
  if (status.ok()) {
    Pass(block);
  } else {
    --block.uses;
  }
  work_.SignalAll();
  if (!status.ok()) return status;
  acquired.bytes = block.memory.bytes();
  return acquired;
}

void NearMemory::Pass(Block& block) {
  const int64_t use = NextUse(block);
  if (use >= positions_) return;
  if (!follows_order_) {
    expected_.erase(use);
    block.positions.clear();
    return;
  }
  cursor_ = use + 1;
  expected_.erase(expected_.begin(), expected_.lower_bound(cursor_));
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
  // Without this, loads would wait for stores that could have ended before.
  if (follows_order_ && block.dirty && block.uses == 0 &&
      NextUse(block) >= cursor_ + options_.look_ahead &&
      2 * pool_.free_bytes() < pool_.budget()) {
    WantStored(block);
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
    near.push_back({key, static_cast<int64_t>(block->memory.size())});
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
  } else if (loads_.HasRoom()) {
    job = Ahead();
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
  if (!MakeRoom(block.bytes, /*needed_at=*/-1)) return std::nullopt;
  demanded_ = nullptr;
  if (!demand_overwrites_) return Load(block);
  if (TakeMemory(block)) {
    block.place = Block::Place::kNear;
    block.undefined = true;
    changed_.SignalAll();
  }
  return std::nullopt;
}

// If a load cannot start, all later ones wait, too. Memory of blocks to be
// overwritten is kept free.
std::optional<NearMemory::Job> NearMemory::Ahead() {
  int64_t held = 0, reserved = 0;
  int uses = 0;
  for (const auto& [position, use] : expected_) {
    if (++uses > options_.look_ahead) break;
    Block& block = *use.block;
    if (NextUse(block) != position) continue;
    const bool evicts = 2 * held <= pool_.budget();
    held += block.bytes;
    if (block.place != Block::Place::kFar) continue;
    if (!block.load_error.ok()) break;
    const int64_t bytes = reserved + block.bytes;
    if (!(evicts ? MakeRoom(bytes, position) : pool_.free_bytes() >= bytes)) {
      break;
    }
    if (!use.overwrite) return Load(block);
    reserved = bytes;
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

bool NearMemory::MakeRoom(int64_t bytes, int64_t needed_at) {
  int64_t coming = 0;
  for (const auto& [key, block] : blocks_) {
    if (block->storing && block->uses == 0) coming += block->bytes;
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

// The order is assumed to repeat.
int64_t NearMemory::NextUse(const Block& block) const {
  if (block.positions.empty()) return kNever;
  const auto next =
      std::lower_bound(block.positions.begin(), block.positions.end(), cursor_);
  return next != block.positions.end() ? *next
                                       : block.positions.front() + positions_;
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
    return TooLarge(block.key, block.bytes, pool_.budget());
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
          .bytes_stored = stores_.bytes()};
}

}  // namespace tessera::offload
