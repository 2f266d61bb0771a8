// The expectations of picotron's process_group_manager.py: a grid of dp, pp, cp
// and tp whose last axis varies fastest.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/groups.h"
#include "topology/mesh.h"

namespace tessera::topology {
namespace {

using ::testing::ElementsAre;

struct Sizes {
  int64_t tp, cp, pp, dp;
};

Mesh GridOf(const Sizes& s) {
  return *Mesh::Create(std::vector<Axis>{{"tp", AxisSize(s.tp)},
                                         {"cp", AxisSize(s.cp)},
                                         {"pp", AxisSize(s.pp)},
                                         {"dp", AxisSize(s.dp)}});
}

TEST(PicotronTest, TensorRanksAreAdjacent) {
  const Mesh mesh = GridOf({2, 1, 2, 2});
  EXPECT_THAT(*mesh.GroupsAlong("tp")->MembersWith(Rank(5)),
              ElementsAre(Rank(4), Rank(5)));
  EXPECT_THAT(*mesh.GroupsAlong("pp")->MembersWith(Rank(5)),
              ElementsAre(Rank(5), Rank(7)));
  EXPECT_THAT(*mesh.GroupsAlong("dp")->MembersWith(Rank(5)),
              ElementsAre(Rank(1), Rank(5)));
  EXPECT_EQ(DescribeRank(mesh, Rank(5)), "TP(2)-CP(1)-PP(2)-DP(2)-Rank(5)");
}

TEST(PicotronTest, CoordinatesAreThoseOfTheGrid) {
  const Sizes s = {2, 3, 2, 2};
  const Mesh mesh = GridOf(s);
  int64_t rank = 0;
  for (int64_t dp = 0; dp < s.dp; ++dp) {
    for (int64_t pp = 0; pp < s.pp; ++pp) {
      for (int64_t cp = 0; cp < s.cp; ++cp) {
        for (int64_t tp = 0; tp < s.tp; ++tp, ++rank) {
          EXPECT_THAT(*mesh.CoordinatesOf(Rank(rank)),
                      ElementsAre(tp, cp, pp, dp));
        }
      }
    }
  }
}

TEST(PicotronTest, ContextRanksFormARing) {
  const Mesh mesh = GridOf({1, 4, 1, 1});
  const Groups cp = *mesh.GroupsAlong("cp");
  EXPECT_EQ(*cp.Shift(Rank(3), 1, Boundary::kCyclic), Rank(0));   // send
  EXPECT_EQ(*cp.Shift(Rank(0), -1, Boundary::kCyclic), Rank(3));  // receive
}

TEST(PicotronTest, PipelineHasEnds) {
  const Mesh mesh = GridOf({1, 1, 3, 1});
  const Groups pp = *mesh.GroupsAlong("pp");
  EXPECT_EQ(*pp.Head(Rank(1)), Rank(0));
  EXPECT_EQ(*pp.Tail(Rank(1)), Rank(2));
  EXPECT_EQ(*pp.Shift(Rank(2), 1, Boundary::kOpen), std::nullopt);
  EXPECT_EQ(*pp.Shift(Rank(0), -1, Boundary::kOpen), std::nullopt);
  EXPECT_EQ(*pp.Shift(Rank(1), 1, Boundary::kOpen), Rank(2));
}

TEST(PicotronTest, GradientsAreReducedOverContextAndDataRanks) {
  const Mesh mesh = GridOf({2, 2, 1, 2});
  EXPECT_EQ(mesh.GroupsAlong("cp,dp")->size(), 4);
  EXPECT_THAT(*mesh.GroupsAlong("cp,dp")->MembersWith(Rank(1)),
              ElementsAre(Rank(1), Rank(3), Rank(5), Rank(7)));
  EXPECT_EQ(mesh.GroupsAlong("pp,dp")->size(), 2);
}

}  // namespace
}  // namespace tessera::topology
