// Compares predictions with the kernel's accounting of processes.
#include "collectives/shared_memory/window_memory.h"

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

int64_t SharedResident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words[0] == "RssShmem" && absl::SimpleAtoi(words[1], &kibibytes)) {
      return kibibytes << 10;
    }
  }
  return 0;
}

// Runs on ordinary buffers with a message of `bytes`.
absl::Status RunOne(Communicator& group, OpKind kind, int64_t bytes) {
  const auto elements = static_cast<size_t>(bytes) / sizeof(float);
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<float> whole(elements, 1.0f);
  std::vector<float> part(elements / ranks, 1.0f);
  const auto all = Buffer(std::span(whole));
  const auto mine = Buffer(std::span(part));
  switch (kind) {
    case OpKind::kAllReduce:
      return group.AllReduce(all, Reduction::Sum());
    case OpKind::kReduceScatter:
      return group.ReduceScatter(all, mine, Reduction::Sum());
    case OpKind::kAllGather:
      return group.AllGather(mine, all);
    case OpKind::kBroadcast:
      return group.Broadcast(all, Rank(0));
    default: {
      std::vector<float> from(elements);
      const Rank next((group.rank().value() + 1) % group.size());
      const Rank last((group.rank().value() + group.size() - 1) % group.size());
      return group.SendReceive(all, next, Buffer(std::span(from)), last);
    }
  }
}

// More than the number of slots in a window.
constexpr int kTimes = 12;

void ExpectAsMeasured(const WindowUser& user, OpKind kind, int64_t bytes) {
  SCOPED_TRACE(absl::StrCat(static_cast<int>(kind), " of ", bytes, " bytes, ",
                            user.ranks, " ranks",
                            user.crowded ? ", crowded" : ""));
  SharedMemoryOptions options;
  options.tuning.processors = user.crowded ? 1 : 64;
  const auto outcomes = RunSharedMemory(
      user.ranks,
      [&](Communicator& group) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(group.Barrier());
        const int64_t before = SharedResident();
        for (int i = 0; i < kTimes; ++i) {
          TESSERA_RETURN_IF_ERROR(RunOne(group, kind, bytes));
        }
        const auto measured = static_cast<double>(SharedResident() - before);
        WindowUser own = user;
        own.rank = group.rank().value();
        const auto predicted =
            static_cast<double>(WindowMemory(own, kind, bytes));
        // Tolerance: the neighbouring pages that are mapped along with a page
        // depend on timing, and the group has a control block.
        constexpr double kOther = 96 << 10;
        EXPECT_LE(measured, 1.3 * predicted + kOther);
        EXPECT_GE(measured, 0.6 * predicted - kOther)
            << "rank " << group.rank().value();
        return absl::OkStatus();
      },
      {}, options);
  for (const RankOutcome& outcome : outcomes) {
    TESSERA_EXPECT_OK(outcome.status);
  }
}

TEST(WindowMemoryTest, MatchesMeasuredMemory) {
  for (const int64_t ranks : {2, 3, 4}) {
    for (const bool crowded : {false, true}) {
      for (const OpKind kind :
           {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather,
            OpKind::kBroadcast, OpKind::kSendReceive}) {
        for (const int64_t bytes : {3 << 10, 96 << 10, 3 << 20}) {
          ExpectAsMeasured({.ranks = ranks, .crowded = crowded}, kind, bytes);
        }
      }
    }
  }
}

// Some ranks leave a group before others; their memory is not freed yet.
TEST(WindowMemoryTest, FreesWindowsOfDestroyedGroupOnNextCreation) {
  const auto outcomes =
      RunSharedMemory(3, [](Communicator& world) -> absl::Status {
        constexpr int64_t kBytes = 3 << 20;
        const std::vector<Rank> all = {Rank(0), Rank(1), Rank(2)};
        TESSERA_RETURN_IF_ERROR(world.Barrier());
        const int64_t before = SharedResident();
        {
          TESSERA_ASSIGN_OR_RETURN(const auto group, world.Subgroup(all));
          TESSERA_RETURN_IF_ERROR(RunOne(*group, OpKind::kAllReduce, kBytes));
          EXPECT_GT(SharedResident(), before + (1 << 20));
        }
        TESSERA_RETURN_IF_ERROR(world.Barrier());
        TESSERA_ASSIGN_OR_RETURN(const auto next, world.Subgroup(all));
        TESSERA_RETURN_IF_ERROR(next->Barrier());
        EXPECT_LT(SharedResident(), before + (512 << 10));
        return absl::OkStatus();
      });
  for (const RankOutcome& outcome : outcomes) TESSERA_EXPECT_OK(outcome.status);
}

TEST(WindowMemoryTest, IsZeroForOneRankOrNoBytes) {
  EXPECT_EQ(WindowMemory({.ranks = 1}, OpKind::kAllReduce, 1 << 20), 0);
  EXPECT_EQ(WindowMemory({.ranks = 4}, OpKind::kAllReduce, 0), 0);
  EXPECT_EQ(WindowMemory({.ranks = 4}, OpKind::kBarrier, 0), 0);
  EXPECT_EQ(GroupMemory(1, true), 0);
}

// 2 (n - 1) channels, and the other ranks' contributions to this rank's part.
TEST(WindowMemoryTest, CountsChannelsAndReductionBuffers) {
  const WindowUser user = {.rank = 1, .ranks = 4};
  const int64_t channels =
      6 * WindowMemory(user, OpKind::kSend, int64_t{1} << 20);
  EXPECT_EQ(ChannelMemory(user, OpKind::kAllGather, 1 << 20), channels);
  EXPECT_EQ(ChannelMemory(user, OpKind::kReduceScatter, 400 << 10),
            channels + 3 * (100 << 10));
  EXPECT_LE(ChannelMemory(user, OpKind::kReduceScatter, int64_t{1} << 32),
            channels + (8 << 20));
  EXPECT_EQ(ChannelMemory({.ranks = 1}, OpKind::kAllReduce, 1 << 20), 0);
}

TEST(WindowMemoryTest, GroupMemoryGrowsWithRanks) {
  EXPECT_GT(GroupMemory(8, true), GroupMemory(8, false));
  EXPECT_GT(GroupMemory(8, false), GroupMemory(2, false));
  EXPECT_EQ(GroupMemory(8, false) % 4096, 0);
}

}  // namespace
}  // namespace tessera::collectives
