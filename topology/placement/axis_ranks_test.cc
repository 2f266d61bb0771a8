#include "topology/placement/axis_ranks.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "topology/mesh.h"

namespace tessera::topology {
namespace {

TEST(AxisRanksTest, AgreesWithTheGroupsOfAMesh) {
  for (int64_t size = 1; size <= 5; ++size) {
    for (int64_t stride = 1; stride <= 4; ++stride) {
      const int64_t world = size * stride * 3;
      const std::vector<Axis> axes = {{"inner", AxisSize(stride)},
                                      {"own", AxisSize(size)},
                                      {"outer", AxisSize(3)}};
      const Groups groups = *Mesh::Create(axes)->GroupsAlong("own");
      const AxisRanks ranks(size, stride);
      for (int64_t rank = 0; rank < world; ++rank) {
        const std::vector<Rank> members = *groups.MembersWith(Rank(rank));
        const auto index = static_cast<size_t>(*groups.IndexOf(Rank(rank)));
        const size_t n = members.size();
        ASSERT_EQ(ranks.Coordinate(rank), static_cast<int64_t>(index));
        ASSERT_EQ(ranks.Base(rank), members[0].value());
        ASSERT_EQ(ranks.IsFirst(rank), index == 0);
        ASSERT_EQ(ranks.IsLast(rank), index + 1 == n);
        ASSERT_EQ(ranks.Next(rank), members[(index + 1) % n].value());
        ASSERT_EQ(ranks.Previous(rank), members[(index + n - 1) % n].value());
        for (int64_t first = 0; first <= world; ++first) {
          for (int64_t end = first; end <= world; ++end) {
            ASSERT_EQ(
                ranks.MembersIn(rank, first, end),
                std::count_if(members.begin(), members.end(), [&](Rank member) {
                  return member.value() >= first && member.value() < end;
                }));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::topology
