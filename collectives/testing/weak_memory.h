// WeakMemory explores the executions that C++ allows of threads that
// synchronise through std::atomic, stale reads included, on any processor.
//
// A load may return every value that no store known to its thread has
// superseded; plain accesses must be ordered by release and acquire. A thread
// knows what happened before its own actions (a vector clock for plain
// accesses, the oldest readable store of every atomic). Sequentially consistent
// operations and fences read at least the last such store, as in C++20.
// Modification orders are those in which the stores are executed.
//
// The code under test is compiled as it is: in its namespace, explored_std.h
// gives `std::atomic` and `std::memcpy` other meanings.
#ifndef TESSERA_COLLECTIVES_TESTING_WEAK_MEMORY_H_
#define TESSERA_COLLECTIVES_TESTING_WEAK_MEMORY_H_

#include <ucontext.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace tessera {

class WeakMemory {
 public:
  static constexpr size_t kMostThreads = 3;
  using Threads = std::vector<std::function<void()>>;
  using Order = std::memory_order;

  // Runs the threads that `start` returns until an execution fails; returns its
  // failure, or "". Explores every execution with at most `deviations` stale
  // reads (until the thread waits) and switches of threads that do not wait.
  // The operation at the place `weakened`, one of sites(), is relaxed.
  std::string Explore(int deviations, const std::string& weakened,
                      const std::function<Threads()>& start);

  int64_t executions() const { return executions_; }
  // The places of all operations so far that are not relaxed.
  const std::set<std::string>& sites() const { return sites_; }

  // For the threads; null outside of an execution.
  static WeakMemory* Running() { return running_; }
  void Fail(const std::string& what);
  // A thread that waits lets others run, if `switches`.
  void Yield(bool switches = true);

  // Zeroed memory that the threads share, aligned to 64 bytes, in shared().
  // shared() is not an allocation; it may be read after a failure.
  std::byte* Allocate(size_t bytes);
  std::span<std::byte> shared() const {
    return {lines_[0].bytes, kSharedBytes};
  }
  void Free(const std::byte* memory);
  // A plain access; ignored if the memory is not shared.
  void Touch(const void* memory, size_t bytes, bool writes);

  uint64_t Load(const void* at, uint64_t now, Order order,
                const std::source_location& where);
  void Store(const void* at, uint64_t now, uint64_t value, Order order,
             const std::source_location& where);
  // Replaces the value by change(value) and returns the earlier one.
  uint64_t Modify(const void* at, uint64_t now, Order order,
                  const std::source_location& where,
                  const std::function<uint64_t(uint64_t)>& change);
  void Fence(Order order, const std::source_location& where);
  void Forget(const void* at) { locations_.erase(at); }
  // As the futex of Linux, without timeouts.
  void WaitFor(const void* at, uint64_t value);
  void Wake(const void* at);

 private:
  using Clock = std::array<uint32_t, kMostThreads>;
  struct Knowledge {
    Clock clock = {};
    std::vector<size_t> oldest;  // By location.
    void Add(const Knowledge& other);
  };
  struct Stored {
    uint64_t value = 0;
    Knowledge released;
  };
  struct Location {
    size_t id = 0;
    std::vector<Stored> stores;
  };
  struct Thread {
    ucontext_t context;
    std::unique_ptr<std::byte[]> stack;
    Knowledge known;
    Knowledge unfenced;  // Read by relaxed loads.
    Knowledge fenced;    // Released by the last fence.
    // By location: the stale store that loads read until the thread waits.
    std::unordered_map<size_t, size_t> stale;
    const void* waits_for = nullptr;
    bool done = false;
  };
  struct Allocation {
    size_t begin = 0;  // In shared().
    size_t end = 0;
    size_t thread = 0;
    uint32_t when = 0;
    Clock last = {};
    bool freed = false;
  };
  struct Plain {
    size_t writer = 0;
    uint32_t written = 0;
    Clock read = {};
  };
  struct Choice {
    size_t taken;
    size_t count;
  };
  struct Abandoned {};

  static void Enter();
  bool NextExecution();
  void Execute(int deviations, const std::function<Threads()>& start);
  size_t Choose(size_t count);
  Order Effective(Order order, const std::source_location& where);
  void Preempt(Order order);
  void SwitchTo(size_t thread);
  void SwitchToNext();
  Thread& self() { return threads_[self_]; }
  Location& At(const void* at, uint64_t now);
  size_t& OldestOf(Location& location);
  void Append(Location& location, uint64_t value, Order order);
  bool IsShared(const void* memory) const;
  Allocation* TouchAllocation(const void* memory);

  static constexpr size_t kSharedBytes = 256 << 10;
  static constexpr size_t kNullBytes = 16 << 10;

  static inline WeakMemory* running_ = nullptr;
  std::string weakened_;
  std::vector<Choice> trail_;
  size_t depth_ = 0;
  int left_ = 0;  // Deviations.
  int64_t executions_ = 0;
  int64_t steps_ = 0;
  std::set<std::string> sites_;
  std::string failure_;

  Threads bodies_;
  std::array<Thread, kMostThreads> threads_;
  size_t self_ = 0;
  ucontext_t outside_;
  std::unordered_map<const void*, Location> locations_;
  // The last sequentially consistent access of every location.
  std::vector<size_t> sequential_;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const std::unique_ptr<Line[]> lines_ =
      std::make_unique<Line[]>(kSharedBytes / sizeof(Line));
  std::vector<Allocation> allocations_;
  std::unordered_map<uintptr_t, Plain> plain_;
};

// As std::atomic, explored while WeakMemory runs.
template <typename T>
class ExploredAtomic {
  using Order = std::memory_order;
  using Where = std::source_location;

 public:
  ExploredAtomic() = default;
  ExploredAtomic(T value) : latest_(value) {
    if (auto* const memory = WeakMemory::Running()) memory->Forget(this);
  }
  ExploredAtomic(const ExploredAtomic&) = delete;

  T load(Order order = Order::seq_cst, Where where = Where::current()) const {
    auto* const memory = WeakMemory::Running();
    if (memory == nullptr) return latest_;
    return From(memory->Load(this, Bits(latest_), order, where));
  }
  void store(T value, Order order = Order::seq_cst,
             Where where = Where::current()) {
    if (auto* const memory = WeakMemory::Running()) {
      memory->Store(this, Bits(latest_), Bits(value), order, where);
    }
    latest_ = value;
  }
  T fetch_add(T more, Order order = Order::seq_cst,
              Where where = Where::current()) {
    return Modify(order, where,
                  [&](T value) { return static_cast<T>(value + more); });
  }
  T fetch_sub(T less, Order order = Order::seq_cst,
              Where where = Where::current()) {
    return Modify(order, where,
                  [&](T value) { return static_cast<T>(value - less); });
  }
  bool compare_exchange_strong(T& expected, T desired, Order order,
                               Where where = Where::current()) {
    const T before = Modify(order, where, [&](T value) {
      return value == expected ? desired : value;
    });
    return before == expected || (expected = before, false);
  }
  // For functions that are not explored.
  std::atomic<T>* operator&() {
    return reinterpret_cast<std::atomic<T>*>(std::addressof(latest_));
  }

 private:
  static uint64_t Bits(T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(value));
    return bits;
  }
  static T From(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  template <typename Change>
  T Modify(Order order, const Where& where, const Change& change) {
    T before = latest_;
    if (auto* const memory = WeakMemory::Running()) {
      before = From(memory->Modify(
          this, Bits(latest_), order, where,
          [&](uint64_t value) { return Bits(change(From(value))); }));
    }
    latest_ = change(before);
    return before;
  }

  T latest_ = {};
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_TESTING_WEAK_MEMORY_H_
