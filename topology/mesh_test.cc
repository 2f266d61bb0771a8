#include "topology/mesh.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Axis A(std::string name, int64_t size) {
  return {std::move(name), AxisSize(size)};
}

using ::testing::Not;

Mesh Make(std::string_view axes, std::string_view order = "tp-cp-ep-dp-pp") {
  return *Mesh::Create(*ParseAxes(axes), order);
}

TEST(MeshTest, CoordinatesFollowTheOrder) {
  const Mesh mesh = Make("dp2,pp3,tp4");
  EXPECT_EQ(mesh.order(), "tp-dp-pp");
  EXPECT_EQ(mesh.world_size(), 24);
  EXPECT_THAT(mesh.CoordinatesOf(Rank(23)), IsOkAndHolds(ElementsAre(3, 1, 2)));
  EXPECT_THAT(mesh.CoordinateOf(Rank(13), "tp"), IsOkAndHolds(1));
  EXPECT_THAT(mesh.CoordinateOf(Rank(13), "dp"), IsOkAndHolds(1));
  EXPECT_THAT(mesh.CoordinateOf(Rank(13), "pp"), IsOkAndHolds(1));
  EXPECT_THAT(mesh.SizeOf("pp"), IsOkAndHolds(AxisSize(3)));
}

TEST(MeshTest, AWorldWithoutAxesHasOneRank) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({}));
  EXPECT_EQ(mesh.world_size(), 1);
  EXPECT_THAT(mesh.CoordinatesOf(Rank(0)), IsOkAndHolds(ElementsAre()));
  EXPECT_THAT(mesh.RankAt({}), IsOkAndHolds(Rank(0)));
  EXPECT_THAT(mesh.GroupsAlong("tp"), StatusIs(kInvalid, HasSubstr("none")));
}

TEST(MeshTest, RejectsRanksAndCoordinatesOutside) {
  const Mesh mesh = Make("dp2,tp4");
  EXPECT_THAT(mesh.CoordinatesOf(Rank(8)),
              StatusIs(kInvalid, HasSubstr("rank 8 is outside")));
  EXPECT_THAT(mesh.CoordinatesOf(Rank(-1)), Not(IsOk()));
  EXPECT_THAT(mesh.CoordinateOf(Rank(8), "dp"), Not(IsOk()));
  const std::vector<int64_t> high = {4, 0}, low = {0, -1}, few = {1};
  EXPECT_THAT(
      mesh.RankAt(high),
      StatusIs(kInvalid, HasSubstr("4 is outside axis \"tp\", 0 to 3")));
  EXPECT_THAT(mesh.RankAt(low),
              StatusIs(kInvalid, HasSubstr("-1 is outside axis \"dp\"")));
  EXPECT_THAT(mesh.RankAt(few),
              StatusIs(kInvalid, HasSubstr("1 coordinates for a mesh of 2")));
}

TEST(MeshTest, RejectsUnknownAxesAndNamesTheKnown) {
  const Mesh mesh = Make("dp2,tp4");
  const auto unknown = StatusIs(
      kInvalid, AllOf(HasSubstr("unknown axis \"zz\""), HasSubstr("tp, dp")));
  EXPECT_THAT(mesh.GroupsAlong("tp,zz"), unknown);
  EXPECT_THAT(mesh.SizeOf("zz"), unknown);
  EXPECT_THAT(mesh.CoordinateOf(Rank(0), "zz"), unknown);
  EXPECT_THAT(mesh.Redivide("zz", {}), unknown);
}

TEST(MeshTest, RejectsOverflowingRankOffset) {
  const std::vector<Axis> axes = {A("dp", 4)};
  EXPECT_THAT(Mesh::Create(axes, Rank(-1)),
              StatusIs(kInvalid, HasSubstr("first rank -1")));
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Mesh::Create(axes, Rank(kMax - 3)), Not(IsOk()));
  EXPECT_THAT(Mesh::Create(axes, Rank(kMax - 4)), IsOk());
}

TEST(MeshTest, SupportsHugeMeshes) {
  const Mesh mesh = Make("dp1099511627776,tp8,pp1024");
  EXPECT_EQ(mesh.world_size(), int64_t{1} << 53);
  const Rank last(mesh.world_size() - 1);
  EXPECT_THAT(mesh.CoordinateOf(last, "dp"),
              IsOkAndHolds((int64_t{1} << 40) - 1));
  EXPECT_THAT(mesh.GroupsAlong("tp")->GroupOf(last),
              IsOkAndHolds((int64_t{1} << 50) - 1));
}

TEST(RedivideTest, HybridShardingSplitsTheDataAxis) {
  const std::vector<Axis> parts = {A("dp_shard", 2), A("dp_replicate", 3)};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                               Make("dp6,tp2").Redivide("dp", parts));
  for (int64_t r = 0; r < 12; ++r) {
    const int64_t dp = *mesh.CoordinateOf(Rank(r), "dp");
    EXPECT_THAT(mesh.CoordinateOf(Rank(r), "dp_shard"), IsOkAndHolds(dp % 2));
    EXPECT_THAT(mesh.CoordinateOf(Rank(r), "dp_replicate"),
                IsOkAndHolds(dp / 2));
  }
  EXPECT_EQ(mesh.division_count(), 2u);
  EXPECT_THAT(mesh.division(1),
              ElementsAre(A("tp", 2), A("dp_shard", 2), A("dp_replicate", 3)));
  EXPECT_EQ(mesh.GroupsAlong("dp_shard,tp")->All().front().size(), 4u);
  EXPECT_EQ(mesh.GroupsAlong("dp_shard,dp_replicate")->All(),
            mesh.GroupsAlong("dp")->All());
  EXPECT_THAT(mesh.GroupsAlong("dp,dp_shard"),
              StatusIs(kInvalid, HasSubstr("share coordinates")));
}

// The parts' coordinates must combine to the replaced axes' coordinate.
TEST(RedivideTest, PartsShareOutTheCoordinatesOfTheAxes) {
  std::mt19937 random(3);
  int divided = 0;
  for (int i = 0; i < 3'000; ++i) {
    const auto size = [&] { return static_cast<int64_t>(1 + random() % 4); };
    std::vector<std::string> names = {"cp", "dp", "pp", "tp"};
    std::shuffle(names.begin(), names.end(), random);
    std::vector<Axis> axes;
    for (const auto& name : names) axes.push_back(A(name, size()));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create(axes));
    const std::vector<Axis> parts = {A("x", size()), A("y", size())};
    const auto redivided = mesh.Redivide("tp,dp", parts);
    if (!redivided.ok()) continue;
    ++divided;
    for (int64_t r = 0; r < mesh.world_size(); ++r) {
      int64_t number = 0;
      for (size_t a = axes.size(); a-- > 0;) {
        if (names[a] != "tp" && names[a] != "dp") continue;
        number = number * axes[a].size.value() +
                 *mesh.CoordinateOf(Rank(r), names[a]);
      }
      const int64_t x = *redivided->CoordinateOf(Rank(r), "x");
      const int64_t y = *redivided->CoordinateOf(Rank(r), "y");
      ASSERT_EQ(y * parts[0].size.value() + x, number);
    }
    ASSERT_EQ(redivided->GroupsAlong("x,y")->All(),
              mesh.GroupsAlong("tp,dp")->All());
  }
  EXPECT_GT(divided, 100);
}

TEST(RedivideTest, CanBeRepeated) {
  const std::vector<Axis> data = {A("dp_shard", 4), A("dp_replicate", 2)};
  const std::vector<Axis> shard = {A("near", 2), A("far", 2)};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh once,
                               Make("dp8,tp2").Redivide("dp", data));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh twice,
                               once.Redivide("dp_shard", shard));
  EXPECT_THAT(twice.CoordinateOf(Rank(6), "far"), IsOkAndHolds(1));
  EXPECT_EQ(twice.GroupsAlong("near,far,dp_replicate")->All(),
            twice.GroupsAlong("dp")->All());
}

TEST(RedivideTest, RejectsInvalidParts) {
  const Mesh mesh = Make("dp6,pp2,tp2");
  const std::vector<Axis> wrong = {A("x", 4)}, taken = {A("tp", 6)},
                          zero = {A("x", 0)};
  EXPECT_THAT(mesh.Redivide("dp", wrong),
              StatusIs(kInvalid, AllOf(HasSubstr("hold 6 ranks"),
                                       HasSubstr("divided into x4"))));
  EXPECT_THAT(mesh.Redivide("dp", taken),
              StatusIs(kInvalid, HasSubstr("already has an axis \"tp\"")));
  EXPECT_THAT(mesh.Redivide("dp", zero),
              StatusIs(kInvalid, HasSubstr("size 0")));
  // pp lies between tp (2) and dp (3), and 3 divides neither.
  const Mesh apart = Make("dp3,pp2,tp2", "tp-pp-dp");
  const std::vector<Axis> across = {A("x", 3), A("y", 2)};
  EXPECT_THAT(apart.Redivide("tp,dp", across),
              StatusIs(kInvalid, HasSubstr("part of size 3")));
}

TEST(PresetTest, EveryPresetOrdersEveryUsualAxis) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto axes,
                               ParseAxes("cp2,dp2,ep2,pp2,tp2"));
  for (const Preset& preset : Presets()) {
    EXPECT_THAT(Mesh::Create(axes, preset.order), IsOk()) << preset.name;
    EXPECT_EQ(FindPreset(preset.name)->order, preset.order);
    EXPECT_FALSE(preset.description.empty());
  }
}

TEST(PresetTest, PipelineFastestThenTensorThenData) {
  const int64_t pp = 3, tp = 2;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto axes, ParseAxes("dp4,pp3,tp2"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      Mesh::Create(axes, FindPreset("pipeline-tensor-data")->order));
  for (int64_t r = 0; r < mesh.world_size(); ++r) {
    EXPECT_THAT(mesh.CoordinateOf(Rank(r), "dp"), IsOkAndHolds(r / (pp * tp)));
    EXPECT_THAT(mesh.CoordinateOf(Rank(r), "tp"), IsOkAndHolds(r / pp % tp));
    EXPECT_THAT(mesh.CoordinateOf(Rank(r), "pp"), IsOkAndHolds(r % pp));
  }
}

TEST(PresetTest, DataPipelineContextTensorHasTensorFastest) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto axes, ParseAxes("dp2,pp3,cp5,tp7"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      Mesh::Create(axes, FindPreset("data-pipeline-context-tensor")->order));
  const int64_t rank = ((1 * 3 + 2) * 5 + 4) * 7 + 6;
  EXPECT_THAT(mesh.CoordinateOf(Rank(rank), "dp"), IsOkAndHolds(1));
  EXPECT_THAT(mesh.CoordinateOf(Rank(rank), "pp"), IsOkAndHolds(2));
  EXPECT_THAT(mesh.CoordinateOf(Rank(rank), "cp"), IsOkAndHolds(4));
  EXPECT_THAT(mesh.CoordinateOf(Rank(rank), "tp"), IsOkAndHolds(6));
}

TEST(PresetTest, AnUnknownNameListsTheKnown) {
  EXPECT_THAT(FindPreset("mega"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("\"mega\""), HasSubstr("megatron, "))));
}

// Expert ranks by counting: within each pipeline stage the ranks are numbered
// in order, and the digits of the number are etp, ep, edp.
TEST(ExpertTest, NumbersExpertRanksWithinEachStage) {
  for (std::string_view order :
       {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-tp-cp-ep-dp"}) {
    const Mesh dense = Make("dp4,pp2,tp2,cp2", order);
    for (int64_t etp : {1, 2}) {
      for (int64_t ep : {1, 2, 4, 8}) {
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const Mesh mesh,
            WithExpertAxes(dense, AxisSize(ep), AxisSize(etp)));
        std::vector<int64_t> seen(2, 0);
        for (int64_t r = 0; r < 32; ++r) {
          const auto stage =
              static_cast<size_t>(*mesh.CoordinateOf(Rank(r), "pp"));
          const int64_t number = seen[stage]++;
          EXPECT_THAT(mesh.CoordinateOf(Rank(r), "etp"),
                      IsOkAndHolds(number % etp));
          EXPECT_THAT(mesh.CoordinateOf(Rank(r), "ep"),
                      IsOkAndHolds(number / etp % ep));
          EXPECT_THAT(mesh.CoordinateOf(Rank(r), "edp"),
                      IsOkAndHolds(number / etp / ep));
        }
        EXPECT_EQ(mesh.GroupsAlong("edp")->size(), 16 / ep / etp);
      }
    }
  }
}

TEST(ExpertTest, ExpertSizesNeedNotNestWithTensorAndData) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      WithExpertAxes(Make("tp2,cp3,dp2", "tp-cp-dp"), AxisSize(4)));
  EXPECT_THAT(
      mesh.GroupsAlong("ep")->Members(1),
      IsOkAndHolds(std::vector<Rank>{Rank(4), Rank(5), Rank(6), Rank(7)}));
}

TEST(ExpertTest, RejectsNonDivisorsAndListsDivisors) {
  const Mesh mesh = Make("dp4,tp2", "tp-dp");
  EXPECT_THAT(
      WithExpertAxes(mesh, AxisSize(3)),
      StatusIs(kInvalid, AllOf(HasSubstr("ep 3 x etp 1"), HasSubstr("= 8"),
                               HasSubstr("one of 1, 2, 4, 8"))));
  EXPECT_THAT(WithExpertAxes(mesh, AxisSize(8), AxisSize(2)),
              StatusIs(kInvalid, HasSubstr("ep 8 x etp 2")));
  EXPECT_THAT(WithExpertAxes(mesh, AxisSize(0)), StatusIs(kInvalid));
  EXPECT_THAT(WithExpertAxes(Make("pp4", "pp"), AxisSize(1)),
              StatusIs(kInvalid, HasSubstr("has none of them")));
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

TEST(GroupNameTest, IsUniqueAndSharedByMembers) {
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

TEST(GroupNameTest, RejectsUnknownAxesAndRanks) {
  const Mesh mesh = Make("dp2,pp2,tp2");
  EXPECT_THAT(GroupName(mesh, "zz", Rank(0)),
              StatusIs(kInvalid, HasSubstr("unknown axis \"zz\"")));
  EXPECT_THAT(GroupName(mesh, "dp", Rank(8)),
              StatusIs(kInvalid, HasSubstr("rank 8 is outside")));
}

TEST(DescribeRankTest, ShowsUsualAxesAndOthersIfPresent) {
  EXPECT_EQ(DescribeRank(Make("dp2,pp2,tp2"), Rank(3)),
            "TP(2)-CP(1)-PP(2)-DP(2)-Rank(3)");
  EXPECT_EQ(DescribeRank(Make("dp2,ep4", "ep-dp"), Rank(7)),
            "TP(1)-CP(1)-PP(1)-DP(2)-EP(4)-Rank(7)");
}

}  // namespace

}  // namespace tessera::topology
