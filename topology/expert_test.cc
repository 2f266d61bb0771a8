#include "topology/expert.h"

#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Mesh Make(std::string_view axes, std::string_view order) {
  return *Mesh::Create(*ParseAxes(axes), order);
}

// Expert ranks by counting: within each pipeline stage the ranks, in order, are
// numbered, and the number's digits are etp, ep, edp.
TEST(ExpertTest, DividesEveryStageAnew) {
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

TEST(ExpertTest, RefusesSizesThatDoNotDivideAndListsThoseThatDo) {
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

}  // namespace
}  // namespace tessera::topology
