#include "topology/group_name.h"

#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/expert.h"

namespace tessera::topology {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Mesh Make(std::string_view axes, std::string_view order = "tp-cp-ep-dp-pp") {
  return *Mesh::Create(*ParseAxes(axes), order);
}

TEST(GroupNameTest, NamesTheOtherCoordinatesCanonically) {
  const Mesh mesh = Make("dp2,pp2,tp2");
  // tp fastest, then dp, then pp: rank 4 is tp0 dp0 pp1, rank 3 is tp1 dp1 pp0.
  EXPECT_THAT(GroupName(mesh, "dp", Rank(4)), IsOkAndHolds("dp_group_tp0_pp1"));
  EXPECT_THAT(GroupName(mesh, "tp", Rank(3)), IsOkAndHolds("tp_group_dp1_pp0"));
  EXPECT_THAT(GroupName(mesh, "pp", Rank(3)), IsOkAndHolds("pp_group_dp1_tp1"));
  EXPECT_THAT(GroupName(mesh, "pp,tp", Rank(3)),
              IsOkAndHolds("tp-pp_group_dp1"));
  EXPECT_THAT(GroupName(mesh, "dp,tp,pp", Rank(3)),
              IsOkAndHolds("dp-tp-pp_group"));
}

TEST(GroupNameTest, IsUniqueSharedByMembersAndFindsThem) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh, WithExpertAxes(Make("dp4,pp2,tp2,cp3"), AxisSize(2)));
  for (std::string_view axes :
       {"dp", "tp", "pp", "cp", "ep", "edp", "dp-cp", "tp-pp", "ep-etp"}) {
    const Groups groups = *mesh.GroupsAlong(axes);
    std::set<std::string> names;
    for (const std::vector<Rank>& members : groups.All()) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::string name,
                                   GroupName(mesh, axes, members.front()));
      EXPECT_TRUE(names.insert(name).second) << name;
      EXPECT_THAT(FindGroup(mesh, name), IsOkAndHolds(members));
      for (const Rank rank : members) {
        EXPECT_THAT(GroupName(mesh, axes, rank), IsOkAndHolds(name));
      }
    }
  }
}

TEST(GroupNameTest, DoesNotDependOnTheOrder) {
  EXPECT_THAT(GroupName(Make("dp2,pp2,tp2", "pp-tp-dp"), "dp", Rank(1)),
              IsOkAndHolds("dp_group_tp0_pp1"));
}

TEST(GroupNameTest, AnAxisMayBeCalledGroup) {
  const Mesh mesh = Make("a_group2,tp2", "a_group-tp");
  for (std::string_view axes : {"a_group", "tp"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string name,
                                 GroupName(mesh, axes, Rank(3)));
    EXPECT_THAT(FindGroup(mesh, name),
                IsOkAndHolds(*mesh.GroupsAlong(axes)->MembersWith(Rank(3))));
  }
}

TEST(GroupNameTest, RefusesWhatNamesNoGroup) {
  const Mesh mesh = Make("dp2,pp2,tp2");
  EXPECT_THAT(GroupName(mesh, "zz", Rank(0)),
              StatusIs(kInvalid, HasSubstr("unknown axis \"zz\"")));
  EXPECT_THAT(GroupName(mesh, "dp", Rank(8)),
              StatusIs(kInvalid, HasSubstr("rank 8 is outside")));
  for (std::string_view name :
       {"", "dp", "dp_group", "dp_group_tp0", "dp_group_tp0_pp2",
        "dp_group_pp0_tp0", "dp_group_tp0_pp0_", "dp_group_tp00_pp0",
        "dp_group_tp-1_pp0", "zz_group_tp0", "_group",
        "dp_group_tp0_pp99999999999999999999"}) {
    EXPECT_THAT(FindGroup(mesh, name),
                StatusIs(kInvalid, HasSubstr("names no group of the mesh")))
        << name;
  }
}

TEST(DescribeRankTest, ShowsTheUsualAxesAlwaysAndOthersWhereTheyAre) {
  EXPECT_EQ(DescribeRank(Make("dp2,pp2,tp2"), Rank(3)),
            "TP(2)-CP(1)-PP(2)-DP(2)-Rank(3)");
  EXPECT_EQ(DescribeRank(Make("dp2,ep4", "ep-dp"), Rank(7)),
            "TP(1)-CP(1)-PP(1)-DP(2)-EP(4)-Rank(7)");
}

}  // namespace
}  // namespace tessera::topology
