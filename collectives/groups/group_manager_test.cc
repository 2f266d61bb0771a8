#include "collectives/groups/group_manager.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "topology/mesh.h"

namespace tessera::collectives {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using topology::Mesh;

Mesh MeshOf(std::string_view axes, topology::Rank first = topology::Rank(0)) {
  return *Mesh::Create(*topology::ParseAxes(axes), first);
}

// The sum over the members of this rank's group, by brute force over ranks.
absl::StatusOr<int64_t> SumOfMembers(const Mesh& mesh, std::string_view axes,
                                     topology::Rank rank) {
  TESSERA_ASSIGN_OR_RETURN(const auto groups, mesh.GroupsAlong(axes));
  TESSERA_ASSIGN_OR_RETURN(const auto members, groups.MembersWith(rank));
  int64_t sum = 0;
  for (topology::Rank member : members) sum += 1000 + member.value();
  return sum;
}

absl::Status Expect(bool holds, std::string_view what) {
  return holds ? absl::OkStatus() : absl::InternalError(what);
}

TEST(GroupManagerTest, EveryAxisGroupReducesOverItsOwnMembers) {
  const Mesh mesh = MeshOf("tp2,dp3,pp2");
  EXPECT_THAT(
      RunRanks(12,
               [&](Communicator& world) -> absl::Status {
                 TESSERA_ASSIGN_OR_RETURN(auto groups,
                                          GroupManager::Create(world, mesh));
                 for (const char* axes :
                      {"tp", "dp", "pp", "dp,tp", "tp,pp", "tp,dp,pp"}) {
                   int64_t value = 1000 + groups->mesh_rank().value();
                   TESSERA_ASSIGN_OR_RETURN(Communicator* const group,
                                            groups->Group(axes));
                   TESSERA_RETURN_IF_ERROR(group->AllReduce(
                       Buffer(std::span(&value, 1)), Reduction::Sum()));
                   TESSERA_ASSIGN_OR_RETURN(
                       const int64_t expected,
                       SumOfMembers(mesh, axes, groups->mesh_rank()));
                   TESSERA_RETURN_IF_ERROR(Expect(value == expected, axes));
                 }
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(GroupManagerTest, GroupsInFlightAtOnceDoNotMix) {
  const Mesh mesh = MeshOf("tp2,dp2,pp2");
  EXPECT_THAT(
      RunRanks(
          8,
          [&](Communicator& world) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(auto groups,
                                     GroupManager::Create(world, mesh));
            const std::vector<std::string> axes = {"tp", "dp", "pp", "dp,pp"};
            for (int round = 0; round < 30; ++round) {
              std::vector<int64_t> values(axes.size(),
                                          1000 + groups->mesh_rank().value());
              std::vector<Work> works;
              // Ranks start their groups in different orders.
              for (size_t i = 0; i < axes.size(); ++i) {
                const size_t a =
                    (i + static_cast<size_t>(world.rank().value())) %
                    axes.size();
                TESSERA_ASSIGN_OR_RETURN(Communicator* const group,
                                         groups->Group(axes[a]));
                const Buffer one(std::span(&values[a], 1));
                TESSERA_ASSIGN_OR_RETURN(
                    const Work work,
                    group->Start(AllReduceOf(one, one, Reduction::Sum())));
                works.push_back(work);
              }
              for (const Work& work : works) {
                TESSERA_RETURN_IF_ERROR(work.Wait());
              }
              for (size_t a = 0; a < axes.size(); ++a) {
                TESSERA_ASSIGN_OR_RETURN(
                    const int64_t expected,
                    SumOfMembers(mesh, axes[a], groups->mesh_rank()));
                TESSERA_RETURN_IF_ERROR(Expect(values[a] == expected, axes[a]));
              }
            }
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

TEST(GroupManagerTest, GathersAndScattersAlongAnAxis) {
  EXPECT_THAT(
      RunRanks(6,
               [&](Communicator& world) -> absl::Status {
                 TESSERA_ASSIGN_OR_RETURN(
                     auto groups,
                     GroupManager::Create(
                         world, MeshOf("tp3,dp2", topology::Rank(10))));
                 const int32_t mine =
                     static_cast<int32_t>(groups->mesh_rank().value());
                 std::vector<int32_t> all(3);
                 TESSERA_ASSIGN_OR_RETURN(Communicator* const tp,
                                          groups->Group("tp"));
                 TESSERA_RETURN_IF_ERROR(tp->AllGather(
                     ConstBuffer(std::span(&mine, 1)), Buffer(std::span(all))));
                 const int32_t first = mine < 13 ? 10 : 13;
                 TESSERA_RETURN_IF_ERROR(Expect(
                     all == std::vector<int32_t>{first, first + 1, first + 2},
                     "gathered"));
                 int32_t sum = 0;
                 TESSERA_RETURN_IF_ERROR(tp->ReduceScatter(
                     ConstBuffer(std::span<const int32_t>(all)),
                     Buffer(std::span(&sum, 1)), Reduction::Sum()));
                 return Expect(sum == 3 * mine, "scattered");
               }),
      Each(IsOk()));
}

TEST(GroupManagerTest, GroupsHaveTheNamesOfTheMesh) {
  EXPECT_THAT(RunRanks(4,
                       [&](Communicator& world) -> absl::Status {
                         TESSERA_ASSIGN_OR_RETURN(
                             auto groups,
                             GroupManager::Create(world, MeshOf("tp2,dp2")));
                         TESSERA_ASSIGN_OR_RETURN(Communicator* const tp,
                                                  groups->Group("tp"));
                         const int64_t dp = groups->mesh_rank().value() / 2;
                         EXPECT_EQ(tp->name(), absl::StrCat("tp_group_dp", dp));
                         EXPECT_THAT(
                             groups->Group("xx"),
                             StatusIs(absl::StatusCode::kInvalidArgument));
                         return absl::OkStatus();
                       }),
              Each(IsOk()));
}

// Each stage adds 10 to the activations of every micro-batch and 1 to the
// gradients. Micro-batches are received in the opposite order of their sends.
absl::Status PassThroughStages(Communicator& world, const Mesh& mesh,
                               bool with_tags) {
  TESSERA_ASSIGN_OR_RETURN(auto groups, GroupManager::Create(world, mesh));
  const auto column = static_cast<float>(
      mesh.CoordinateOf(groups->mesh_rank(), "tp").value_or(0));
  const std::vector<int32_t> sent = {0, 1, 2};
  const std::vector<int32_t> received =
      with_tags ? std::vector<int32_t>{2, 1, 0} : sent;
  const auto tag = [&](int32_t micro) { return with_tags ? micro : kNoTag; };
  std::vector<std::vector<float>> x(3, std::vector<float>(1000));
  for (const int32_t micro : received) {
    std::vector<float>& own = x[static_cast<size_t>(micro)];
    if (groups->IsFirstStage()) {
      std::fill(own.begin(), own.end(),
                column + 100 * static_cast<float>(micro));
    } else {
      TESSERA_RETURN_IF_ERROR(
          groups->ReceiveFromPreviousStage(Buffer(std::span(own)), tag(micro)));
    }
    for (float& value : own) value += 10;
  }
  for (const int32_t micro : sent) {
    if (groups->IsLastStage()) break;
    TESSERA_RETURN_IF_ERROR(groups->SendToNextStage(
        ConstBuffer(std::span(x[static_cast<size_t>(micro)])), tag(micro)));
  }
  for (const int32_t micro : received) {
    std::vector<float>& own = x[static_cast<size_t>(micro)];
    if (!groups->IsLastStage()) {
      TESSERA_RETURN_IF_ERROR(
          groups->ReceiveFromNextStage(Buffer(std::span(own)), tag(micro)));
    }
    for (float& value : own) value += 1;
  }
  for (const int32_t micro : sent) {
    if (groups->IsFirstStage()) break;
    TESSERA_RETURN_IF_ERROR(groups->SendToPreviousStage(
        ConstBuffer(std::span(x[static_cast<size_t>(micro)])), tag(micro)));
  }
  const int64_t stages = groups->stages();
  for (const int32_t micro : sent) {
    const std::vector<float> expected(
        1000, column + static_cast<float>(100 * micro + 10 * stages + stages -
                                          groups->stage()));
    TESSERA_RETURN_IF_ERROR(
        Expect(x[static_cast<size_t>(micro)] == expected, "value"));
  }
  return absl::OkStatus();
}

TEST(GroupManagerTest, NeighbouringStagesExchangeMicroBatches) {
  for (const char* axes : {"tp2,pp3", "pp2", "tp2,pp1", "tp2"}) {
    const Mesh mesh = MeshOf(axes, topology::Rank(4));
    for (const bool with_tags : {false, true}) {
      EXPECT_THAT(RunRanks(static_cast<int>(mesh.world_size()),
                           [&](Communicator& world) {
                             return PassThroughStages(world, mesh, with_tags);
                           }),
                  Each(IsOk()))
          << axes;
    }
  }
}

TEST(GroupManagerTest, NamesTheStageAtTheEndsOfThePipeline) {
  EXPECT_THAT(
      RunRanks(6,
               [&](Communicator& world) -> absl::Status {
                 TESSERA_ASSIGN_OR_RETURN(
                     auto groups, GroupManager::Create(
                                      world, MeshOf("tp2,stage3"), "stage"));
                 EXPECT_EQ(groups->stages(), 3);
                 EXPECT_EQ(groups->stage(), groups->mesh_rank().value() / 2);
                 EXPECT_EQ(groups->IsFirstStage(), groups->stage() == 0);
                 EXPECT_EQ(groups->IsLastStage(), groups->stage() == 2);
                 const std::string rank =
                     absl::StrCat(groups->mesh_rank().value());
                 const std::string where =
                     " of 3 stages of axis stage in the mesh tp2,stage3";
                 if (groups->IsLastStage()) {
                   EXPECT_THAT(groups->SendToNextStage(ConstBuffer()),
                               StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr(absl::StrCat(
                                            "there is no next stage: rank ",
                                            rank, " is the last", where))));
                   EXPECT_THAT(groups->ReceiveFromNextStage(Buffer(), 1),
                               StatusIs(absl::StatusCode::kInvalidArgument));
                 } else {
                   EXPECT_THAT(groups->NextStage(),
                               IsOkAndHolds(Rank(groups->stage() + 1)));
                 }
                 if (groups->IsFirstStage()) {
                   EXPECT_THAT(groups->SendToPreviousStage(ConstBuffer()),
                               StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr(absl::StrCat(
                                            "there is no previous stage: rank ",
                                            rank, " is the first", where))));
                   EXPECT_THAT(groups->ReceiveFromPreviousStage(Buffer(), 1),
                               StatusIs(absl::StatusCode::kInvalidArgument));
                 } else {
                   EXPECT_THAT(groups->PreviousStage(),
                               IsOkAndHolds(Rank(groups->stage() - 1)));
                 }
                 // The group is still usable.
                 return groups->Run("stage", BarrierOf());
               }),
      Each(IsOk()));
}

TEST(GroupManagerTest, EndsGroupJoinsFirstAndLastStage) {
  EXPECT_THAT(
      RunRanks(
          8,
          [&](Communicator& world) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(
                auto groups, GroupManager::Create(world, MeshOf("tp2,pp4")));
            TESSERA_ASSIGN_OR_RETURN(Communicator* const ends,
                                     groups->EndsGroup("pp"));
            const bool at_end = groups->IsFirstStage() || groups->IsLastStage();
            TESSERA_RETURN_IF_ERROR(
                Expect((ends != nullptr) == at_end, "membership"));
            if (ends == nullptr) return absl::OkStatus();
            EXPECT_THAT(groups->EndsGroup("pp"), IsOkAndHolds(ends));
            int64_t sum = groups->mesh_rank().value();
            TESSERA_RETURN_IF_ERROR(
                ends->AllReduce(Buffer(std::span(&sum, 1)), Reduction::Sum()));
            return Expect(sum == 6 + 2 * (groups->mesh_rank().value() % 2),
                          "sum of ends");
          }),
      Each(IsOk()));
}

TEST(GroupManagerTest, OneStageHasNoEndsGroup) {
  EXPECT_THAT(
      RunRanks(2,
               [&](Communicator& world) -> absl::Status {
                 TESSERA_ASSIGN_OR_RETURN(
                     auto groups,
                     GroupManager::Create(world, MeshOf("tp2,pp1")));
                 EXPECT_THAT(groups->EndsGroup("pp"), IsOkAndHolds(nullptr));
                 EXPECT_THAT(groups->EndsGroup("zz"),
                             StatusIs(absl::StatusCode::kInvalidArgument));
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(GroupManagerTest, FindsOwnGroupsByName) {
  const Mesh mesh = MeshOf("a_group2,tp2,dp2");
  EXPECT_THAT(
      RunRanks(8,
               [&](Communicator& world) -> absl::Status {
                 TESSERA_ASSIGN_OR_RETURN(auto groups,
                                          GroupManager::Create(world, mesh));
                 for (const char* axes :
                      {"tp", "dp", "a_group", "dp,tp", "dp,a_group,tp"}) {
                   TESSERA_ASSIGN_OR_RETURN(Communicator* const group,
                                            groups->Group(axes));
                   EXPECT_THAT(groups->GroupNamed(group->name()),
                               IsOkAndHolds(group));
                 }
                 TESSERA_ASSIGN_OR_RETURN(
                     const std::string other,
                     topology::GroupName(
                         mesh, "tp",
                         topology::Rank(7 - groups->mesh_rank().value())));
                 for (const std::string& name :
                      {other, std::string("tp"), std::string("zz_group_tp0"),
                       std::string("_group"), std::string()}) {
                   EXPECT_THAT(groups->GroupNamed(name),
                               StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("has no group")))
                       << name;
                 }
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(GroupManagerTest, CountsOperationsByGroup) {
  EXPECT_THAT(
      RunRanks(
          4,
          [&](Communicator& world) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(
                auto groups, GroupManager::Create(world, MeshOf("tp2,pp2")));
            std::vector<float> values(12, 1.0f);
            const Buffer all{std::span(values)};
            TESSERA_RETURN_IF_ERROR(
                groups->Run("tp", AllReduceOf(all, all, Reduction::Sum()),
                            {.algorithm = Algorithm::kRing}));
            if (groups->IsFirstStage()) {
              TESSERA_RETURN_IF_ERROR(groups->SendToNextStage(all, 0));
            } else {
              TESSERA_RETURN_IF_ERROR(groups->ReceiveFromPreviousStage(all, 0));
            }
            std::map<std::string, OperationTotals> totals;
            for (const auto& [name, table] : groups->Statistics()) {
              totals[name] = Total(table);
              if (name.starts_with("tp_group")) {
                EXPECT_TRUE(
                    table.contains({OpKind::kAllReduce, Algorithm::kRing}));
              }
            }
            EXPECT_EQ(totals.size(), 2u);
            for (const auto& [name, of_group] : totals) {
              EXPECT_EQ(of_group.count, 1) << name;
              EXPECT_EQ(of_group.bytes, 48) << name;
            }
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

TEST(GroupManagerTest, RejectsMeshOfAnotherSize) {
  EXPECT_THAT(RunRanks(2,
                       [&](Communicator& world) -> absl::Status {
                         EXPECT_THAT(
                             GroupManager::Create(world, MeshOf("tp3")),
                             StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("mesh has 3 ranks")));
                         return absl::OkStatus();
                       }),
              Each(IsOk()));
}

}  // namespace
}  // namespace tessera::collectives
