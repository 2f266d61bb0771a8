#include "tools/mesh/rank_grid.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "topology/mesh.h"

namespace tessera::tools {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using topology::AxisSize;
using topology::Mesh;
using topology::ParseAxes;
using topology::Rank;

template <typename... Matchers>
auto Refused(Matchers... matchers) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(""), matchers...));
}

absl::StatusOr<RankGrid> GridOf(const Mesh& mesh,
                                std::initializer_list<std::string_view> sets) {
  return RankGrid::Create(mesh, std::vector(sets), mesh.first_rank());
}

Mesh MakeMesh(std::string_view sizes, std::string_view order,
              Rank first = Rank(0)) {
  return *Mesh::Create(*ParseAxes(sizes), order, first);
}

TEST(RankGridTest, RowsAndColumnsFollowTheAxes) {
  const Mesh mesh = MakeMesh("dp2,tp3", "tp-dp");
  TESSERA_ASSERT_OK_AND_ASSIGN(const RankGrid grid, GridOf(mesh, {"dp", "tp"}));
  EXPECT_EQ(grid.ToString(), "0 1 2\n3 4 5\n");
  EXPECT_EQ(grid.axes()[0].name, "dp");
  EXPECT_EQ(GridOf(mesh, {"tp", "dp"})->ToString(), "0 3\n1 4\n2 5\n");
  EXPECT_EQ(GridOf(mesh, {"tp"})->ToString(), "0 1 2\n");
  EXPECT_EQ(GridOf(mesh, {"dp,tp"})->ToString(), "0 1 2 3 4 5\n");
}

TEST(RankGridTest, EveryGridOfEveryMemberAgreesWithTheMesh) {
  const std::vector<std::string_view> axes = {"dp", "tp", "pp", "cp"};
  for (const char* order : {"tp-cp-dp-pp", "pp-dp-cp-tp", "dp-tp-pp-cp"}) {
    const Mesh mesh = MakeMesh("dp2,tp3,pp2,cp2", order, Rank(100));
    for (const std::string_view a : axes) {
      for (const std::string_view b : axes) {
        for (const std::string_view c : axes) {
          if (a == b || b == c || a == c) continue;
          const Rank member(100 + 17);
          const std::vector<std::string_view> sets = {a, b, c};
          TESSERA_ASSERT_OK_AND_ASSIGN(const RankGrid grid,
                                       RankGrid::Create(mesh, sets, member));
          int64_t cell = 0;
          for (const Rank rank : grid.ranks()) {
            std::vector<int64_t> at(3);
            for (size_t i = 3, rest = static_cast<size_t>(cell++); i-- > 0;) {
              const auto size = static_cast<size_t>(grid.axes()[i].size);
              at[i] = static_cast<int64_t>(rest % size);
              rest /= size;
            }
            for (const std::string_view axis : axes) {
              int64_t expected = *mesh.CoordinateOf(member, axis);
              for (size_t i = 0; i < sets.size(); ++i) {
                if (sets[i] == axis) expected = at[i];
              }
              EXPECT_THAT(mesh.CoordinateOf(rank, axis),
                          IsOkAndHolds(expected));
            }
          }
        }
      }
    }
  }
}

TEST(RankGridTest, ExpertAxesServeToo) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      WithExpertAxes(MakeMesh("dp2,tp2,pp2", "tp-dp-pp"), AxisSize(2)));
  EXPECT_EQ(GridOf(mesh, {"edp", "ep"})->ToString(), "0 1\n2 3\n");
  EXPECT_THAT(GridOf(mesh, {"ep", "tp"}), Refused());
}

TEST(RankGridTest, RefusesSetsThatMakeNoGrid) {
  const Mesh mesh = MakeMesh("dp2,tp3", "tp-dp");
  EXPECT_THAT(GridOf(mesh, {}),
              Refused(HasSubstr("0 sets of axes"), HasSubstr("1, 2 or 3")));
  EXPECT_THAT(GridOf(mesh, {"dp", "tp", "dp", "tp"}),
              Refused(HasSubstr("4 sets")));
  EXPECT_THAT(GridOf(mesh, {"dp,tp", "tp"}),
              Refused(HasSubstr("axis \"tp\" is in two sets")));
  EXPECT_THAT(GridOf(mesh, {"zp"}), Refused(HasSubstr("zp")));
  EXPECT_THAT(GridOf(mesh, {""}), Refused());
  const std::vector<std::string_view> sets = {"dp"};
  EXPECT_THAT(RankGrid::Create(mesh, sets, Rank(6)),
              Refused(HasSubstr("grid of ranks: ")));
}

TEST(RankGridTest, RefusesGridsThatAreTooLarge) {
  const Mesh mesh = MakeMesh("dp100000,tp100000", "tp-dp");
  EXPECT_THAT(GridOf(mesh, {"dp", "tp"}), Refused(HasSubstr("16777216 cells")));
  TESSERA_EXPECT_OK(GridOf(mesh, {"dp"}));
}

TEST(RankGridTest, DrawsAlignedRowsAndPlanes) {
  const Mesh mesh = MakeMesh("dp2,tp3,pp2", "tp-dp-pp", Rank(5));
  EXPECT_EQ(GridOf(mesh, {"pp", "dp", "tp"})->ToString(),
            "pp 0:\n 5  6  7\n 8  9 10\n"
            "pp 1:\n11 12 13\n14 15 16\n");
}

TEST(RankGridTest, DrawsOnlyTheFirstOfLargeGrids) {
  const Mesh mesh = MakeMesh("dp3,tp4,pp2", "tp-dp-pp");
  EXPECT_EQ(GridOf(mesh, {"dp", "tp"})->ToString(2),
            "0 1 ...\n"
            "4 5 ...\n"
            "...\n");
  EXPECT_EQ(GridOf(mesh, {"pp", "dp", "tp"})->ToString(0),
            "pp 0:\n0 ...\n...\n...\n");
  EXPECT_LT(GridOf(MakeMesh("dp100000", "dp"), {"dp"})->ToString().size(),
            200u);
}

}  // namespace

}  // namespace tessera::tools
