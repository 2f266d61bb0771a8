#include "collectives/host_memory/group.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/host_memory/host_memory_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives::host_memory {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kRanks = 3;
constexpr int64_t kSecondNs = 1'000'000'000;

struct Line {
  alignas(64) std::byte bytes[64];
};
using Memory = std::vector<std::unique_ptr<Line[]>>;

// All its ranks are in this process; allocations stay in `memory`.
class HeapDomain final : public Domain {
 public:
  HeapDomain(int64_t rank, Memory& memory) : rank_(rank), memory_(memory) {
    end_ = std::numeric_limits<uintptr_t>::max();
  }
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return kRanks; }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    const int64_t lines = RoundToLine(bytes) / 64;
    memory_.push_back(std::make_unique<Line[]>(static_cast<size_t>(lines)));
    return memory_.back()[0].bytes;
  }
  void Free(std::byte*) override {}
  Announcement* AnnouncementsOf(int64_t) override { return nullptr; }
  bool IsDead(int64_t) override { return false; }
  std::string HostOf(int64_t) const override { return ""; }
  int64_t PidOf(int64_t) const override { return getpid(); }
  int64_t processors() const override { return kRanks; }

 private:
  const int64_t rank_;
  Memory& memory_;
};

Signature Gather(uint64_t sequence, int32_t root) {
  return {.sequence = sequence,
          .count = 45,
          .group = kWorldGroup,
          .root = root,
          .kind = OpKind::kGather,
          .dtype = DType::kF32};
}

class GroupTest : public ::testing::Test {
 protected:
  GroupTest() {
    std::vector<std::shared_ptr<Domain>> domains;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      domains.push_back(std::make_shared<HeapDomain>(rank, memory_));
    }
    const GroupBlock block =
        *CreateGroupBlock(*domains[0], kRanks, kWorldGroup, Tuning());
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      groups_.push_back(
          std::make_unique<Group>(domains[static_cast<size_t>(rank)], block,
                                  std::vector<int64_t>{0, 1, 2}, rank,
                                  /*owns_block=*/rank == 0));
    }
  }
  void Call(int64_t rank, const Signature& signature) {
    OperationContext context(signature, MonotonicNanos() + kSecondNs, scratch_);
    groups_[static_cast<size_t>(rank)]->Enter(context);
    groups_[static_cast<size_t>(rank)]->Leave();
  }

  // Rank 0 waits in call 217 for ranks 1 and 2. After its first check for
  // missing ranks `then` runs, and the ranks in `still` remain missing until
  // `looks` more checks have passed.
  absl::Status Await(const std::function<void()>& then,
                     std::vector<int64_t> still, int looks,
                     int64_t patience_ns = 20 * kSecondNs) {
    OperationContext context(Gather(217, 0), MonotonicNanos() + patience_ns,
                             scratch_);
    groups_[0]->Enter(context);
    int asked = 0;
    return groups_[0]->Await(
        context, [&] { return asked > looks; },
        [&](std::vector<int64_t>& missing) {
          if (asked++ > 0) {
            missing = still;
            return;
          }
          missing = {1, 2};
          then();
        });
  }

  Memory memory_;
  Scratch scratch_;
  std::vector<std::unique_ptr<Group>> groups_;
};

// More calls than a rank's history stores.
TEST_F(GroupTest, AcceptsFinishedRankFarAhead) {
  EXPECT_THAT(Await(
                  [&] {
                    for (uint64_t call = 217; call < 224; ++call) {
                      Call(1, Gather(call, static_cast<int32_t>(call % 3)));
                    }
                  },
                  {2}, 3),
              IsOk());
}

TEST_F(GroupTest, NamesMissingRankWithMismatchedCall) {
  EXPECT_THAT(
      Await([&] { Call(1, Gather(217, 1)); }, {1, 2}, 1'000'000),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("rank 0 called gather #217 of 45 f32, root 0"),
                     HasSubstr("rank 1 called gather #217 of 45 f32, root 1"),
                     HasSubstr("they differ in root"))));
}

TEST_F(GroupTest, NamesMissingRankWithCurrentCall) {
  EXPECT_THAT(Await(
                  [&] {
                    for (uint64_t call = 217; call < 224; ++call) {
                      Call(1, Gather(call, 0));
                    }
                  },
                  {1}, 1'000'000),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 1 called gather #223")));
}

TEST_F(GroupTest, AcceptsDepartureOfFinishedRank) {
  EXPECT_THAT(Await([&] { groups_[1]->Depart(); }, {2}, 3), IsOk());
}

TEST_F(GroupTest, NamesRankThatLeftEarly) {
  EXPECT_THAT(Await([&] { groups_[1]->Depart(); }, {1, 2}, 1'000'000),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 1"), Not(HasSubstr("rank 2")))));
}

TEST_F(GroupTest, NamesOnlyMissingRanksAtDeadline) {
  EXPECT_THAT(Await([] {}, {2}, 1'000'000, /*patience_ns=*/1'000'000),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 2"), Not(HasSubstr("rank 1 ")))));
}

}  // namespace
}  // namespace tessera::collectives::host_memory
