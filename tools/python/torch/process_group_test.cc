#include "tools/python/torch/process_group.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/in_process/in_process.h"
#include "gtest/gtest.h"

namespace tessera::torch_backend {
namespace {

using ::testing::HasSubstr;

TEST(ForkGuardTest, DetectsForks) {
  WatchForks();
  const ForkGuard guard;
  EXPECT_THAT(guard.Check(), IsOk());
  auto freed = std::make_unique<int>(1);
  guard.Free(freed);
  EXPECT_EQ(freed, nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const ForkGuard own;
    const bool right = guard.IsForked() && !own.IsForked() &&
                       own.Check().ok() &&
                       absl::IsFailedPrecondition(guard.Check());
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(guard.IsForked());
}

using collectives::Buffer;
using collectives::Communicator;
using collectives::Reduction;
using Pointer = std::shared_ptr<Communicator>;

absl::StatusOr<Meeting> NoMeeting() {
  return absl::InternalError("the ranks need not meet");
}

absl::StatusOr<Pointer> KeepAll(absl::StatusOr<JoinedGroup> group) {
  if (!group.ok()) return group.status();
  const auto kept = std::make_shared<JoinedGroup>(*std::move(group));
  return Pointer(kept, kept->communicator.get());
}

// Joins a group without a store.
absl::StatusOr<Pointer> JoinInside(JobGroups& groups, int64_t rank,
                                   const std::vector<int64_t>& members,
                                   const std::string& name) {
  const auto at = std::find(members.begin(), members.end(), rank);
  return KeepAll(groups.Join({.rank = static_cast<int>(at - members.begin()),
                              .size = static_cast<int>(members.size()),
                              .timeout = absl::Seconds(20),
                              .name = name,
                              .members = members},
                             NoMeeting));
}

// The sum of the members' ranks, computed by the group.
absl::Status CheckSum(Communicator& group, int64_t rank,
                      const std::vector<int64_t>& members) {
  int64_t sum = rank;
  TESSERA_RETURN_IF_ERROR(
      group.AllReduce(Buffer(std::span(&sum, 1)), Reduction::Sum()));
  const int64_t expected =
      std::accumulate(members.begin(), members.end(), int64_t{0});
  if (sum == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("sum ", sum, ", not ", expected));
}

using RankBody = std::function<absl::Status(JobGroups&, Pointer world)>;

// Runs the body on every rank of a job, as threads, which have created the
// world. `per_host` consecutive ranks act as a host; 0: all.
void RunJob(int ranks, const RankBody& body, int per_host = 0) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores,
                               collectives::MakeInProcessStores(ranks));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto networks,
                               collectives::CreateInProcessEngines(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      JobGroups groups;
      const auto meet = [&] {
        Meeting meeting = {.store = std::move(stores[rank])};
        meeting.create_network = [&] { return std::move(networks[rank]); };
        if (per_host > 0) meeting.host = absl::StrCat(rank / per_host);
        return meeting;
      };
      absl::StatusOr<Pointer> world =
          KeepAll(groups.Join({.rank = rank,
                               .size = ranks,
                               .timeout = absl::Seconds(20),
                               .name = "world"},
                              meet));
      ASSERT_THAT(world.status(), IsOk());
      EXPECT_EQ((*world)->rank().value(), rank);
      EXPECT_EQ((*world)->size(), ranks);
      EXPECT_THAT(body(groups, *std::move(world)), IsOk()) << "rank " << rank;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(JobGroupsTest, CreatesManyGroupsInTheWorldWithoutStore) {
  for (const int ranks : {1, 2, 4}) {
    RunJob(ranks, [&](JobGroups& groups, const Pointer& world) -> absl::Status {
      const int64_t rank = world->rank().value();
      std::vector<int64_t> all(static_cast<size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      const auto middle = all.begin() + (ranks + 1) / 2;
      // The first groups would be complete worlds of their own size.
      const std::vector<std::vector<int64_t>> kinds = {
          {0}, all, all, {all.begin(), middle}, {middle, all.end()}};
      std::vector<Pointer> kept;
      for (int i = 0; i < 35; ++i) {
        const std::vector<int64_t>& members =
            kinds[i < 3 ? i : 3 + static_cast<size_t>(i % 2)];
        if (std::count(members.begin(), members.end(), rank) == 0) continue;
        TESSERA_ASSIGN_OR_RETURN(
            kept.emplace_back(),
            JoinInside(groups, rank, members, absl::StrCat(i)));
        TESSERA_RETURN_IF_ERROR(CheckSum(*kept.back(), rank, members),
                                Annotate(_, kept.back()->name()));
      }
      return absl::OkStatus();
    });
  }
}

TEST(JobGroupsTest, MatchesRandomGroupsOfAllSizes) {
  for (const auto& [seed, per_host] :
       {std::pair(1u, 0), {2u, 0}, {3u, 0}, {3u, 2}, {3u, 1}}) {
    const int ranks = 2 + static_cast<int>(seed);
    const auto body = [&](JobGroups& groups,
                          const Pointer& world) -> absl::Status {
      const int64_t rank = world->rank().value();
      std::minstd_rand random(seed);  // The same numbers on all ranks.
      std::map<int, std::pair<Pointer, std::vector<int64_t>>> kept;
      for (int i = 0; i < 60; ++i) {
        std::vector<int64_t> members;
        for (int64_t r = 0; r < ranks; ++r) {
          if (random() % 2 == 0) members.push_back(r);
        }
        std::shuffle(members.begin(), members.end(), random);
        kept.erase(static_cast<int>(random() % 60));
        if (std::count(members.begin(), members.end(), rank) == 0) continue;
        TESSERA_ASSIGN_OR_RETURN(
            Pointer group, JoinInside(groups, rank, members, absl::StrCat(i)));
        TESSERA_RETURN_IF_ERROR(CheckSum(*group, rank, members));
        kept[i] = {std::move(group), members};
      }
      for (const auto& [i, group] : kept) {
        TESSERA_RETURN_IF_ERROR(CheckSum(*group.first, rank, group.second));
      }
      return absl::OkStatus();
    };
    RunJob(ranks, body, per_host);
  }
}

TEST(JobGroupsTest, BrokenWorldStillContainsGroups) {
  RunJob(2, [](JobGroups& groups, const Pointer& world) -> absl::Status {
    const int64_t rank = world->rank().value();
    if (rank == 0) world->Abort("test");
    TESSERA_ASSIGN_OR_RETURN(const Pointer group,
                             JoinInside(groups, rank, {1, 0}, "after"));
    return CheckSum(*group, rank, {1, 0});
  });
}

TEST(JobGroupsTest, GroupOutlivesTheWorld) {
  const auto body = [](JobGroups& groups, Pointer world) -> absl::Status {
    const int64_t rank = world->rank().value();
    TESSERA_ASSIGN_OR_RETURN(const Pointer group,
                             JoinInside(groups, rank, {0, 1, 2, 3}, "inside"));
    TESSERA_RETURN_IF_ERROR(world->Barrier());
    world = nullptr;
    TESSERA_RETURN_IF_ERROR(CheckSum(*group, rank, {0, 1, 2, 3}));
    group->Abort("test");  // Tells the other host through the store.
    return absl::OkStatus();
  };
  RunJob(4, body, /*per_host=*/2);
}

TEST(JobGroupsTest, NewWorldReplacesThePreviousOne) {
  std::map<std::string, std::vector<std::unique_ptr<collectives::Store>>>
      stores;
  for (const char* name : {"first", "second"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(stores[name],
                                 collectives::MakeInProcessStores(2));
  }
  const auto run = [&](int rank) {
    JobGroups groups;
    std::vector<Pointer> worlds;
    for (const char* name : {"first", "second"}) {
      // Rank 1 has dropped the first world when the second one is created.
      if (rank == 1) worlds.clear();
      absl::StatusOr<Pointer> world = KeepAll(groups.Join(
          {.rank = rank, .size = 2, .timeout = absl::Seconds(20), .name = name},
          [&] { return Meeting{std::move(stores[name][rank])}; }));
      ASSERT_THAT(world.status(), IsOk());
      worlds.push_back(*std::move(world));
      EXPECT_THAT(CheckSum(*worlds.back(), rank, {0, 1}), IsOk());
      EXPECT_THAT(JoinInside(groups, rank, {0, 1}, "inside").status(), IsOk());
    }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST(JobGroupsTest, GroupIsNotAdoptedAsTheWorld) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores,
                               collectives::MakeInProcessStores(1));
  JobGroups groups;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const JoinedGroup first,
      groups.Join({.name = "first", .members = {0}},
                  [&] { return Meeting{std::move(stores[0])}; }));
  TESSERA_ASSERT_OK_AND_ASSIGN(stores, collectives::MakeInProcessStores(1));
  int meetings = 0;
  EXPECT_THAT(groups
                  .Join({.name = "second", .members = {0}},
                        [&] {
                          ++meetings;
                          return Meeting{std::move(stores[0])};
                        })
                  .status(),
              IsOk());
  EXPECT_EQ(meetings, 1);
}

TEST(JobGroupsTest, RejectsMembersThatDoNotFit) {
  RunJob(1, [](JobGroups& groups, const Pointer&) {
    EXPECT_THAT(
        groups.Join({.size = 2, .name = "twice", .members = {0, 0}}, NoMeeting)
            .status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0")));
    EXPECT_THAT(
        groups.Join({.size = 2, .name = "short", .members = {0}}, NoMeeting)
            .status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("group short: rank 0 of 2 with 1 members")));
    return absl::OkStatus();
  });
}

TEST(JobGroupsTest, LateMemberIsNamedWithinTheTimeoutOfTheGroup) {
  RunJob(2, [](JobGroups& groups, const Pointer& world) {
    if (world->rank().value() == 0) return world->Barrier();
    const absl::Time begin = absl::Now();
    EXPECT_THAT(
        groups
            .Join({.rank = 1,
                   .size = 2,
                   .timeout = absl::Milliseconds(200),
                   .name = "late",
                   .members = {0, 1}},
                  NoMeeting)
            .status(),
        StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0")));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
    return world->Barrier();
  });
}

TEST(StorePrefixTest, DiffersBetweenAttemptsAndJoins) {
  std::map<std::string, int64_t> counters;
  const auto add = [&](const std::string& key) { return ++counters[key]; };
  std::set<std::string> prefixes;
  for (const char* restarts : {static_cast<const char*>(nullptr), "1", "2"}) {
    for (int join = 0; join < 3; ++join) {
      const std::string prefix = StorePrefix(restarts, add, /*rank=*/0);
      EXPECT_EQ(StorePrefix(restarts, add, /*rank=*/1), prefix);
      prefixes.insert(prefix);
    }
  }
  EXPECT_EQ(prefixes.size(), 9);
}

}  // namespace
}  // namespace tessera::torch_backend
