#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/report/collective_log.h"

namespace tessera::train {
namespace {

using collectives::Buffer;
using collectives::Communicator;
using collectives::OpKind;
using collectives::Reduction;
using ::testing::Each;
using ::testing::HasSubstr;

using Body = std::function<absl::Status(Communicator&, CollectiveLog&)>;

std::vector<absl::Status> RunMeasured(
    int64_t ranks, const Body& body,
    std::vector<std::shared_ptr<CollectiveLog>>* logs = nullptr) {
  auto engines = collectives::CreateInProcessEngines(ranks);
  std::vector<std::shared_ptr<CollectiveLog>> own;
  for (auto& engine : *engines) {
    own.push_back(std::make_shared<CollectiveLog>());
    engine = MeasureEngine(std::move(engine), own.back());
  }
  auto statuses =
      collectives::RunRanksOn(std::move(engines), [&](Communicator& world) {
        return body(world, *own[static_cast<size_t>(world.rank().value())]);
      });
  if (logs != nullptr) *logs = own;
  return statuses;
}

absl::Status Sum(Communicator& group, double expected) {
  std::vector<float> values(100, 1);
  TESSERA_RETURN_IF_ERROR(
      group.AllReduce(Buffer(std::span(values)), Reduction::Sum()));
  return values[99] == static_cast<float>(expected)
             ? absl::OkStatus()
             : absl::InternalError("a wrong sum");
}

TEST(MeasuredEngineTest, LogsCollectivesOfAllGroupsAndChangesNone) {
  std::vector<std::shared_ptr<CollectiveLog>> logs;
  EXPECT_THAT(RunMeasured(
                  4,
                  [](Communicator& world, CollectiveLog&) -> absl::Status {
                    const int64_t rank = world.rank().value();
                    TESSERA_ASSIGN_OR_RETURN(const auto half,
                                             world.Split(rank / 2, rank));
                    TESSERA_RETURN_IF_ERROR(Sum(world, 4));
                    TESSERA_RETURN_IF_ERROR(Sum(*half, 2));
                    TESSERA_ASSIGN_OR_RETURN(
                        auto work, half->Start(collectives::BarrierOf()));
                    return work.Wait();
                  },
                  &logs),
              Each(IsOk()));
  for (const auto& log : logs) {
    const std::vector<LoggedCollective> all = log->Take();
    ASSERT_EQ(all.size(), 4u);
    EXPECT_EQ(all[0].kind, OpKind::kAllGather);  // From Split.
    EXPECT_EQ(all[1].kind, OpKind::kAllReduce);
    EXPECT_EQ(all[1].bytes, 400);
    EXPECT_EQ(all[1].ranks, 4);
    EXPECT_EQ(all[2].ranks, 2);
    EXPECT_EQ(all[3].kind, OpKind::kBarrier);
    int64_t last = 0;
    for (const LoggedCollective& one : all) {
      EXPECT_LE(last, one.begin_ns);
      EXPECT_LE(one.begin_ns, one.end_ns);
      last = one.end_ns;
    }
    EXPECT_TRUE(log->Take().empty());
  }
}

TEST(MeasuredEngineTest, DoesNotLogGroupsCreatedWhileOff) {
  EXPECT_THAT(
      RunMeasured(2,
                  [](Communicator& world, CollectiveLog& log) -> absl::Status {
                    const int64_t rank = world.rank().value();
                    log.SetOn(false);
                    TESSERA_ASSIGN_OR_RETURN(const auto quiet,
                                             world.Split(0, rank));
                    log.SetOn(true);
                    log.Take();
                    TESSERA_RETURN_IF_ERROR(Sum(*quiet, 2));
                    const size_t logged = log.Take().size();
                    TESSERA_RETURN_IF_ERROR(Sum(world, 2));
                    return logged == 0 && log.Take().size() == 1
                               ? absl::OkStatus()
                               : absl::InternalError("logged otherwise");
                  }),
      Each(IsOk()));
}

TEST(MeasuredEngineTest, AbortAllEndsEveryGroupOfTheRank) {
  const absl::Time begin = absl::Now();
  const auto statuses = RunMeasured(
      2, [](Communicator& world, CollectiveLog& log) -> absl::Status {
        const int64_t rank = world.rank().value();
        TESSERA_ASSIGN_OR_RETURN(const auto other, world.Split(0, rank));
        if (rank == 0) return other->Barrier();
        log.AbortAll(absl::AbortedError("rank 1 gives up"));
        return world.Barrier();
      });
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 gives up"));
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

}  // namespace
}  // namespace tessera::train
