#include "topology/mesh.h"

#include <algorithm>
#include <limits>
#include <random>
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
using ::testing::Not;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Axis A(std::string name, int64_t size) {
  return {std::move(name), AxisSize(size)};
}

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

TEST(MeshTest, RefusesRanksAndCoordinatesOutside) {
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

TEST(MeshTest, RefusesUnknownAxesAndNamesTheKnown) {
  const Mesh mesh = Make("dp2,tp4");
  const auto unknown = StatusIs(
      kInvalid, AllOf(HasSubstr("unknown axis \"zz\""), HasSubstr("tp, dp")));
  EXPECT_THAT(mesh.GroupsAlong("tp,zz"), unknown);
  EXPECT_THAT(mesh.SizeOf("zz"), unknown);
  EXPECT_THAT(mesh.CoordinateOf(Rank(0), "zz"), unknown);
  EXPECT_THAT(mesh.Redivide("zz", {}), unknown);
}

TEST(MeshTest, RefusesARankOffsetThatOverflows) {
  const std::vector<Axis> axes = {A("dp", 4)};
  EXPECT_THAT(Mesh::Create(axes, Rank(-1)),
              StatusIs(kInvalid, HasSubstr("first rank -1")));
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Mesh::Create(axes, Rank(kMax - 3)), Not(IsOk()));
  EXPECT_THAT(Mesh::Create(axes, Rank(kMax - 4)), IsOk());
}

TEST(MeshTest, HugeMeshesCostNothing) {
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

// The parts must spell the number that the replaced axes spell.
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

TEST(RedivideTest, RefusesPartsThatDoNotFit) {
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
  // pp lies between tp (2) and dp (3), and 3 cuts neither evenly.
  const Mesh apart = Make("dp3,pp2,tp2", "tp-pp-dp");
  const std::vector<Axis> across = {A("x", 3), A("y", 2)};
  EXPECT_THAT(apart.Redivide("tp,dp", across),
              StatusIs(kInvalid, HasSubstr("part of size 3")));
}

}  // namespace
}  // namespace tessera::topology
