#include <string>
#include <string_view>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/axis.h"
#include "topology/device_mesh.h"
#include "topology/expert.h"
#include "topology/mesh.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename... Matchers>
auto Refused(Matchers... matchers) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(""), matchers...));
}

Mesh MakeMesh(std::string_view sizes, std::string_view order,
              Rank first = Rank(0)) {
  return *Mesh::Create(*ParseAxes(sizes), order, first);
}

TEST(FromMeshTest, RowsAndColumnsFollowTheAxes) {
  const Mesh mesh = MakeMesh("dp2,tp3", "tp-dp");
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceMesh grid,
                               DeviceMesh::FromMesh(mesh, {"dp", "tp"}));
  EXPECT_EQ(grid.ToString(), "0 1 2\n3 4 5\n");
  EXPECT_EQ(grid.axes()[0].name, "dp");
  EXPECT_EQ(DeviceMesh::FromMesh(mesh, {"tp", "dp"})->ToString(),
            "0 3\n1 4\n2 5\n");
  EXPECT_EQ(DeviceMesh::FromMesh(mesh, {"tp"})->ToString(), "0 1 2\n");
  EXPECT_EQ(DeviceMesh::FromMesh(mesh, {"dp,tp"})->ToString(), "0 1 2 3 4 5\n");
}

TEST(FromMeshTest, EveryGridOfEveryMemberAgreesWithTheMesh) {
  const std::vector<std::string_view> axes = {"dp", "tp", "pp", "cp"};
  for (const char* order : {"tp-cp-dp-pp", "pp-dp-cp-tp", "dp-tp-pp-cp"}) {
    const Mesh mesh = MakeMesh("dp2,tp3,pp2,cp2", order, Rank(100));
    for (const std::string_view a : axes) {
      for (const std::string_view b : axes) {
        for (const std::string_view c : axes) {
          if (a == b || b == c || a == c) continue;
          const Rank member(100 + 17);
          const std::vector<std::string_view> sets = {a, b, c};
          TESSERA_ASSERT_OK_AND_ASSIGN(
              const DeviceMesh grid, DeviceMesh::FromMesh(mesh, sets, member));
          ASSERT_TRUE(grid.full());
          for (const DeviceId device : grid.devices()) {
            const Rank rank(device.value());
            const GridCoordinates at = *grid.CoordinatesOf(device);
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

TEST(FromMeshTest, ExpertAxesServeToo) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      WithExpertAxes(MakeMesh("dp2,tp2,pp2", "tp-dp-pp"), AxisSize(2)));
  EXPECT_EQ(DeviceMesh::FromMesh(mesh, {"edp", "ep"})->ToString(),
            "0 1\n2 3\n");
  EXPECT_THAT(DeviceMesh::FromMesh(mesh, {"ep", "tp"}), Refused());
}

TEST(FromMeshTest, RefusesSetsThatMakeNoGrid) {
  const Mesh mesh = MakeMesh("dp2,tp3", "tp-dp");
  EXPECT_THAT(DeviceMesh::FromMesh(mesh, {}),
              Refused(HasSubstr("0 sets of axes"), HasSubstr("1, 2 or 3")));
  EXPECT_THAT(DeviceMesh::FromMesh(mesh, {"dp", "tp", "dp", "tp"}),
              Refused(HasSubstr("4 sets")));
  EXPECT_THAT(DeviceMesh::FromMesh(mesh, {"dp,tp", "tp"}),
              Refused(HasSubstr("axis \"tp\" is in two sets")));
  EXPECT_THAT(DeviceMesh::FromMesh(mesh, {"zp"}), Refused(HasSubstr("zp")));
  EXPECT_THAT(DeviceMesh::FromMesh(mesh, {""}), Refused());
  const std::vector<std::string_view> sets = {"dp"};
  EXPECT_THAT(DeviceMesh::FromMesh(mesh, sets, Rank(6)),
              Refused(HasSubstr("device mesh of ranks: ")));
}

TEST(FromMeshTest, RefusesGridsThatAreTooLarge) {
  const Mesh mesh = MakeMesh("dp100000,tp100000", "tp-dp");
  EXPECT_THAT(DeviceMesh::FromMesh(mesh, {"dp", "tp"}),
              Refused(HasSubstr("16777216 cells")));
  TESSERA_EXPECT_OK(DeviceMesh::FromMesh(mesh, {"dp"}));
}

}  // namespace
}  // namespace tessera::topology
