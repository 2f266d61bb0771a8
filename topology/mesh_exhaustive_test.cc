// Every mesh of up to 5 axes and up to 64 ranks, in every axis order, against
// an odometer that enumerates coordinates without strides.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "topology/mesh.h"

namespace tessera::topology {
namespace {

constexpr int64_t kMaxRanks = 64;

using Grid = std::vector<std::vector<int64_t>>;  // Coordinates of each rank.

// Counts through all coordinates; the first one changes fastest.
Grid Enumerate(const std::vector<Axis>& axes) {
  Grid grid;
  std::vector<int64_t> odometer(axes.size(), 0);
  while (true) {
    grid.push_back(odometer);
    size_t i = 0;
    while (i < axes.size() && ++odometer[i] == axes[i].size.value()) {
      odometer[i++] = 0;
    }
    if (i == axes.size()) return grid;
  }
}

// Groups of ranks that agree in all coordinates except the masked ones, ordered
// by their smallest member.
std::vector<std::vector<Rank>> BruteForceGroups(const Grid& grid,
                                                unsigned mask) {
  std::map<std::vector<int64_t>, size_t> number_of;
  std::vector<std::vector<Rank>> groups;
  for (size_t rank = 0; rank < grid.size(); ++rank) {
    std::vector<int64_t> key = grid[rank];
    for (size_t i = 0; i < key.size(); ++i) {
      if (mask >> i & 1) key[i] = 0;
    }
    const auto [it, is_new] = number_of.emplace(key, groups.size());
    if (is_new) groups.emplace_back();
    groups[it->second].emplace_back(static_cast<int64_t>(rank));
  }
  return groups;
}

std::vector<std::string> NamesIn(const std::vector<Axis>& axes, unsigned mask) {
  std::vector<std::string> names;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (mask >> i & 1) names.push_back(axes[i].name);
  }
  return names;
}

void CheckCoordinates(const Mesh& mesh, const Grid& grid) {
  ASSERT_EQ(mesh.world_size(), static_cast<int64_t>(grid.size()));
  for (size_t i = 0; i < grid.size(); ++i) {
    const Rank rank(static_cast<int64_t>(i));
    const auto coordinates = mesh.CoordinatesOf(rank);
    ASSERT_TRUE(coordinates.ok());
    ASSERT_TRUE(std::equal(coordinates->begin(), coordinates->end(),
                           grid[i].begin(), grid[i].end()));
    ASSERT_EQ(*mesh.RankAt(*coordinates), rank);
  }
}

void CheckGroups(const Mesh& mesh, const Grid& grid,
                 const std::vector<Axis>& axes) {
  for (unsigned mask = 1; mask < 1u << axes.size(); ++mask) {
    const auto groups = mesh.GroupsAlong(NamesIn(axes, mask));
    ASSERT_TRUE(groups.ok());
    const auto expected = BruteForceGroups(grid, mask);
    ASSERT_EQ(groups->All(), expected) << FormatAxes(axes) << " mask " << mask;
    for (size_t g = 0; g < expected.size(); ++g) {
      for (size_t i = 0; i < expected[g].size(); ++i) {
        ASSERT_EQ(*groups->GroupOf(expected[g][i]), static_cast<int64_t>(g));
        ASSERT_EQ(*groups->IndexOf(expected[g][i]), static_cast<int64_t>(i));
      }
    }
  }
}

// Calls `check` with every list of `count` sizes whose product is at most
// kMaxRanks.
template <typename Check>
void ForEachSizes(size_t count, std::vector<int64_t>* sizes, int64_t product,
                  const Check& check) {
  if (sizes->size() == count) {
    check(*sizes);
    return;
  }
  for (int64_t size = 1; product * size <= kMaxRanks; ++size) {
    sizes->push_back(size);
    ForEachSizes(count, sizes, product * size, check);
    sizes->pop_back();
  }
}

class MeshExhaustiveTest : public ::testing::TestWithParam<size_t> {};

TEST_P(MeshExhaustiveTest, CoordinatesAndGroupsEqualAnEnumeration) {
  const std::vector<std::string> names = {"cp", "dp", "ep", "pp", "tp"};
  const size_t count = GetParam();
  int64_t meshes = 0;
  std::vector<int64_t> sizes;
  ForEachSizes(count, &sizes, 1, [&](const std::vector<int64_t>& sizes) {
    std::vector<Axis> axes;
    for (size_t i = 0; i < count; ++i) {
      axes.push_back({names[i], AxisSize(sizes[i])});
    }
    const Grid grid = Enumerate(axes);
    const auto mesh = Mesh::Create(axes);
    ASSERT_TRUE(mesh.ok());
    CheckCoordinates(*mesh, grid);
    CheckGroups(*mesh, grid, axes);
    ++meshes;
  });
  EXPECT_GT(meshes, 0);
}

// The sizes above already cover every value in every position. An order only
// sorts the axes: the mesh equals one with its axes in sorted order.
TEST_P(MeshExhaustiveTest, EveryOrderIsTheMeshOfItsSortedAxes) {
  const size_t count = GetParam();
  std::vector<std::string> order = {"cp", "dp", "ep", "pp", "tp"};
  order.resize(count);
  std::set<std::string> orders;
  std::vector<int64_t> sizes;
  do {
    std::string text;
    for (const auto& name : order) text += (text.empty() ? "" : "-") + name;
    orders.insert(text);
    ForEachSizes(count, &sizes, 1, [&](const std::vector<int64_t>& sizes) {
      std::vector<Axis> named = {{"cp", AxisSize(1)},
                                 {"dp", AxisSize(1)},
                                 {"ep", AxisSize(1)},
                                 {"pp", AxisSize(1)},
                                 {"tp", AxisSize(1)}};
      named.resize(count);
      std::vector<Axis> sorted;
      for (size_t i = 0; i < count; ++i) named[i].size = AxisSize(sizes[i]);
      for (const std::string& name : order) {
        sorted.push_back(
            *std::find_if(named.begin(), named.end(),
                          [&](const Axis& axis) { return axis.name == name; }));
      }
      const auto mesh = Mesh::Create(named, text);
      ASSERT_TRUE(mesh.ok());
      ASSERT_TRUE(std::equal(mesh->axes().begin(), mesh->axes().end(),
                             sorted.begin(), sorted.end()));
      ASSERT_EQ(mesh->order(), text);
      const Grid grid = Enumerate(sorted);
      for (size_t i = 0; i < grid.size(); ++i) {
        for (size_t a = 0; a < count; ++a) {
          ASSERT_EQ(*mesh->CoordinateOf(Rank(static_cast<int64_t>(i)),
                                        sorted[a].name),
                    grid[i][a]);
        }
      }
    });
  } while (std::next_permutation(order.begin(), order.end()));
  size_t factorial = 1;
  for (size_t i = 2; i <= count; ++i) factorial *= i;
  EXPECT_EQ(orders.size(), factorial);
}

INSTANTIATE_TEST_SUITE_P(Axes, MeshExhaustiveTest,
                         ::testing::Range(size_t{1}, size_t{6}));

}  // namespace
}  // namespace tessera::topology
