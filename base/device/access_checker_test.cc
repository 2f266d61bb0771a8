#include "base/device/access_checker.h"

#include <array>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBytes = 24;
std::array<std::byte, kBytes> g_memory;

MemoryAccess Bytes(size_t begin, size_t size, bool writes) {
  return {g_memory.data() + begin, size, writes};
}

// Implements happens-before from its definition, per operation and byte,
// without clocks or ranges.
class Reference {
 public:
  explicit Reference(size_t queues) : last_(queues, -1), knows_(queues) {}

  // Returns true if all earlier operations on these bytes come before.
  bool Access(size_t queue, size_t begin, size_t size, bool writes,
              bool same_operation) {
    if (!same_operation) Begin(queue);
    const int now = last_[queue];
    bool ordered = true;
    for (size_t at = begin; at < begin + size; ++at) {
      for (const auto& [other, wrote] : history_[at]) {
        if (other == now || !(wrote || writes)) continue;
        if (!before_[static_cast<size_t>(now)][static_cast<size_t>(other)]) {
          ordered = false;
        }
      }
      history_[at].push_back({now, writes});
    }
    return ordered;
  }
  void Begin(size_t queue) {
    std::vector<bool> before = knows_[queue];
    Merge(before, host_);
    before.resize(before_.size() + 1);
    last_[queue] = static_cast<int>(before_.size());
    Merge(knows_[queue], before);
    before_.push_back(before);
    knows_[queue].resize(before_.size());
    knows_[queue].back() = true;
  }
  std::vector<bool> Record(size_t queue) const { return knows_[queue]; }
  void Wait(size_t queue, const std::vector<bool>& event) {
    Merge(knows_[queue], event);
  }
  void HostWait(const std::vector<bool>& event) { Merge(host_, event); }
  bool HostAccess(size_t begin, size_t size, bool writes) {
    for (size_t at = begin; at < begin + size; ++at) {
      for (const auto& [other, wrote] : history_[at]) {
        const auto index = static_cast<size_t>(other);
        const bool known = index < host_.size() && host_[index];
        if ((wrote || writes) && !known) return false;
      }
    }
    return true;
  }

 private:
  static void Merge(std::vector<bool>& into, const std::vector<bool>& from) {
    if (into.size() < from.size()) into.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) into[i] = into[i] || from[i];
  }

  std::vector<int> last_;
  std::vector<std::vector<bool>> knows_;   // By queue, operations before it.
  std::vector<bool> host_;                 // Operations the host waited for.
  std::vector<std::vector<bool>> before_;  // By operation.
  std::array<std::vector<std::pair<int, bool>>, kBytes> history_;
};

TEST(AccessCheckerTest, AgreesWithTheDefinition) {
  int conflicts = 0, correct = 0;
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    std::mt19937 random(seed);
    constexpr size_t kQueues = 3;
    AccessChecker checker;
    Reference reference(kQueues);
    for (size_t i = 0; i < kQueues; ++i) checker.AddQueue("q");
    struct RecordedEvent {
      int queue;
      AccessChecker::Clock clock;
      std::vector<bool> before;
    };
    std::vector<RecordedEvent> events;
    bool ok = true;
    for (int step = 0; step < 60 && ok; ++step) {
      const size_t queue = random() % kQueues;
      const int number = static_cast<int>(queue) + 1;
      const size_t begin = random() % kBytes;
      const size_t size = random() % (kBytes - begin) % 9;
      const bool writes = random() % 3 == 0;
      switch (random() % 8) {
        case 0:
        case 1:
          events.push_back(
              {number, checker.ClockOf(number), reference.Record(queue)});
          break;
        case 2:
        case 3:
          if (events.empty()) break;
          checker.Join(number, events.back().clock);
          reference.Wait(queue, events.back().before);
          break;
        case 4: {
          if (events.empty() || random() % 4 != 0) break;
          const RecordedEvent& event = events[random() % events.size()];
          checker.Join(AccessChecker::kHost, event.clock);
          reference.HostWait(event.before);
          if (random() % 2 == 0) checker.ForgetPast();
          break;
        }
        case 5:
          ASSERT_EQ(
              checker.HostAccess("look", {}, Bytes(begin, size, writes)).ok(),
              reference.HostAccess(begin, size, writes));
          break;
        default: {
          // Every other program waits for all queues, and forgets it rarely.
          if (seed % 2 == 0 && random() % 64 != 0) {
            for (size_t other = 0; other < kQueues; ++other) {
              checker.Join(number, AccessChecker::Clock(checker.ClockOf(
                                       static_cast<int>(other) + 1)));
              reference.Wait(queue, reference.Record(other));
            }
          }
          const auto operation = checker.Begin(number, "op", {});
          const bool expected =
              reference.Access(queue, begin, size, writes, false);
          ok = checker.Access(operation, Bytes(begin, size, writes)).ok();
          ASSERT_EQ(ok, expected) << "seed " << seed << " step " << step;
          // Its other operand.
          if (!ok) break;
          const size_t to = random() % kBytes, length = random() % 3;
          if (to + length > kBytes) break;
          const bool second = reference.Access(queue, to, length, true, true);
          ok = checker.Access(operation, Bytes(to, length, true)).ok();
          ASSERT_EQ(ok, second) << "seed " << seed << " step " << step;
        }
      }
    }
    ++(ok ? correct : conflicts);
  }
  // The programs are of both kinds.
  EXPECT_GT(conflicts, 100);
  EXPECT_GT(correct, 100);
}

TEST(AccessCheckerTest, NamesBothOperations) {
  AccessChecker checker;
  const int compute = checker.AddQueue("compute");
  const int copy = checker.AddQueue("copy");
  const SourcePlace place = SourcePlace::current();
  TESSERA_ASSERT_OK(
      checker.Access(checker.Begin(compute, "Gemm", place), Bytes(0, 8, true)));
  EXPECT_THAT(
      checker.Access(checker.Begin(copy, "offload", place), Bytes(4, 8, false)),
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("\"offload\" on queue copy (base/device/access_"
                               "checker_test.cc:"),
                     HasSubstr("reads 4 bytes that \"Gemm\" on queue compute"),
                     HasSubstr("queue copy should wait for an event that queue "
                               "compute records after it"))));
}

TEST(AccessCheckerTest, ForgetsThePast) {
  AccessChecker checker;
  const int queue = checker.AddQueue("queue");
  for (size_t i = 0; i < 10; ++i) {
    TESSERA_ASSERT_OK(
        checker.Access(checker.Begin(queue, "op", {}), Bytes(2 * i, 1, true)));
  }
  EXPECT_EQ(checker.segments(), 10u);
  checker.ForgetPast();
  EXPECT_EQ(checker.segments(), 10u);
  checker.Join(AccessChecker::kHost, checker.ClockOf(queue));
  checker.ForgetPast();
  EXPECT_EQ(checker.segments(), 0u);
}

}  // namespace
}  // namespace tessera
