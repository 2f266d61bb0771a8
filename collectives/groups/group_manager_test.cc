#include "collectives/groups/group_manager.h"

#include <numeric>
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
