#include "base/cuda/testing/emulation.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#define TESSERA_ASAN 1
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

// ThreadSanitizer's functions, null without it. This file is compiled without
// ThreadSanitizer, which must not see the file's own accesses: fibers share
// them without synchronisation.
extern "C" {
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* at);
[[gnu::weak]] void __tsan_release(void* at);
}

#ifdef __x86_64__
// Saves the registers that a call preserves, and continues at `to`.
extern "C" void TesseraSwitchStack(void** from, void* to);
asm(R"(
.text
.type TesseraSwitchStack, @function
TesseraSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size TesseraSwitchStack, .-TesseraSwitchStack
)");
#endif

namespace tessera::emulated {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kMostThreads = 1024;
// The number of masks of a warp for which memory is reserved, because an
// allocation by a fiber would look like a race.
constexpr size_t kMostMeetings = 64;
constexpr size_t kStackBytes = 128 << 10;

thread_local constinit EmulationOptions options_of_thread;

constexpr unsigned kNoSync = 1;
constexpr size_t kNone = ~size_t{0};

bool IsWatched() { return __tsan_create_fiber != nullptr; }
void Acquire(void* at) {
  if (IsWatched()) __tsan_acquire(at);
}
void Release(void* at) {
  if (IsWatched()) __tsan_release(at);
}

// Sets bytes to 0xFF without a call that ThreadSanitizer would intercept.
void FillUnseen(std::byte* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    const_cast<volatile std::byte*>(data)[i] = std::byte{0xFF};
  }
}

// Maps memory, at `at` if given. ThreadSanitizer forgets the accesses to memory
// that is mapped again.
std::byte* MapShared(std::byte* at) {
  void* const data = mmap(
      at, kLargestShared, PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | (at == nullptr ? 0 : MAP_FIXED), -1, 0);
  if (data == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(data);
}

// A stack on which code runs until it switches back to the host's stack.
class Stack {
 public:
  Stack() : bytes_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
    if (IsWatched()) fiber_ = __tsan_create_fiber(0);
  }
  ~Stack() {
    if (IsWatched()) __tsan_destroy_fiber(fiber_);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // The next Enter calls `entry`, which never returns.
  void Prepare(void (*entry)()) {
#ifdef __x86_64__
    auto* const end = reinterpret_cast<void**>(
        (reinterpret_cast<uintptr_t>(bytes_.get()) + kStackBytes) &
        ~uintptr_t{63});
    void** const top = end - 8;  // Six registers, the entry, no caller.
    std::fill(top, end, nullptr);
    top[6] = reinterpret_cast<void*>(entry);
    inside_ = top;
#else
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = bytes_.get();
    inside_.uc_stack.ss_size = kStackBytes;
    inside_.uc_link = nullptr;
    makecontext(&inside_, entry, 0);
#endif
  }

  void Enter() {
    if (IsWatched()) {
      host_fiber_ = __tsan_get_current_fiber();
      __tsan_switch_to_fiber(fiber_, kNoSync);
    }
#ifdef TESSERA_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, bytes_.get(), kStackBytes);
#endif
    SwitchIn();
#ifdef TESSERA_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  // The first call on a new stack.
  void Arrive() {
#ifdef TESSERA_ASAN
    __sanitizer_finish_switch_fiber(fake_, &host_bottom_, &host_size_);
#endif
  }

  void Leave() {
    if (IsWatched()) __tsan_switch_to_fiber(host_fiber_, kNoSync);
#ifdef TESSERA_ASAN
    __sanitizer_start_switch_fiber(&fake_, host_bottom_, host_size_);
#endif
    SwitchOut();
    Arrive();
  }

 private:
#ifdef __x86_64__
  void SwitchIn() { TesseraSwitchStack(&outside_, inside_); }
  void SwitchOut() { TesseraSwitchStack(&inside_, outside_); }
  void* inside_ = nullptr;
  void* outside_ = nullptr;
#else
  void SwitchIn() { swapcontext(&outside_, &inside_); }
  void SwitchOut() { swapcontext(&inside_, &outside_); }
  ucontext_t inside_;
  ucontext_t outside_;
#endif

  std::unique_ptr<std::byte[]> bytes_;
  void* fiber_ = nullptr;  // ThreadSanitizer's.
  void* host_fiber_ = nullptr;
#ifdef TESSERA_ASAN
  void* fake_ = nullptr;
  const void* host_bottom_ = nullptr;
  size_t host_size_ = 0;
#endif
};

// ThreadSanitizer's names of a repeated synchronisation. The names alternate
// with each repetition, because a thread may reach the next one before another
// has left this one, and with each block, because barriers do not order blocks.
struct SyncNames {
  void* Of(unsigned block_parity, size_t time) {
    return &names[8 * (2 * block_parity + time % 2)];
  }
  std::array<char, 4 * 8> names;  // ThreadSanitizer uses 8-byte words.
};

// Lanes that wait for each other.
struct Meeting {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  const char* what = nullptr;
  Where where;
  // The payloads of this meeting and of the last one, which lanes may still
  // read.
  std::array<std::array<Payload, kLanes>, 2> payloads;
  std::array<uint32_t, 2> came = {};
  size_t time = 0;
  SyncNames synced;
};

struct Thread {
  dim3 index;
  Stack* stack = nullptr;  // Null until it has begun.
  size_t place = 0;        // Position in the execution order.
  bool ended = false;
  const char* what = nullptr;  // The awaited operation
  Where where;                 // and its location.
};

struct Warp {
  std::vector<std::unique_ptr<Meeting>> meetings;  // One for each mask.
  uint32_t live = 0;
};

class Block {
 public:
  Block() : shared_(MapShared(nullptr)) {}
  ~Block() { munmap(shared_, kLargestShared); }

  void RunAll(dim3 grid, dim3 block, size_t dynamic_shared,
              const std::function<void()>& thread);

  void* Array(const void* place, size_t bytes);
  void* Dynamic() const { return shared_; }
  void AwaitAll(const Where& where);
  Payloads Await(uint32_t mask, const Payload& payload, const char* what,
                 const Where& where);
  unsigned lane() const { return current_ % kLanes; }
  [[noreturn]] void Fail(const char* what, const Where& where) const;

  // The body of a stack, which runs one thread after another.
  void RunThreads();

 private:
  void RunBlock(size_t dynamic_shared);
  void Begin(Thread& thread);
  Stack* AddStack();
  void SetOrder();
  void RunNext();
  size_t NextReady(size_t begin) const;
  bool IsReady(const Thread& thread) const {
    return (ready_[thread.place / 64] >> thread.place % 64 & 1) != 0;
  }
  void SetReady(const Thread& thread, bool ready) {
    const uint64_t bit = uint64_t{1} << thread.place % 64;
    uint64_t& word = ready_[thread.place / 64];
    word = ready ? word | bit : word & ~bit;
  }
  void End();
  void Wait(const char* what, const Where& where);
  void TryBarrier();
  void TryMeeting(unsigned warp, Meeting& meeting);
  std::vector<unsigned> OrderOf(unsigned count, unsigned group);
  [[noreturn]] void FailDeadlock() const;

  EmulationOptions options_;
  std::mt19937_64 random_;
  const std::function<void()>* body_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Stack>> stacks_;
  std::vector<Stack*> free_stacks_;
  std::vector<unsigned> order_;
  std::vector<uint64_t> ready_;  // Bits of positions whose thread can run.
  size_t turn_ = 0;              // The position after the last thread that ran.
  unsigned current_ = 0;
  unsigned live_ = 0;
  // The barrier of the block.
  unsigned arrived_ = 0;
  size_t barriers_ = 0;  // The number of completed ones.
  Where barrier_where_;
  // Shared memory: the dynamic part, then arrays.
  std::byte* const shared_;
  size_t shared_used_ = 0;
  size_t dynamic_ = 0;
  std::vector<std::pair<const void*, size_t>> arrays_;
  // ThreadSanitizer's names of synchronisation.
  uint64_t begins_ = 0;
  uint64_t ends_ = 0;
  SyncNames barrier_;
  unsigned block_parity_ = 0;  // Neighbouring blocks differ.
};

thread_local std::unique_ptr<Block> block_of_thread;
thread_local constinit Block* running = nullptr;

void RunStack() { running->RunThreads(); }

Block& Running(const Where& where) {
  if (running == nullptr) {
    std::fprintf(stderr, "%s:%u: only a kernel can call this\n",
                 where.file_name(), static_cast<unsigned>(where.line()));
    std::abort();
  }
  return *running;
}

void Block::Fail(const char* what, const Where& where) const {
  const dim3 thread = threads_[current_].index;
  std::fprintf(stderr,
               "emulated kernel: block (%u, %u, %u), thread (%u, %u, %u): %s, "
               "at %s:%u in %s\n",
               blockIdx.x, blockIdx.y, blockIdx.z, thread.x, thread.y, thread.z,
               what, where.file_name(), static_cast<unsigned>(where.line()),
               where.function_name());
  std::fflush(stderr);
  std::abort();
}

void Block::FailDeadlock() const {
  for (const Thread& thread : threads_) {
    if (thread.ended) continue;
    std::fprintf(stderr, "thread (%u, %u, %u) waits in %s at %s:%u\n",
                 thread.index.x, thread.index.y, thread.index.z, thread.what,
                 thread.where.file_name(),
                 static_cast<unsigned>(thread.where.line()));
  }
  const auto first =
      std::find_if(threads_.begin(), threads_.end(),
                   [](const Thread& thread) { return !thread.ended; });
  Fail("deadlock: it waits for threads that wait elsewhere", first->where);
}

// A permutation of [0, count) that keeps groups of `group` together.
std::vector<unsigned> Block::OrderOf(unsigned count, unsigned group) {
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (options_.order == EmulationOrder::kReverse) {
    std::reverse(order.begin(), order.end());
  } else if (options_.order == EmulationOrder::kRandom) {
    std::vector<uint64_t> priority(count / group + 1);
    std::generate(priority.begin(), priority.end(), std::ref(random_));
    std::stable_sort(order.begin(), order.end(), [&](unsigned a, unsigned b) {
      return priority[a / group] < priority[b / group];
    });
  }
  return order;
}

void Block::RunAll(dim3 grid, dim3 block, size_t dynamic_shared,
                   const std::function<void()>& thread) {
  options_ = options_of_thread;
  random_.seed(options_.seed);
  body_ = &thread;
  const unsigned count = block.x * block.y * block.z;
  threads_.assign(count, Thread());
  warps_.resize((count + kLanes - 1) / kLanes);
  for (Warp& warp : warps_) warp.meetings.reserve(kMostMeetings);
  for (unsigned i = 0; i < count; ++i) {
    threads_[i].index =
        dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y));
  }
  gridDim = grid;
  blockDim = block;
  running = this;
  for (const unsigned i : OrderOf(grid.x * grid.y * grid.z, 1)) {
    blockIdx = dim3(i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y));
    RunBlock(dynamic_shared);
  }
  running = nullptr;
  Acquire(&ends_);
}

void Block::RunBlock(size_t dynamic_shared) {
  if (IsWatched() && shared_used_ > 0) {
    munmap(shared_, kLargestShared);
    MapShared(shared_);
  }
  block_parity_ ^= 1;
  Release(&begins_);
  FillUnseen(shared_, dynamic_shared);
  dynamic_ = shared_used_ = dynamic_shared;
  arrays_.clear();
  live_ = static_cast<unsigned>(threads_.size());
  arrived_ = 0;
  turn_ = 0;
  for (size_t w = 0; w < warps_.size(); ++w) {
    const auto lanes = std::min<size_t>(threads_.size() - w * kLanes, kLanes);
    warps_[w].live = static_cast<uint32_t>((uint64_t{1} << lanes) - 1);
    for (auto& meeting : warps_[w].meetings) meeting->arrived = 0;
  }
  for (Thread& thread : threads_) thread.ended = false;
  ready_.assign((threads_.size() + 63) / 64, 0);
  SetOrder();
  for (Thread& thread : threads_) SetReady(thread, true);
  while (live_ > 0) {
    RunNext();
    if (options_.order == EmulationOrder::kRandom && random_() % 256 == 0) {
      SetOrder();
    }
  }
}

void Block::SetOrder() {
  std::vector<unsigned> ready;
  for (const Thread& thread : threads_) {
    if (!order_.empty() && IsReady(thread)) {
      ready.push_back(static_cast<unsigned>(&thread - threads_.data()));
    }
  }
  order_ = OrderOf(static_cast<unsigned>(threads_.size()), kLanes);
  for (size_t i = 0; i < order_.size(); ++i) threads_[order_[i]].place = i;
  std::fill(ready_.begin(), ready_.end(), 0);
  for (const unsigned i : ready) SetReady(threads_[i], true);
}

// Runs a thread until it waits or exits: the next in turn, or the first in the
// order.
void Block::RunNext() {
  const bool in_turn = options_.order == EmulationOrder::kForward;
  size_t place = NextReady(in_turn ? turn_ : 0);
  if (place == kNone) place = NextReady(0);
  if (place == kNone) FailDeadlock();
  turn_ = place + 1;
  current_ = order_[place];
  Thread& thread = threads_[current_];
  threadIdx = thread.index;
  if (thread.stack == nullptr) Begin(thread);
  thread.stack->Enter();
}

// The first position from `begin` on whose thread can run.
size_t Block::NextReady(size_t begin) const {
  for (size_t word = begin / 64; word < ready_.size(); ++word) {
    uint64_t bits = ready_[word];
    if (word == begin / 64) bits &= ~uint64_t{0} << begin % 64;
    if (bits != 0) {
      return word * 64 + static_cast<size_t>(std::countr_zero(bits));
    }
  }
  return kNone;
}

// Threads that exit pass their stack to the next one, except with
// ThreadSanitizer, which treats all threads on a stack as one. With it,
// neighbouring blocks also use different stacks.
void Block::Begin(Thread& thread) {
  if (IsWatched()) {
    const auto number = static_cast<size_t>(&thread - threads_.data());
    const size_t index = 2 * number + block_parity_;
    while (stacks_.size() <= index) AddStack();
    thread.stack = stacks_[index].get();
    return;
  }
  if (free_stacks_.empty()) free_stacks_.push_back(AddStack());
  thread.stack = free_stacks_.back();
  free_stacks_.pop_back();
}

Stack* Block::AddStack() {
  stacks_.push_back(std::make_unique<Stack>());
  stacks_.back()->Prepare(&RunStack);
  return stacks_.back().get();
}

void Block::RunThreads() {
  threads_[current_].stack->Arrive();
  for (;;) {
    Stack* const stack = threads_[current_].stack;
    Acquire(&begins_);
    (*body_)();
    Release(&ends_);
    End();
    stack->Leave();
  }
}

void Block::End() {
  Thread& thread = threads_[current_];
  thread.ended = true;
  SetReady(thread, false);
  if (!IsWatched()) free_stacks_.push_back(thread.stack);
  thread.stack = nullptr;
  --live_;
  // Other threads may have waited for this one.
  const unsigned w = current_ / kLanes;
  warps_[w].live &= ~(1u << lane());
  TryBarrier();
  for (auto& meeting : warps_[w].meetings) TryMeeting(w, *meeting);
}

void Block::Wait(const char* what, const Where& where) {
  Thread& thread = threads_[current_];
  if (IsReady(thread)) return;
  thread.what = what;
  thread.where = where;
  thread.stack->Leave();
}

void Block::TryBarrier() {
  if (arrived_ == 0 || arrived_ != live_) return;
  arrived_ = 0;
  ++barriers_;
  for (Thread& thread : threads_) {
    if (!thread.ended) SetReady(thread, true);
  }
}

void Block::AwaitAll(const Where& where) {
  if (arrived_ > 0 &&
      (where.line() != barrier_where_.line() ||
       std::strcmp(where.file_name(), barrier_where_.file_name()) != 0)) {
    std::fprintf(stderr, "other threads wait at %s:%u\n",
                 barrier_where_.file_name(),
                 static_cast<unsigned>(barrier_where_.line()));
    Fail("threads of a block are in different barriers", where);
  }
  barrier_where_ = where;
  void* const name = barrier_.Of(block_parity_, barriers_);
  Release(name);
  SetReady(threads_[current_], false);
  ++arrived_;
  TryBarrier();
  Wait("syncthreads", where);
  Acquire(name);
}

void Block::TryMeeting(unsigned w, Meeting& meeting) {
  Warp& warp = warps_[w];
  const uint32_t expected = meeting.mask & warp.live;
  if (meeting.arrived == 0 || meeting.arrived != expected) return;
  meeting.arrived = 0;
  meeting.came[meeting.time] = expected;
  meeting.time ^= 1;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((expected >> lane & 1) == 0) continue;
    SetReady(threads_[w * kLanes + lane], true);
  }
}

Payloads Block::Await(uint32_t mask, const Payload& payload, const char* what,
                      const Where& where) {
  const unsigned w = current_ / kLanes, own = lane();
  Warp& warp = warps_[w];
  // Collectives that exchange values do not order memory accesses.
  const bool orders_memory = std::strcmp(what, "syncwarp") == 0;
  if ((mask >> own & 1) == 0) Fail("a thread is not in its own mask", where);
  Meeting* meeting = nullptr;
  for (auto& other : warp.meetings) {
    if (other->mask == mask) meeting = other.get();
  }
  if (meeting == nullptr) {
    warp.meetings.push_back(std::make_unique<Meeting>());
    meeting = warp.meetings.back().get();
    meeting->mask = mask;
  }
  if (meeting->arrived != 0 && meeting->what != what &&
      std::strcmp(meeting->what, what) != 0) {
    std::fprintf(stderr, "others are in %s at %s:%u\n", meeting->what,
                 meeting->where.file_name(),
                 static_cast<unsigned>(meeting->where.line()));
    Fail("threads of a warp are in different collectives", where);
  }
  meeting->what = what;
  meeting->where = where;
  const size_t time = meeting->time;
  meeting->payloads[time][own] = payload;
  meeting->arrived |= 1u << own;
  SetReady(threads_[current_], false);
  void* const name = meeting->synced.Of(block_parity_, time);
  if (orders_memory) Release(name);
  TryMeeting(w, *meeting);
  Wait(what, where);
  if (orders_memory) Acquire(name);
  return {meeting->payloads[time].data(), meeting->came[time]};
}

void* Block::Array(const void* place, size_t bytes) {
  for (const auto& [other, offset] : arrays_) {
    if (other == place) return shared_ + offset;
  }
  const size_t offset = (shared_used_ + 15) & ~size_t{15};
  shared_used_ = offset + bytes;
  if (shared_used_ - dynamic_ > kLargestStaticShared) {
    Fail("more than 48 KiB of static shared memory", Where::current());
  }
  if (shared_used_ > kLargestShared) {
    Fail("more than 227 KiB of shared memory", Where::current());
  }
  FillUnseen(shared_ + offset, bytes);
  arrays_.emplace_back(place, offset);
  return shared_ + offset;
}

}  // namespace

ScopedEmulation::ScopedEmulation(const EmulationOptions& options)
    : before_(options_of_thread) {
  options_of_thread = options;
}
ScopedEmulation::~ScopedEmulation() { options_of_thread = before_; }

void RunGrid(dim3 grid, dim3 block, size_t dynamic_shared,
             const std::function<void()>& thread) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads < 1 || threads > kMostThreads || block.z > 64 || blocks < 1 ||
      grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 ||
      dynamic_shared > kLargestShared || running != nullptr) {
    std::fprintf(stderr,
                 "emulated launch of grid (%u, %u, %u), block (%u, %u, %u), "
                 "%zu bytes of shared memory: not possible on a GPU\n",
                 grid.x, grid.y, grid.z, block.x, block.y, block.z,
                 dynamic_shared);
    std::abort();
  }
  if (block_of_thread == nullptr) block_of_thread = std::make_unique<Block>();
  block_of_thread->RunAll(grid, block, dynamic_shared, thread);
}

void* SharedArray(const void* place, size_t bytes) {
  return Running(Where::current()).Array(place, bytes);
}
void* DynamicShared() { return Running(Where::current()).Dynamic(); }
void AwaitBlock(const Where& where) { Running(where).AwaitAll(where); }
Payloads AwaitLanes(uint32_t mask, const Payload& payload, const char* what,
                    const Where& where) {
  return Running(where).Await(mask, payload, what, where);
}
// Defined here so that it is not inlined into code that ThreadSanitizer
// instruments.
Payload Payloads::Lane(unsigned lane) const { return lanes[lane]; }
unsigned Lane() { return Running(Where::current()).lane(); }
void FailKernel(const char* what, const Where& where) {
  Running(where).Fail(what, where);
}

}  // namespace tessera::emulated
