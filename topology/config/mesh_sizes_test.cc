#include "topology/config/mesh_sizes.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "topology/groups.h"
#include "topology/rank.h"

namespace tessera::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

auto Refused(const std::string& words) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
}

std::vector<int64_t> GroupOf(const Mesh& mesh, std::string_view axes,
                             int64_t rank) {
  const std::vector<Rank> members =
      *mesh.GroupsAlong(axes)->MembersWith(Rank(rank));
  std::vector<int64_t> numbers;
  for (const Rank member : members) numbers.push_back(member.value());
  return numbers;
}

TEST(MeshSizesTest, RoundTripsText) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const MeshSizes mesh,
                               MeshSizes::Parse("tp8,dp3"));
  EXPECT_EQ(mesh, (MeshSizes{.dp = 3, .tp = 8}));
  EXPECT_EQ(mesh.world_size(), 24);
  EXPECT_EQ(mesh.ToString(), "dp3,pp1,cp1,tp8");
  EXPECT_EQ(mesh.ToFlag(), "dp3,tp8");
  for (const char* hybrid :
       {"dp_replicate2,dp_shard3,tp4", "tp4,dp6,dp_shard3",
        "dp6,tp4,dp_replicate2", "dp_replicate2,dp_shard3,pp1,cp1,tp4"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const MeshSizes sizes,
                                 MeshSizes::Parse(hybrid));
    EXPECT_EQ(sizes.dp, 6);
    EXPECT_EQ(sizes.dp_replicate, 2);
    EXPECT_EQ(sizes.shard_ranks(), 3);
    EXPECT_EQ(sizes.world_size(), 24);
    EXPECT_EQ(sizes.ToString(), "dp_replicate2,dp_shard3,pp1,cp1,tp4");
    EXPECT_EQ(sizes.ToFlag(), "dp_replicate2,dp_shard3,tp4");
  }
  // One of the two keys alone.
  EXPECT_EQ(MeshSizes::Parse("dp_shard4")->dp_replicate, 1);
  EXPECT_EQ(MeshSizes::Parse("dp_shard4")->dp, 4);
  EXPECT_EQ(MeshSizes::Parse("dp_replicate4")->dp_shard(), 1);
}

TEST(MeshSizesTest, BothTextsSayAllSizes) {
  for (int64_t code = 0; code < 3 * 3 * 3 * 3 * 3; ++code) {
    const MeshSizes mesh = {
        .dp = (1 + code % 3) * (1 + code / 3 % 3),
        .pp = 1 + code / 9 % 3,
        .cp = 1 + code / 27 % 3,
        .tp = 1 + code / 81 % 3,
        .dp_replicate = 1 + code % 3,
    };
    EXPECT_THAT(MeshSizes::Parse(mesh.ToString()), IsOkAndHolds(mesh));
    EXPECT_THAT(MeshSizes::Parse(mesh.ToFlag()), IsOkAndHolds(mesh))
        << mesh.ToFlag();
  }
  EXPECT_EQ(MeshSizes().ToFlag(), "dp1");
  EXPECT_EQ((MeshSizes{.pp = 2}).ToFlag(), "pp2");
}

TEST(MeshSizesTest, RejectsInvalidTexts) {
  EXPECT_THAT(MeshSizes::Parse(""), Refused("a mesh of 0 characters"));
  EXPECT_THAT(MeshSizes::Parse("dp0"), Refused("axis \"dp\" has size 0"));
  EXPECT_THAT(MeshSizes::Parse("dp2,dp2"), Refused("is named twice"));
  EXPECT_THAT(MeshSizes::Parse("zz2"),
              Refused("unknown axis \"zz\"; the axes are dp (or "
                      "dp_replicate and dp_shard), pp, cp, tp and ep"));
  EXPECT_THAT(MeshSizes::Parse("dp2,cp3,ep4"),
              Refused("ep4 does not divide cp x dp, which is 3 x 2"));
  EXPECT_THAT(MeshSizes::Parse("dp4,dp_shard3"),
              Refused("dp_shard3 does not divide dp4"));
  EXPECT_THAT(MeshSizes::Parse("dp_replicate3,dp4"),
              Refused("dp_replicate3 does not divide dp4"));
  EXPECT_THAT(MeshSizes::Parse("dp4,dp_shard4,dp_replicate2"),
              Refused("dp4 is not dp_replicate2 x dp_shard4: leave dp out"));
  EXPECT_THAT(MeshSizes::Parse("dp2\n"), Refused("do not print"));
  EXPECT_THAT(MeshSizes::Parse("dp2,tp1048576"),
              Refused("2097152 ranks; at most 1048576 are allowed"));
}

TEST(MeshSizesTest, RejectsInvalidSizes) {
  const auto refused = [](const MeshSizes& mesh, const std::string& words) {
    EXPECT_THAT(mesh.Validate(), Refused(words));
    EXPECT_THAT(mesh.MakeMesh(), Refused(words));
  };
  refused({.dp = 0}, "axis \"dp\" has size 0");
  refused({.pp = -1}, "axis \"pp\" has size -1");
  refused({.dp = 4, .dp_replicate = 0}, "dp_replicate0 does not divide dp4");
  refused({.dp = 4, .dp_replicate = 3}, "dp_replicate3 does not divide dp4");
  refused({.dp = kMax, .tp = kMax}, "multiply to more than 2^63-1 ranks");
  refused({.dp = MeshSizes::kMaxRanks, .tp = 2}, "2097152 ranks; at most");
  TESSERA_EXPECT_OK(MeshSizes{.dp = MeshSizes::kMaxRanks}.Validate());
}

// The formula that checkpoints and launchers depend on.
TEST(MeshSizesTest, DefaultOrderIsTensorContextDataPipeline) {
  const MeshSizes sizes = {.dp = 4, .pp = 2, .cp = 3, .tp = 2};
  for (const int64_t replicas : {1, 2, 4}) {
    MeshSizes hybrid = sizes;
    hybrid.dp_replicate = replicas;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, hybrid.MakeMesh());
    EXPECT_EQ(mesh.order(), "tp-cp-dp-pp");
    ASSERT_EQ(mesh.world_size(), 48);
    int64_t rank = 0;
    for (int64_t pp = 0; pp < 2; ++pp) {
      for (int64_t dp = 0; dp < 4; ++dp) {
        for (int64_t cp = 0; cp < 3; ++cp) {
          for (int64_t tp = 0; tp < 2; ++tp, ++rank) {
            EXPECT_THAT(mesh.CoordinatesOf(Rank(rank)),
                        IsOkAndHolds(ElementsAre(tp, cp, dp, pp)));
          }
        }
      }
    }
  }
}

// Against the mesh, for every order.
TEST(MeshSizesTest, EveryOrderNumbersRanksByItsStrides) {
  MeshSizes sizes = {.dp = 4, .pp = 3, .cp = 2, .tp = 5};
  std::sort(sizes.order.begin(), sizes.order.end());
  do {
    const std::string order = FormatAxisOrder(sizes.order);
    EXPECT_THAT(sizes.ParseOrder(order), IsOkAndHolds(sizes.order));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, sizes.MakeMesh());
    EXPECT_EQ(mesh.order(), order);
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      for (const MeshAxis axis : sizes.order) {
        EXPECT_THAT(
            mesh.CoordinateOf(Rank(rank), MeshAxisName(axis)),
            IsOkAndHolds(rank / sizes.StrideOf(axis) % sizes.SizeOf(axis)));
      }
    }
  } while (std::next_permutation(sizes.order.begin(), sizes.order.end()));
}

TEST(MeshSizesTest, OrdersMayOmitAxesOfSizeOne) {
  const MeshSizes sizes = {.dp = 2, .tp = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const AxisOrder order,
                               sizes.ParseOrder("dp-ep-tp"));
  EXPECT_EQ(FormatAxisOrder(order), "dp-cp-tp-pp");
  // They do not matter: they keep their positions in the default order.
  EXPECT_EQ(sizes.ParseOrder("pp-tp-cp-dp").value(), kDefaultAxisOrder);
  EXPECT_THAT(sizes.ParseOrder("tp-pp"),
              Refused("lacks axis \"dp\"; name every axis of the mesh"));
  EXPECT_THAT(sizes.ParseOrder("tp-dp-tp"), Refused("twice"));
  EXPECT_THAT(sizes.ParseOrder("tp-dp-xp"), Refused("unknown axis \"xp\""));
  EXPECT_THAT(sizes.ParseOrder(""), Refused("empty name"));
}

TEST(MeshSizesTest, RanksOfAShardGroupAreNear) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      (MeshSizes{.dp = 4, .tp = 2, .dp_replicate = 2}.MakeMesh()));
  EXPECT_THAT(GroupOf(mesh, "dp", 1), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(GroupOf(mesh, "cp,dp_shard", 1), ElementsAre(1, 3));
  EXPECT_THAT(GroupOf(mesh, "cp,dp_shard", 7), ElementsAre(5, 7));
  EXPECT_THAT(GroupOf(mesh, "dp_replicate", 1), ElementsAre(1, 5));
  // Without replicas these axes do not exist.
  EXPECT_FALSE(MeshSizes{.dp = 4}.MakeMesh()->SizeOf("dp_shard").ok());
}

TEST(MeshSizesFuzzTest, MutatedTextsRoundTripOrFailInOneLine) {
  TextMutator mutator({"dp2,pp2,tp2", "cp4", "dp=3,tp8", "dp4,dp_shard2"},
                      {",", "=", "ep8", "dp", "-1", "9223372036854775807"}, 5);
  int valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    const absl::StatusOr<MeshSizes> mesh = MeshSizes::Parse(mutator.Next());
    if (!mesh.ok()) {
      ASSERT_THAT(mesh, Refused(""));
      ASSERT_EQ(mesh.status().message().find('\n'), std::string::npos);
      ASSERT_LT(mesh.status().message().size(), 1000u);
      continue;
    }
    ++valid;
    ASSERT_THAT(MeshSizes::Parse(mesh->ToString()), IsOkAndHolds(*mesh));
    TESSERA_ASSERT_OK(mesh->MakeMesh());
  }
  EXPECT_GT(valid, 1000);
}

}  // namespace
}  // namespace tessera::topology
