#include "collectives/algorithms/tree_place.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "collectives/algorithms/chunks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kMost = 64;

std::vector<TreePlace> All(int64_t n,
                           const std::function<TreePlace(int64_t)>& place_of) {
  std::vector<TreePlace> places;
  for (int64_t rank = 0; rank < n; ++rank) places.push_back(place_of(rank));
  return places;
}

// One root; parents and children agree; everybody hangs below the root at the
// depth that it says, which is at most `height`.
void ExpectTree(const std::vector<TreePlace>& places, int64_t height) {
  const auto n = static_cast<int64_t>(places.size());
  int64_t roots = 0;
  for (int64_t rank = 0; rank < n; ++rank) {
    const TreePlace& place = places[static_cast<size_t>(rank)];
    EXPECT_LE(place.depth, height);
    for (int64_t child : place.children()) {
      ASSERT_TRUE(child >= 0 && child < n);
      EXPECT_EQ(places[static_cast<size_t>(child)].parent, rank);
    }
    if (place.parent < 0) {
      ++roots;
      EXPECT_EQ(place.depth, 0);
      continue;
    }
    const TreePlace& parent = places[static_cast<size_t>(place.parent)];
    EXPECT_EQ(parent.depth + 1, place.depth);
    EXPECT_EQ(
        std::count(parent.children().begin(), parent.children().end(), rank),
        1);
  }
  EXPECT_EQ(roots, 1);  // With parents one step less deep: no cycles either.
}

TEST(TreePlaceTest, ChainIsATree) {
  for (int64_t n = 1; n <= kMost; ++n) {
    ExpectTree(All(n, [&](int64_t r) { return ChainPlace(n, r); }), n - 1);
  }
}

TEST(TreePlaceTest, BinomialIsATreeWithTheLargestChildFirst) {
  for (int64_t n = 1; n <= kMost; ++n) {
    const auto places = All(n, [&](int64_t r) { return BinomialPlace(n, r); });
    ExpectTree(places, CeilLog2(n));
    EXPECT_EQ(places[0].parent, -1);
    EXPECT_EQ(places[0].child_count, CeilLog2(n));
    for (const TreePlace& place : places) {
      EXPECT_TRUE(
          std::is_sorted(place.children().rbegin(), place.children().rend()));
    }
  }
}

TEST(TreePlaceTest, InOrderTreeHasItsLeavesAtEvenRanks) {
  for (int64_t n = 1; n <= kMost; ++n) {
    const auto places = All(n, [&](int64_t r) { return InOrderPlace(n, r); });
    ExpectTree(places, FloorLog2(n));
    for (int64_t rank = 0; rank < n; ++rank) {
      const TreePlace& place = places[static_cast<size_t>(rank)];
      EXPECT_LE(place.child_count, 2);
      if (rank % 2 == 0) {
        EXPECT_EQ(place.child_count, 0);
      }
    }
  }
}

TEST(TreePlaceTest, EveryRankIsALeafOfOneOfTheTwoTrees) {
  for (int64_t n = 1; n <= kMost; ++n) {
    std::vector<int64_t> children(static_cast<size_t>(n));
    std::vector<int> inner(static_cast<size_t>(n));
    for (int which : {0, 1}) {
      const auto places =
          All(n, [&](int64_t r) { return DoubleTreePlace(n, r, which); });
      ExpectTree(places, FloorLog2(n));
      for (size_t rank = 0; rank < places.size(); ++rank) {
        inner[rank] += places[rank].child_count > 0 ? 1 : 0;
        children[rank] += places[rank].child_count;
      }
    }
    for (size_t rank = 0; rank < inner.size(); ++rank) {
      EXPECT_LE(inner[rank], 1) << rank << " of " << n;
      EXPECT_LE(children[rank], 2);
    }
  }
}

TEST(TreePlaceTest, RootedDoubleTreeHasRankZeroAboveBothTrees) {
  for (int64_t n = 1; n <= kMost; ++n) {
    std::vector<int> inner(static_cast<size_t>(n));
    for (int which : {0, 1}) {
      const auto places =
          All(n, [&](int64_t r) { return RootedDoubleTree(n, r, which); });
      ExpectTree(places, n == 1 ? 0 : 1 + FloorLog2(n - 1));
      EXPECT_EQ(places[0].parent, -1);
      EXPECT_EQ(places[0].child_count, n == 1 ? 0 : 1);
      for (size_t rank = 1; rank < places.size(); ++rank) {
        inner[rank] += places[rank].child_count > 0 ? 1 : 0;
      }
    }
    for (int trees : inner) EXPECT_LE(trees, 1);
  }
}

}  // namespace
}  // namespace tessera::collectives
