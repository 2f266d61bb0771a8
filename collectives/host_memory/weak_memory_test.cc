// Explores the protocols of shared memory under the memory model of C++: the
// real code, compiled with atomics that may read stale values.
#include "collectives/testing/weak_memory.h"

#include <linux/futex.h>

#include <iostream>
#include <limits>
#include <map>
#include <span>
#include <thread>

#include "absl/strings/match.h"
#include "base/os/processors.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/transport.h"
#include "collectives/reduction/combine.h"
#include "collectives/reduction/copy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// The sources below find these names first, in place of those of std.
namespace tessera::collectives::host_memory {

namespace std {
using namespace ::std;
template <typename T>
using atomic = ExploredAtomic<T>;
inline void atomic_thread_fence(
    memory_order order, source_location where = source_location::current()) {
  WeakMemory::Running()->Fence(order, where);
}
inline void* memcpy(void* to, const void* from, size_t bytes) {
  if (auto* const memory = WeakMemory::Running()) {
    memory->Touch(from, bytes, /*writes=*/false);
    memory->Touch(to, bytes, /*writes=*/true);
  }
  return ::std::memcpy(to, from, bytes);
}
namespace this_thread {
inline void yield() { WeakMemory::Running()->Yield(); }
inline void sleep_for(chrono::microseconds) { yield(); }
}  // namespace this_thread
}  // namespace std

inline int64_t explored_now = 0;
inline int explored_yields = 0;
inline bool explored_end = false;
inline std::byte* explored_block = nullptr;
inline int64_t MonotonicNanos() { return explored_now += 200'000; }
inline void SpinPause() { WeakMemory::Running()->Yield(); }
// Switches seldom, so that a waiting thread soon sleeps.
inline int sched_yield() {
  return WeakMemory::Running()->Yield(++explored_yields % 64 == 0), 0;
}
template <typename Operand, typename... More>
long syscall(long, const void* at, int operation, Operand value, More...) {
  if (operation == FUTEX_WAKE) return WeakMemory::Running()->Wake(at), 0;
  return WeakMemory::Running()->WaitFor(at, static_cast<uint64_t>(value)), 0;
}

inline void ExploredCopy(void* to, const void* from, int64_t bytes,
                         StoreMode = StoreMode::kCached) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
inline void ExploredCombine(const Combination& combination,
                            std::span<const void* const> sources,
                            std::span<void* const> destinations,
                            int64_t count) {
  const auto bytes =
      static_cast<size_t>(count * SizeInBytes(combination.dtype));
  WeakMemory& memory = *WeakMemory::Running();
  for (const void* from : sources) memory.Touch(from, bytes, false);
  for (void* to : destinations) memory.Touch(to, bytes, true);
  Combine(combination, sources, destinations, count);
}

}  // namespace tessera::collectives::host_memory

#define CopyBytes ExploredCopy
#define Combine ExploredCombine
#include "collectives/host_memory/call.cc"
#include "collectives/host_memory/domain.cc"
#include "collectives/host_memory/group.cc"
#include "collectives/host_memory/host_memory_collectives.cc"
#include "collectives/host_memory/host_memory_engine.cc"
#include "collectives/host_memory/host_memory_transport.cc"
#include "collectives/host_memory/staged.cc"
#include "collectives/host_memory/window.cc"
#include "collectives/host_memory/zero_copy.cc"
#undef CopyBytes
#undef Combine

namespace tessera::collectives::host_memory {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class ExploredDomain final : public Domain {
 public:
  ExploredDomain(WeakMemory& memory, int64_t rank,
                 std::vector<Announcement*> announcements)
      : memory_(memory), rank_(rank), announcements_(announcements) {
    base_ = reinterpret_cast<uintptr_t>(memory.shared().data());
    end_ = base_ + memory.shared().size();
  }
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return std::ssize(announcements_); }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    return memory_.Allocate(static_cast<size_t>(bytes));
  }
  void Free(std::byte* memory) override { memory_.Free(memory); }
  Announcement* AnnouncementsOf(int64_t rank) override {
    return announcements_[static_cast<size_t>(rank)];
  }
  bool IsDead(int64_t) override { return false; }
  std::string HostOf(int64_t) const override { return ""; }
  int64_t PidOf(int64_t) const override { return 1; }
  int64_t processors() const override { return size(); }

 private:
  WeakMemory& memory_;
  const int64_t rank_;
  const std::vector<Announcement*> announcements_;
};

Tuning SmallTuning() {
  Tuning tuning;
  tuning.piece_bytes = 192;
  tuning.pieces = 3;
  tuning.one_shot_bytes = 0;
  tuning.zero_copy_bytes = tuning.peer_copy_bytes = int64_t{1} << 30;
  tuning.direct_message_bytes = 512;
  tuning.channel_bytes = 128;
  tuning.spins = 1;
  tuning.yield_us = 0;
  return tuning;
}

// One rank, in one execution.
class Member {
 public:
  Member(std::unique_ptr<Engine> engine, uint32_t group)
      : engine_(std::move(engine)), group_(group) {}

  Engine& engine() { return *engine_; }
  int64_t rank() const { return engine_->rank().value(); }
  int64_t size() const { return engine_->size(); }

  absl::Status Try(const Operation& operation) {
    OperationContext context(
        SignatureOf(operation, size(), group_, ++sequence_, Algorithm::kEngine),
        kNever, scratch_);
    engine_->Enter(context);
    const absl::Status status = engine_->Run(operation, context);
    engine_->Leave(context);
    return status;
  }
  void Run(const Operation& operation) { Check(Try(operation)); }
  void Check(const absl::Status& status) {
    if (!status.ok()) Fail(status.ToString());
  }
  void Fail(const std::string& what) { WeakMemory::Running()->Fail(what); }

  // Sums over all ranks; `shared`: in memory that all ranks can access.
  void AllReduce(size_t count, bool shared = false) {
    std::vector<float> own(count);
    std::span<float> values = own;
    std::unique_ptr<SharedMemory> memory;
    if (shared) {
      memory = *engine_->AllocateShared(static_cast<int64_t>(4 * count));
      values = {reinterpret_cast<float*>(memory->bytes().data()), count};
      WeakMemory::Running()->Touch(values.data(), 4 * count, true);
    }
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(static_cast<int64_t>(i) + rank());
    }
    Run(AllReduceOf(Buffer(values), Buffer(values), Reduction::Sum()));
    if (shared) WeakMemory::Running()->Touch(values.data(), 4 * count, false);
    const int64_t others = size() * (size() - 1) / 2;
    for (size_t i = 0; i < count; ++i) {
      if (values[i] !=
          static_cast<float>(size() * static_cast<int64_t>(i) + others)) {
        return Fail("wrong sum");
      }
    }
    // Nobody may read or write it any more.
    if (shared) WeakMemory::Running()->Touch(values.data(), 4 * count, true);
  }
  void Broadcast(size_t count) {
    std::vector<float> values(count, rank() == 0 ? 7.0f : 0.0f);
    Run(BroadcastOf(Buffer(std::span(values)), Buffer(std::span(values)),
                    Rank(0)));
    if (values.back() != 7) Fail("wrong broadcast");
  }
  // Sends from rank 0 to rank 1.
  void Message(size_t count) {
    Transport& transport = *engine_->transport();
    const int64_t bytes = static_cast<int64_t>(count);
    auto memory = *engine_->AllocateShared(bytes);
    const std::span<std::byte> data = memory->bytes();
    const bool sends = rank() == 0;
    if (sends) {
      WeakMemory::Running()->Touch(data.data(), count, true);
      std::fill(data.begin(), data.end(), std::byte{5});
    }
    const Buffer buffer(data.data(), bytes, DType::kU8);
    const Operation operation =
        sends ? SendOf(buffer, Rank(1)) : ReceiveOf(buffer, Rank(0));
    const Signature signature =
        SignatureOf(operation, size(), group_, ++sequence_, Algorithm::kEngine);
    OperationContext context(signature, kNever, scratch_);
    auto request = sends ? transport.StartSend(Rank(1), Lane::kPointToPoint,
                                               signature, data)
                         : transport.StartReceive(Rank(0), Lane::kPointToPoint,
                                                  signature, data);
    Check(request.status());
    Check(transport.Wait({&*request, 1}, context));
    if (data.back() != std::byte{5}) Fail("wrong message");
    WeakMemory::Running()->Touch(data.data(), count, true);
  }

 private:
  std::unique_ptr<Engine> engine_;
  const uint32_t group_;
  uint64_t sequence_ = 0;
  Scratch scratch_;
};

struct Protocol {
  std::string name;
  int64_t ranks;
  Tuning tuning;
  std::function<void(Member&)> body;
  int deviations = 1;     // That find what a relaxed operation breaks.
  std::string only = "";  // Relaxes only operations of such functions.
};

// The threads of `protocol`, in a group with two note slots.
WeakMemory::Threads Start(WeakMemory& memory, const Protocol& protocol) {
  explored_now = explored_yields = 0;
  explored_end = false;
  const int64_t ranks = protocol.ranks;
  std::byte* const start =
      memory.Allocate(static_cast<size_t>(GroupBlockBytes(ranks, 2)));
  explored_block = start;
  auto& header = *reinterpret_cast<GroupHeader*>(start);
  header.note_slots = 2;
  header.size = ranks;
  header.group = kWorldGroup;
  header.tuning = protocol.tuning;
  std::vector<Announcement*> announcements;
  std::vector<int64_t> members;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    members.push_back(rank);
    announcements.push_back(reinterpret_cast<Announcement*>(
        memory.Allocate(kAnnouncements * sizeof(Announcement))));
  }
  WeakMemory::Threads threads;
  for (int64_t index = 0; index < ranks; ++index) {
    threads.push_back([=, &memory, &protocol] {
      Member member(
          std::make_unique<HostMemoryEngine>(
              "explored",
              std::make_shared<ExploredDomain>(memory, index, announcements),
              GroupBlock(start, ranks), members, index == 0),
          kWorldGroup);
      protocol.body(member);
    });
  }
  return threads;
}

void RunInSubgroup(Member& member) {
  const Rank all[] = {Rank(0), Rank(1)};
  auto engine = member.engine().CreateSubgroup(all, 2, kNever);
  member.Check(engine.status());
  Member sub(std::move(*engine), 2);
  sub.AllReduce(2);
}

// Rank 1 breaks the group while rank 0 waits.
void Abort(Member& member) {
  if (member.rank() == 1) {
    return member.engine().Abort(absl::UnavailableError("on purpose"));
  }
  if (member.Try(BarrierOf()).message() != "on purpose") {
    return member.Fail("another error");
  }
  const auto& header = *reinterpret_cast<GroupHeader*>(explored_block);
  WeakMemory::Running()->Touch(header.broken.text, 1, false);
}

// The ranks make different calls; both errors name both.
void Mismatch(Member& member) {
  member.AllReduce(1);
  std::vector<float> values(1);
  const Buffer buffer{std::span(values)};
  const absl::Status status = member.Try(
      member.rank() == 0 ? AllReduceOf(buffer, buffer, Reduction::Sum())
                         : BroadcastOf(buffer, buffer, Rank(0)));
  if (!absl::StrContains(status.message(), "all_reduce #2") ||
      !absl::StrContains(status.message(), "broadcast #2")) {
    member.Fail("another error: " + status.ToString());
  }
}

// Rank 1 enters calls, #n of 1000 n bytes, while rank 0 looks at them.
void ReadSignatures(Member& member) {
  if (member.rank() == 1) {
    Scratch scratch;
    for (uint64_t i = 1; i <= kHistory + 1; ++i) {
      const Signature call = {.sequence = i,
                              .count = static_cast<int64_t>(1000 * i),
                              .group = kWorldGroup,
                              .root = 0,
                              .kind = OpKind::kBroadcast};
      OperationContext context(call, kNever, scratch);
      member.engine().Enter(context);
    }
    // Does not depart: that would publish everything.
    while (!explored_end) WeakMemory::Running()->Yield();
    return;
  }
  const std::string error(member.Try(BarrierOf()).message());
  explored_end = true;
  const auto has = [&](const std::string& text) {
    return absl::StrContains(error, text);
  };
  for (uint64_t i = 1; i <= kHistory + 1; ++i) {
    const std::string call = absl::StrCat("broadcast #", i, " of ");
    if (has(call) && !has(absl::StrCat(call, 1000 * i))) {
      member.Fail("torn signature: " + error);
    }
  }
}

std::vector<Protocol> Protocols() {
  Tuning in_place = SmallTuning();
  in_place.zero_copy_bytes = 0;
  Tuning sleepless = SmallTuning();
  sleepless.yield_us = 1'000'000;
  return {
      {"exchanged notes", 2, SmallTuning(),
       [](Member& member) {
         for (size_t i = 1; i <= 4; ++i) member.AllReduce(i);
       }},
      {"awaited notes", 2, SmallTuning(),
       [](Member& member) {
         for (size_t i = 1; i <= 4; ++i) member.Broadcast(i);
       }},
      {"window", 2, SmallTuning(),
       [](Member& member) { member.AllReduce(160); }},
      {"window of a root", 2, SmallTuning(),
       [](Member& member) { member.Broadcast(160); }},
      {"shared buffers", 2, in_place,
       [](Member& member) { member.AllReduce(160, true); }},
      {"ring of a channel", 2, SmallTuning(),
       [](Member& member) {
         member.Message(150);
         member.Message(70);
       }},
      {"message in place", 2, SmallTuning(),
       [](Member& member) { member.Message(1024); }},
      {"subgroup", 2, SmallTuning(), RunInSubgroup, 2},
      {"abort", 2, SmallTuning(), Abort},
      {"mismatch", 2, SmallTuning(), Mismatch},
      {"signatures", 2, sleepless, ReadSignatures, 2, "Signature"},
      {"three ranks", 3, SmallTuning(),
       [](Member& member) { member.AllReduce(1); }},
  };
}

class WeakMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer cannot follow explored threads";
#endif
  }
};

TEST_F(WeakMemoryTest, ProtocolsHoldWithTheirOrders) {
  for (const Protocol& protocol : Protocols()) {
    WeakMemory memory;
    EXPECT_EQ(memory.Explore(2, "", [&] { return Start(memory, protocol); }),
              "")
        << protocol.name;
    std::cout << protocol.name << ": " << memory.executions()
              << " executions\n";
  }
}

// By function, operations that may be relaxed without a failure here: another
// operation orders the same accesses, only errors and statistics depend on
// them, or threads of one rank use them (ThreadSanitizer tests those).
const std::map<std::string, int> kRedundant = {
    {"Allocate", 1},       {"Announce", 1},     {"AwaitBlock", 2},
    {"Break", 1},          {"Depart", 1},       {"EndsOf", 3},
    {"Enter", 1},          {"IsElsewhere", 1},  {"Leave", 1},
    {"ListMissing", 1},    {"MemoryOf", 1},     {"Mismatch", 1},
    {"ReadSignature", 1},  {"Report", 3},       {"Sleep", 4},
    {"StoreSignature", 1}, {"WakeSleepers", 2}, {"~HostMemoryTransport", 1},
};

TEST_F(WeakMemoryTest, FailsIfAnOperationIsRelaxed) {
  std::map<std::string, std::string> failures;  // By place.
  for (const Protocol& protocol : Protocols()) {
    WeakMemory memory;
    const auto start = [&] { return Start(memory, protocol); };
    ASSERT_EQ(memory.Explore(0, "", start), "");
    for (const std::string& site : std::set(memory.sites())) {
      std::string& failure = failures[site];
      if (!failure.empty() || !absl::StrContains(site, protocol.only)) continue;
      failure = memory.Explore(protocol.deviations, site, start);
    }
  }
  std::map<std::string, int> redundant;
  for (const auto& [site, failure] : failures) {
    std::cout << site << ": " << failure << "\n";
    if (failure.empty()) ++redundant[site.substr(0, site.find(' '))];
  }
  EXPECT_EQ(redundant, kRedundant);
}

}  // namespace
}  // namespace tessera::collectives::host_memory
