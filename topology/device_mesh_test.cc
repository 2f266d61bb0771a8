#include "topology/device_mesh.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "topology/mesh.h"
#include "topology/rank.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

template <typename... Matchers>
auto Refused(Matchers... matchers) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(""), matchers...));
}

std::vector<DeviceId> Ids(std::vector<int64_t> ids) {
  std::vector<DeviceId> devices;
  for (const int64_t id : ids) devices.push_back(DeviceId(id));
  return devices;
}

std::vector<DeviceId> FirstIds(int64_t count) {
  std::vector<DeviceId> devices;
  for (int64_t id = 0; id < count; ++id) devices.push_back(DeviceId(id));
  return devices;
}

// Distinct ids in no order.
std::vector<DeviceId> ShuffledIds(int64_t count, uint64_t seed) {
  std::vector<DeviceId> devices;
  for (int64_t i = 0; i < count; ++i) devices.push_back(DeviceId(i * 7 + 3));
  std::shuffle(devices.begin(), devices.end(), std::mt19937_64(seed));
  return devices;
}

using Lists = std::vector<std::vector<DeviceId>>;

// The cells by plane, row and column; -1 if empty.
using Cells = std::vector<std::vector<std::vector<int64_t>>>;

Cells BruteForce(int64_t planes, int64_t rows, int64_t columns,
                 const std::vector<DeviceId>& devices) {
  Cells cells(planes, {static_cast<size_t>(rows),
                       std::vector<int64_t>(static_cast<size_t>(columns), -1)});
  auto next = devices.begin();
  for (auto& plane : cells) {
    for (auto& row : plane) {
      for (int64_t& cell : row) {
        if (next != devices.end()) cell = (next++)->value();
      }
    }
  }
  return cells;
}

void ExpectCell(const DeviceMesh& mesh, const GridCoordinates& coordinates,
                int64_t expected) {
  const auto found = mesh.At(coordinates);
  const auto empty = mesh.EmptyCells();
  const bool listed =
      std::find(empty.begin(), empty.end(), coordinates) != empty.end();
  EXPECT_EQ(listed, expected < 0);
  if (expected < 0) {
    EXPECT_THAT(found,
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("is empty")));
    return;
  }
  EXPECT_THAT(found, IsOkAndHolds(DeviceId(expected)));
  EXPECT_TRUE(mesh.Contains(DeviceId(expected)));
  EXPECT_THAT(mesh.CoordinatesOf(DeviceId(expected)),
              IsOkAndHolds(coordinates));
}

void Add(int64_t id, std::vector<DeviceId>& list) {
  if (id >= 0) list.push_back(DeviceId(id));
}

void ExpectLists(const DeviceMesh& mesh, const Cells& cells) {
  const size_t rows = cells[0].size();
  const size_t columns = cells[0][0].size();
  Lists by_plane(cells.size());
  Lists by_row(cells.size() * rows);
  Lists by_column(cells.size() * columns);
  for (size_t p = 0; p < cells.size(); ++p) {
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns; ++c) {
        Add(cells[p][r][c], by_plane[p]);
        Add(cells[p][r][c], by_row[p * rows + r]);
        Add(cells[p][r][c], by_column[p * columns + c]);
      }
    }
  }
  EXPECT_EQ(mesh.Planes(), by_plane);
  EXPECT_EQ(mesh.Rows(), by_row);
  EXPECT_EQ(mesh.Columns(), by_column);
}

TEST(DeviceMeshTest, GridsOfThreeAxesAreRowMajor) {
  for (int64_t planes = 1; planes <= 3; ++planes) {
    for (int64_t rows = 1; rows <= 4; ++rows) {
      for (int64_t columns = 1; columns <= 4; ++columns) {
        const int64_t cells = planes * rows * columns;
        for (int64_t count = 1; count <= cells; ++count) {
          const auto devices = ShuffledIds(count, 17);
          TESSERA_ASSERT_OK_AND_ASSIGN(
              const DeviceMesh mesh,
              DeviceMesh::Grid(planes, rows, columns, devices));
          const Cells expected = BruteForce(planes, rows, columns, devices);
          for (int64_t p = 0; p < planes; ++p) {
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t c = 0; c < columns; ++c) {
                ExpectCell(mesh, {p, r, c}, expected[p][r][c]);
              }
            }
          }
          ExpectLists(mesh, expected);
          EXPECT_EQ(mesh.cell_count(), cells);
          EXPECT_EQ(mesh.device_count(), count);
          EXPECT_EQ(mesh.full(), count == cells);
        }
      }
    }
  }
}

TEST(DeviceMeshTest, GridsOfTwoAxesAreRowMajor) {
  for (int64_t rows = 1; rows <= 5; ++rows) {
    for (int64_t columns = 1; columns <= 5; ++columns) {
      for (int64_t count = 1; count <= rows * columns; ++count) {
        const auto devices = ShuffledIds(count, 5);
        TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                                     DeviceMesh::Grid(rows, columns, devices));
        const Cells expected = BruteForce(1, rows, columns, devices);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < columns; ++c) {
            ExpectCell(mesh, {r, c}, expected[0][r][c]);
          }
        }
        ExpectLists(mesh, expected);
      }
    }
  }
}

TEST(DeviceMeshTest, LineHasOneCellPerDevice) {
  const auto devices = ShuffledIds(9, 2);
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                               DeviceMesh::Linear(devices));
  EXPECT_TRUE(mesh.full());
  EXPECT_THAT(mesh.EmptyCells(), IsEmpty());
  for (int64_t i = 0; i < 9; ++i) ExpectCell(mesh, {i}, devices[i].value());
  EXPECT_THAT(mesh.Rows(), ElementsAre(devices));
  EXPECT_THAT(mesh.Planes(), ElementsAre(devices));
  EXPECT_EQ(mesh.Columns().size(), 9u);
  EXPECT_EQ(std::vector(mesh.devices().begin(), mesh.devices().end()), devices);
}

TEST(DeviceMeshTest, BalancedGridIsNearlySquare) {
  for (int64_t count = 1; count <= 150; ++count) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                                 DeviceMesh::Balanced(FirstIds(count)));
    const int64_t rows = mesh.axes()[0].size, columns = mesh.axes()[1].size;
    EXPECT_EQ(rows, std::ceil(std::sqrt(static_cast<double>(count)))) << count;
    EXPECT_GE(rows * columns, count);
    EXPECT_LT(rows * (columns - 1), count);
  }
  EXPECT_EQ(DeviceMesh::Balanced(FirstIds(8))->ToString(),
            "0 1 2\n3 4 5\n6 7 .\n");
  EXPECT_THAT(DeviceMesh::Balanced({}), Refused(HasSubstr("no device")));
}

TEST(DeviceMeshTest, ParsesListsOfIds) {
  EXPECT_EQ(DeviceMesh::Parse("0,2,13")->ToString(), " 0  2 13\n");
  EXPECT_THAT(DeviceMesh::Parse("7")->At({0}), IsOkAndHolds(DeviceId(7)));
  EXPECT_THAT(DeviceMesh::Parse("1,2,1"), Refused(HasSubstr("the same id 1")));
  for (const std::string& text :
       {std::string(), std::string("0,"), std::string(",0"), std::string("0 1"),
        std::string("-1"), std::string("+1"), std::string("x"),
        std::string("2147483648"), std::string(1 << 17, '1')}) {
    EXPECT_THAT(DeviceMesh::Parse(text),
                Refused(HasSubstr("is not a list of device ids")))
        << text.substr(0, 20);
  }
}

TEST(DeviceMeshTest, RejectsCoordinatesOutOfRange) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                               DeviceMesh::Grid(1, 2, 3, FirstIds(5)));
  EXPECT_THAT(mesh.At({0, 2, 0}),
              Refused(HasSubstr("coordinate 2 of axis \"row\" is out of range; "
                                "it must be from 0 to 1")));
  EXPECT_THAT(mesh.At({0, 0, -1}),
              Refused(HasSubstr("coordinate -1 of axis \"column\""),
                      HasSubstr("from 0 to 2")));
  EXPECT_THAT(
      mesh.At({1, 0, 0}),
      Refused(HasSubstr("axis \"plane\" is out of range; it must be 0")));
  EXPECT_THAT(mesh.At({kHuge, kHuge, kHuge}), Refused(HasSubstr("\"plane\"")));
  EXPECT_THAT(mesh.At({0, 0}), Refused(HasSubstr("2 coordinates are given for "
                                                 "3 axes")));
  EXPECT_THAT(mesh.At({}), Refused(HasSubstr("0 coordinates")));
}

TEST(DeviceMeshTest, ReportsEmptyCells) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                               DeviceMesh::Grid(2, 3, FirstIds(4)));
  EXPECT_THAT(mesh.At({1, 2}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("the cell row=1, column=2 is empty; 4 devices "
                                 "fill the first of 6 cells")));
  EXPECT_THAT(mesh.EmptyCells(),
              ElementsAre(GridCoordinates{1, 1}, GridCoordinates{1, 2}));
}

TEST(DeviceMeshTest, ReportsUnknownDevices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                               DeviceMesh::Linear(FirstIds(2)));
  EXPECT_FALSE(mesh.Contains(DeviceId(2)));
  EXPECT_THAT(mesh.CoordinatesOf(DeviceId(2)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("the id 2")));
}

TEST(DeviceMeshTest, RejectsInvalidGrids) {
  EXPECT_THAT(DeviceMesh::Linear({}), Refused(HasSubstr("no device is given")));
  EXPECT_THAT(DeviceMesh::Grid(2, 2, {}), Refused(HasSubstr("no device")));
  EXPECT_THAT(DeviceMesh::Grid(2, 2, FirstIds(5)),
              Refused(HasSubstr("5 devices do not fit into the 4 cells of 2 x "
                                "2; give at most 4 devices")));
  EXPECT_THAT(DeviceMesh::Linear(Ids({4, 5, 4})),
              Refused(HasSubstr("devices 0 and 2 have the same id 4")));
  EXPECT_THAT(DeviceMesh::Linear(Ids({4, -5})),
              Refused(HasSubstr("device 1 has the id -5")));
  EXPECT_THAT(DeviceMesh::Grid(0, -3, FirstIds(1)),
              Refused(HasSubstr("\"row\" has size 0"),
                      HasSubstr("\"column\" has size -3")));
  EXPECT_THAT(DeviceMesh::Grid(kHuge, kHuge, kHuge, FirstIds(1)),
              Refused(HasSubstr("more cells than the 16777216 allowed")));
  EXPECT_THAT(DeviceMesh::Grid(kHuge, 1, FirstIds(1)), Refused());
  EXPECT_THAT(DeviceMesh::Create({}, FirstIds(1)),
              Refused(HasSubstr("0 axes are given; choose 1, 2 or 3")));
  EXPECT_THAT(
      DeviceMesh::Create({{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}}, FirstIds(1)),
      Refused(HasSubstr("4 axes")));
  EXPECT_THAT(DeviceMesh::Create({{"a", 1}, {"a", 1}}, FirstIds(1)),
              Refused(HasSubstr("\"a\" is repeated")));
  EXPECT_THAT(DeviceMesh::Create({{"", 1}}, FirstIds(1)),
              Refused(HasSubstr("axis 0 has no name")));
}

TEST(DeviceMeshTest, AcceptsTheLargestGrid) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const DeviceMesh mesh,
      DeviceMesh::Grid(DeviceMesh::kMaxCells / 4, 4, FirstIds(3)));
  EXPECT_EQ(mesh.cell_count(), DeviceMesh::kMaxCells);
  EXPECT_THAT(DeviceMesh::Grid(DeviceMesh::kMaxCells / 4 + 1, 4, FirstIds(3)),
              Refused(HasSubstr("more cells")));
}

TEST(DeviceMeshTest, DrawsAlignedRowsPlanesAndEmptyCells) {
  EXPECT_EQ(DeviceMesh::Linear(Ids({3, 1, 12}))->ToString(), " 3  1 12\n");
  EXPECT_EQ(DeviceMesh::Grid(2, 3, FirstIds(5))->ToString(),
            "0 1 2\n"
            "3 4 .\n");
  EXPECT_EQ(DeviceMesh::Grid(2, 2, 2, FirstIds(5))->ToString(),
            "plane 0:\n0 1\n2 3\n"
            "plane 1:\n4 .\n. .\n");
}

TEST(DeviceMeshTest, DrawsOnlyTheBeginningOfLargeGrids) {
  EXPECT_EQ(DeviceMesh::Grid(3, 4, FirstIds(12))->ToString(2),
            "0 1 ...\n"
            "4 5 ...\n"
            "...\n");
  EXPECT_EQ(DeviceMesh::Grid(2, 1, 1, FirstIds(2))->ToString(0),
            "plane 0:\n0\n...\n");
  EXPECT_LT(DeviceMesh::Linear(FirstIds(100'000))->ToString().size(), 200u);
}

Mesh MakeMesh(std::string_view sizes, std::string_view order,
              Rank first = Rank(0)) {
  return *Mesh::Create(*ParseAxes(sizes), order, first);
}

// Around the first rank.
absl::StatusOr<DeviceMesh> GridOf(
    const Mesh& mesh, std::initializer_list<std::string_view> sets) {
  return DeviceMesh::FromMesh(mesh, std::vector(sets), mesh.first_rank());
}

TEST(FromMeshTest, RowsAndColumnsFollowTheAxes) {
  const Mesh mesh = MakeMesh("dp2,tp3", "tp-dp");
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceMesh grid,
                               GridOf(mesh, {"dp", "tp"}));
  EXPECT_EQ(grid.ToString(), "0 1 2\n3 4 5\n");
  EXPECT_EQ(grid.axes()[0].name, "dp");
  EXPECT_EQ(GridOf(mesh, {"tp", "dp"})->ToString(), "0 3\n1 4\n2 5\n");
  EXPECT_EQ(GridOf(mesh, {"tp"})->ToString(), "0 1 2\n");
  EXPECT_EQ(GridOf(mesh, {"dp,tp"})->ToString(), "0 1 2 3 4 5\n");
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

TEST(FromMeshTest, AcceptsExpertAxes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      WithExpertAxes(MakeMesh("dp2,tp2,pp2", "tp-dp-pp"), AxisSize(2)));
  EXPECT_EQ(GridOf(mesh, {"edp", "ep"})->ToString(), "0 1\n2 3\n");
  EXPECT_THAT(GridOf(mesh, {"ep", "tp"}), Refused());
}

TEST(FromMeshTest, RejectsInvalidSets) {
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
  EXPECT_THAT(DeviceMesh::FromMesh(mesh, sets, Rank(6)),
              Refused(HasSubstr("device mesh of ranks: ")));
}

TEST(FromMeshTest, RejectsTooLargeGrids) {
  const Mesh mesh = MakeMesh("dp100000,tp100000", "tp-dp");
  EXPECT_THAT(GridOf(mesh, {"dp", "tp"}), Refused(HasSubstr("16777216 cells")));
  TESSERA_EXPECT_OK(GridOf(mesh, {"dp"}));
}

}  // namespace
}  // namespace tessera::topology
