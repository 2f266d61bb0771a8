#include "collectives/communicator.h"

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::collectives {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

absl::Status SumOnes(Communicator& communicator, int64_t count,
                     const CallOptions& call = {}) {
  std::vector<float> values(static_cast<size_t>(count), 1.0f);
  TESSERA_RETURN_IF_ERROR(communicator.AllReduce(Buffer(std::span(values)),
                                                 Reduction::Sum(), call));
  for (float value : values) {
    if (value != static_cast<float>(communicator.size())) {
      return absl::InternalError("wrong sum");
    }
  }
  return absl::OkStatus();
}

TEST(CommunicatorTest, CreateRejectsInvalidOptions) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto engines, CreateInProcessEngines(1));
  EXPECT_THAT(Communicator::Create(nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument));
  CommunicatorOptions options;
  options.timeout = absl::ZeroDuration();
  EXPECT_THAT(
      Communicator::Create(std::move(engines[0]), options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout of 0")));
}

TEST(CommunicatorTest, StrategySelectsAlgorithm) {
  CommunicatorOptions options;
  options.chooser =
      std::make_shared<StrategyChooser>(topology::CommunicationStrategy::kRing);
  EXPECT_THAT(
      RunRanks(
          3,
          [](Communicator& c) -> absl::Status {
            std::vector<float> values(10);
            const Operation sum =
                AllReduceOf(ConstBuffer(std::span<const float>(values)),
                            Buffer(std::span(values)), Reduction::Sum());
            EXPECT_THAT(c.AlgorithmFor(sum), IsOkAndHolds(Algorithm::kRing));
            EXPECT_THAT(c.ExplainAlgorithm(sum), HasSubstr("ring"));
            TESSERA_RETURN_IF_ERROR(SumOnes(c, 1000));
            TESSERA_RETURN_IF_ERROR(
                SumOnes(c, 1000, {.algorithm = Algorithm::kEngine}));
            const StatisticsTable table = c.Statistics();
            EXPECT_EQ(table.count({OpKind::kAllReduce, Algorithm::kRing}), 1u);
            EXPECT_EQ(table.count({OpKind::kAllReduce, Algorithm::kEngine}),
                      1u);
            return absl::OkStatus();
          },
          options),
      Each(IsOk()));
}

TEST(CommunicatorTest, StatisticsIncludeSubgroupsOnRequest) {
  EXPECT_THAT(
      RunRanks(4,
               [](Communicator& c) -> absl::Status {
                 {
                   TESSERA_ASSIGN_OR_RETURN(const auto half,
                                            c.Split(c.rank().value() % 2, 0));
                   TESSERA_RETURN_IF_ERROR(SumOnes(*half, 1000));
                 }
                 TESSERA_RETURN_IF_ERROR(SumOnes(c, 10));
                 const auto sums = [](const StatisticsTable& table) {
                   OperationTotals all;
                   for (const auto& [key, totals] : table) {
                     if (key.first == OpKind::kAllReduce) all.Add(totals);
                   }
                   return all;
                 };
                 EXPECT_EQ(sums(c.Statistics()).bytes, 40);
                 const OperationTotals all = sums(c.StatisticsWithSubgroups());
                 EXPECT_EQ(all.count, 2);
                 EXPECT_EQ(all.bytes, 4040);
                 EXPECT_EQ(all.largest_bytes, 4000);
                 // 2 (n - 1) / n of each message.
                 EXPECT_EQ(all.busy_bytes, 60 + 4000);
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(CommunicatorTest, ReportsMismatchForUnknownOptionOfOneRank) {
  // Rank 1 uses a different algorithm.
  const auto statuses = RunRanks(2, [](Communicator& c) {
    CallOptions call;
    call.timeout = absl::Seconds(20);
    call.algorithm =
        c.rank() == Rank(0) ? Algorithm::kRing : Algorithm::kRecursiveDoubling;
    return SumOnes(c, 100, call);
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("differ in algorithm"))));
}

TEST(CommunicatorTest, StartedWorkProgressesWithoutCaller) {
  EXPECT_THAT(
      RunRanks(2,
               [](Communicator& c) -> absl::Status {
                 std::vector<float> values(1 << 20, 1.0f);
                 const Buffer buffer{std::span(values)};
                 TESSERA_ASSIGN_OR_RETURN(
                     const Work work,
                     c.Start(AllReduceOf(buffer, buffer, Reduction::Sum())));
                 // The operation completes without further calls.
                 absl::StatusOr<bool> done = false;
                 while (done.ok() && !*done) {
                   std::this_thread::sleep_for(std::chrono::milliseconds(1));
                   done = work.Test();
                 }
                 TESSERA_RETURN_IF_ERROR(done.status());
                 return values.back() == 2 ? absl::OkStatus()
                                           : absl::InternalError("sum");
               }),
      Each(IsOk()));
}

TEST(CommunicatorTest, DestructionWaitsForStartedWork) {
  std::vector<std::vector<float>> values(2, std::vector<float>(100'000, 1.0f));
  EXPECT_THAT(
      RunRanks(2,
               [&](Communicator& c) -> absl::Status {
                 auto& mine = values[static_cast<size_t>(c.rank().value())];
                 const Buffer buffer{std::span(mine)};
                 for (int i = 0; i < 5; ++i) {
                   TESSERA_RETURN_IF_ERROR(
                       c.Start(AllReduceOf(buffer, buffer, Reduction::Sum()))
                           .status());
                 }
                 return absl::OkStatus();
               }),
      Each(IsOk()));
  EXPECT_EQ(values[0].back(), 32);
  EXPECT_EQ(values[1].front(), 32);
}

TEST(CommunicatorTest, SplitByColourAndKey) {
  EXPECT_THAT(RunRanks(6,
                       [](Communicator& c) -> absl::Status {
                         const int64_t rank = c.rank().value();
                         TESSERA_ASSIGN_OR_RETURN(
                             auto part,
                             c.Split(rank == 5 ? -1 : rank % 2, -rank, "half"));
                         if (rank == 5) {
                           EXPECT_EQ(part, nullptr);
                           return absl::OkStatus();
                         }
                         EXPECT_EQ(part->name(), "half");
                         EXPECT_EQ(part->size(), rank % 2 == 0 ? 3 : 2);
                         EXPECT_EQ(part->rank().value(), rank % 2 == 0
                                                             ? (4 - rank) / 2
                                                             : (3 - rank) / 2);
                         return SumOnes(*part, 10);
                       }),
              Each(IsOk()));
}

TEST(CommunicatorTest, SubgroupRejectsInvalidMembers) {
  EXPECT_THAT(RunRanks(3,
                       [](Communicator& c) -> absl::Status {
                         const auto refused = [&](std::vector<Rank> members,
                                                  const char* why) {
                           EXPECT_THAT(
                               c.Subgroup(members),
                               StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr(why)));
                         };
                         const Rank me = c.rank();
                         const Rank other((me.value() + 1) % 3);
                         refused({me, Rank(3)}, "rank 3 is not in the group");
                         refused({me, me}, "listed more than once");
                         refused({other}, "is not among the members");
                         return SumOnes(c, 10);
                       }),
              Each(IsOk()));
}

TEST(CommunicatorTest, ThousandsOfGroupsCostLittle) {
  EXPECT_THAT(
      RunRanks(
          4,
          [](Communicator& c) -> absl::Status {
            std::vector<std::unique_ptr<Communicator>> groups;
            const std::vector<Rank> all = {Rank(0), Rank(1), Rank(2), Rank(3)};
            for (int i = 0; i < 2000; ++i) {
              TESSERA_ASSIGN_OR_RETURN(auto group, c.Subgroup(all));
              groups.push_back(std::move(group));
            }
            for (size_t i = 0; i < groups.size(); i += 97) {
              TESSERA_RETURN_IF_ERROR(SumOnes(*groups[i], 100));
            }
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

TEST(CommunicatorTest, RecordsCompletedOperations) {
  EXPECT_THAT(
      RunRanks(2,
               [](Communicator& c) -> absl::Status {
                 TESSERA_RETURN_IF_ERROR(SumOnes(c, 256));
                 const int32_t one = 1;
                 if (c.rank() == Rank(0)) {
                   TESSERA_RETURN_IF_ERROR(
                       c.Send(ConstBuffer(std::span(&one, 1)), Rank(1)));
                 } else {
                   int32_t in = 0;
                   TESSERA_RETURN_IF_ERROR(
                       c.Receive(Buffer(std::span(&in, 1)), Rank(0)));
                   EXPECT_EQ(in, 1);
                 }
                 const auto json = nlohmann::json::parse(c.RecordsAsJson());
                 EXPECT_EQ(json["operations"].size(), 2u);
                 EXPECT_EQ(json["operations"][0]["operation"], "all_reduce");
                 EXPECT_EQ(json["operations"][0]["bytes"], 1024);
                 EXPECT_EQ(json["operations"][1]["operation"],
                           c.rank() == Rank(0) ? "send" : "receive");
                 EXPECT_EQ(json["operations"][1]["peer"], 1 - c.rank().value());
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(CommunicatorTest, RunPreparedRejectsOtherBuffers) {
  EXPECT_THAT(RunRanks(2,
                       [](Communicator& c) -> absl::Status {
                         std::vector<float> values(4, 1.0f);
                         const Buffer all{std::span(values)};
                         std::optional<PreparedOperation> sum;
                         for (int i = 0; i < 3; ++i) {
                           TESSERA_RETURN_IF_ERROR(c.RunPrepared(
                               sum, AllReduceOf(all, all, Reduction::Sum())));
                         }
                         EXPECT_THAT(values, Each(8.0f));
                         const Buffer part = all.Slice(0, 3);
                         EXPECT_THAT(
                             c.RunPrepared(sum, AllReduceOf(part, part,
                                                            Reduction::Sum())),
                             StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("all_reduce of 3 f32, sum was "
                                                "prepared with other")));
                         return c.Barrier();
                       }),
              Each(IsOk()));
}

TEST(CommunicatorTest, SupportsSingleRank) {
  EXPECT_THAT(RunRanks(1,
                       [](Communicator& c) -> absl::Status {
                         TESSERA_RETURN_IF_ERROR(c.Barrier());
                         TESSERA_RETURN_IF_ERROR(SumOnes(c, 100));
                         const float out = 3;
                         float in = 0;
                         TESSERA_RETURN_IF_ERROR(c.SendReceive(
                             ConstBuffer(std::span(&out, 1)), Rank(0),
                             Buffer(std::span(&in, 1)), Rank(0)));
                         return in == 3 ? absl::OkStatus()
                                        : absl::InternalError("self");
                       }),
              Each(IsOk()));
}

}  // namespace
}  // namespace tessera::collectives
