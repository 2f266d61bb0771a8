#include "collectives/testing/weak_memory.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace tessera {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr int64_t kMostSteps = 100'000;

bool Acquires(std::memory_order order) {
  return order == std::memory_order_acquire ||
         order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}
bool Releases(std::memory_order order) {
  return order == std::memory_order_release ||
         order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

// "function line:column".
std::string SiteOf(const std::source_location& where) {
  std::string_view function = where.function_name();
  function = function.substr(0, function.find('('));
  function.remove_prefix(function.rfind(':') + 1);
  return std::string(function) + " " + std::to_string(where.line()) + ":" +
         std::to_string(where.column());
}

}  // namespace

void WeakMemory::Knowledge::Add(const Knowledge& other) {
  for (size_t i = 0; i < kMostThreads; ++i) {
    clock[i] = std::max(clock[i], other.clock[i]);
  }
  if (oldest.size() < other.oldest.size()) oldest.resize(other.oldest.size());
  for (size_t i = 0; i < other.oldest.size(); ++i) {
    oldest[i] = std::max(oldest[i], other.oldest[i]);
  }
}

std::string WeakMemory::Explore(int deviations, const std::string& weakened,
                                const std::function<Threads()>& start) {
  weakened_ = weakened;
  trail_.clear();
  failure_.clear();
  executions_ = 0;
  do {
    Execute(deviations, start);
  } while (failure_.empty() && NextExecution());
  return failure_;
}

// Advances to the next path; false after the last one.
bool WeakMemory::NextExecution() {
  while (!trail_.empty()) {
    Choice& last = trail_.back();
    if (++last.taken < last.count) return true;
    trail_.pop_back();
  }
  return false;
}

// Returns a choice of [0, count); 0 is no deviation.
size_t WeakMemory::Choose(size_t count) {
  if (count <= 1 || left_ == 0 || !failure_.empty()) return 0;
  if (depth_ == trail_.size()) trail_.push_back({0, count});
  const size_t taken = trail_[depth_++].taken;
  if (taken != 0) --left_;
  return taken;
}

void WeakMemory::Execute(int deviations,
                         const std::function<Threads()>& start) {
  ++executions_;
  depth_ = 0;
  left_ = deviations;
  steps_ = 0;
  locations_.clear();
  sequential_.clear();
  plain_.clear();
  if (!allocations_.empty()) {
    std::memset(shared().data(), 0, allocations_.back().end);
    allocations_.clear();
  }
  // Ones, so that nothing divides by what is read there.
  std::fill_n(reinterpret_cast<uint64_t*>(shared().data()), kNullBytes / 8, 1);
  for (Thread& thread : threads_) {
    thread.known = thread.unfenced = thread.fenced = {};
    thread.stale.clear();
    thread.waits_for = nullptr;
    thread.done = true;
  }
  self_ = 0;
  bodies_ = start();
  running_ = this;
  for (size_t i = 0; i < bodies_.size(); ++i) {
    Thread& thread = threads_[i];
    thread.done = false;
    // Effects of `start` happen before all threads.
    thread.known.clock = threads_[0].known.clock;
    thread.known.clock[i] = 1;
    if (thread.stack == nullptr) {
      thread.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    }
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, &WeakMemory::Enter, 0);
  }
  swapcontext(&outside_, &threads_[0].context);
  running_ = nullptr;
  bodies_.clear();
}

void WeakMemory::Enter() {
  WeakMemory& memory = *running_;
  try {
    memory.bodies_[memory.self_]();
  } catch (const Abandoned&) {
  }
  memory.self().done = true;
  memory.SwitchToNext();
}

void WeakMemory::Fail(const std::string& what) {
  if (failure_.empty()) {
    failure_ = "thread " + std::to_string(self_) + ": " + what;
  }
}

void WeakMemory::SwitchTo(size_t thread) {
  if (thread == self_) return;
  ucontext_t& from = self().context;
  self_ = thread;
  swapcontext(&from, &threads_[thread].context);
}

// Continues another thread, or, after the last one, outside.
void WeakMemory::SwitchToNext() {
  self().stale.clear();
  const auto is_ready = [this](const Thread& thread) {
    return !thread.done && thread.waits_for == nullptr;
  };
  const auto is_done = [](const Thread& thread) { return thread.done; };
  if (std::all_of(threads_.begin(), threads_.end(), is_done)) {
    setcontext(&outside_);
  }
  if (std::none_of(threads_.begin(), threads_.end(), is_ready)) {
    Fail("all threads sleep");
  }
  if (!failure_.empty()) {
    for (Thread& thread : threads_) thread.waits_for = nullptr;
  }
  size_t next = self_;
  do {
    next = (next + 1) % kMostThreads;
  } while (!is_ready(threads_[next]));
  SwitchTo(next);
}

void WeakMemory::Yield(bool switches) {
  if (++steps_ > kMostSteps) Fail("waits in vain");
  if (!failure_.empty()) throw Abandoned();
  if (switches) SwitchToNext();
  if (!failure_.empty()) throw Abandoned();
}

void WeakMemory::Preempt(Order order) {
  if (order == Order::relaxed || !failure_.empty()) return;
  std::array<size_t, kMostThreads> ready = {self_};
  size_t count = 1;
  for (size_t i = 0; i < kMostThreads; ++i) {
    if (i == self_ || threads_[i].done || threads_[i].waits_for) continue;
    ready[count++] = i;
  }
  SwitchTo(ready[Choose(count)]);
}

WeakMemory::Order WeakMemory::Effective(Order order,
                                        const std::source_location& where) {
  if (order == Order::relaxed) return order;
  const std::string site = SiteOf(where);
  sites_.insert(site);
  return site == weakened_ ? Order::relaxed : order;
}

WeakMemory::Location& WeakMemory::At(const void* at, uint64_t now) {
  TouchAllocation(at);
  Location& location = locations_[at];
  if (location.stores.empty()) {
    location.id = sequential_.size();
    location.stores.push_back({now, {}});
    sequential_.push_back(0);
  }
  return location;
}

size_t& WeakMemory::OldestOf(Location& location) {
  std::vector<size_t>& oldest = self().known.oldest;
  if (oldest.size() <= location.id) oldest.resize(location.id + 1);
  return oldest[location.id];
}

uint64_t WeakMemory::Load(const void* at, uint64_t now, Order order,
                          const std::source_location& where) {
  Preempt(order);
  order = Effective(order, where);
  Location& location = At(at, now);
  size_t& oldest = OldestOf(location);
  if (order == Order::seq_cst) {
    oldest = std::max(oldest, sequential_[location.id]);
  }
  const size_t latest = location.stores.size() - 1;
  const auto stale = self().stale.find(location.id);
  size_t read = latest;
  if (stale != self().stale.end()) {
    read = std::max(oldest, stale->second);
  } else if (const size_t age = Choose(latest - oldest + 1); age != 0) {
    read = latest - age;
    self().stale[location.id] = read;
  }
  oldest = read;
  const Stored& stored = location.stores[read];
  (Acquires(order) ? self().known : self().unfenced).Add(stored.released);
  return stored.value;
}

void WeakMemory::Append(Location& location, uint64_t value, Order order) {
  Thread& thread = self();
  OldestOf(location) = location.stores.size();
  if (order == Order::seq_cst)
    sequential_[location.id] = location.stores.size();
  location.stores.push_back(
      {value, Releases(order) ? thread.known : thread.fenced});
  if (Releases(order)) ++thread.known.clock[self_];
}

void WeakMemory::Store(const void* at, uint64_t now, uint64_t value,
                       Order order, const std::source_location& where) {
  Preempt(order);
  order = Effective(order, where);
  Append(At(at, now), value, order);
}

uint64_t WeakMemory::Modify(const void* at, uint64_t now, Order order,
                            const std::source_location& where,
                            const std::function<uint64_t(uint64_t)>& change) {
  Preempt(order);
  order = Effective(order, where);
  Location& location = At(at, now);
  const Stored before = location.stores.back();
  (Acquires(order) ? self().known : self().unfenced).Add(before.released);
  Append(location, change(before.value), order);
  // The operation continues the release sequence.
  location.stores.back().released.Add(before.released);
  return before.value;
}

// Only sequentially consistent fences.
void WeakMemory::Fence(Order order, const std::source_location& where) {
  Preempt(order);
  if (Effective(order, where) == Order::relaxed) return;
  Thread& thread = self();
  thread.known.Add(thread.unfenced);
  thread.known.oldest.resize(sequential_.size());
  for (size_t i = 0; i < sequential_.size(); ++i) {
    size_t& oldest = thread.known.oldest[i];
    oldest = sequential_[i] = std::max(oldest, sequential_[i]);
  }
  thread.fenced = thread.known;
  ++thread.known.clock[self_];
}

void WeakMemory::WaitFor(const void* at, uint64_t value) {
  if (!failure_.empty()) throw Abandoned();
  if (At(at, value).stores.back().value != value) return;
  self().waits_for = at;
  SwitchToNext();
  if (!failure_.empty()) throw Abandoned();
}

void WeakMemory::Wake(const void* at) {
  for (Thread& thread : threads_) {
    if (thread.waits_for == at) thread.waits_for = nullptr;
  }
}

std::byte* WeakMemory::Allocate(size_t bytes) {
  Allocation allocation;
  allocation.begin =
      allocations_.empty() ? kNullBytes : allocations_.back().end;
  allocation.end = allocation.begin + (bytes + 63) / 64 * 64;
  allocation.thread = self_;
  allocation.when = self().known.clock[self_];
  if (allocation.end > kSharedBytes) std::abort();
  allocations_.push_back(allocation);
  return shared().data() + allocation.begin;
}

bool WeakMemory::IsShared(const void* memory) const {
  return std::less_equal<>()(shared().data(), memory) &&
         std::less<>()(memory, shared().data() + kSharedBytes);
}

// Checks that this thread may access the allocation that holds `memory`.
WeakMemory::Allocation* WeakMemory::TouchAllocation(const void* memory) {
  if (!IsShared(memory)) return nullptr;
  const auto at = static_cast<size_t>(static_cast<const std::byte*>(memory) -
                                      shared().data());
  const auto found = std::find_if(
      allocations_.begin(), allocations_.end(),
      [&](const Allocation& a) { return a.begin <= at && at < a.end; });
  const Clock& clock = self().known.clock;
  if (found == allocations_.end() || clock[found->thread] < found->when) {
    Fail("accesses memory that is not published to it");
    return nullptr;
  }
  if (found->freed) Fail("accesses freed memory");
  found->last[self_] = clock[self_];
  return &*found;
}

void WeakMemory::Free(const std::byte* memory) {
  Allocation* const allocation = TouchAllocation(memory);
  if (allocation == nullptr) return;
  for (size_t i = 0; i < kMostThreads; ++i) {
    if (allocation->last[i] > self().known.clock[i]) {
      Fail("frees memory that thread " + std::to_string(i) + " may access");
    }
  }
  allocation->freed = true;
}

void WeakMemory::Touch(const void* memory, size_t bytes, bool writes) {
  if (bytes == 0 || TouchAllocation(memory) == nullptr) return;
  const Clock& clock = self().known.clock;
  const auto first = reinterpret_cast<uintptr_t>(memory) / 8;
  const auto last = (reinterpret_cast<uintptr_t>(memory) + bytes - 1) / 8;
  for (uintptr_t word = first; word <= last; ++word) {
    Plain& plain = plain_[word];
    if (clock[plain.writer] < plain.written) {
      Fail(std::string(writes ? "writes" : "reads") +
           " what another thread writes");
    }
    if (!writes) {
      plain.read[self_] = clock[self_];
      continue;
    }
    for (size_t i = 0; i < kMostThreads; ++i) {
      if (plain.read[i] > clock[i]) Fail("writes what another thread reads");
    }
    plain.writer = self_;
    plain.written = clock[self_];
  }
}

}  // namespace tessera
