// Mutated group names: each is refused with a message or names a group.

#include <string>
#include <string_view>

#include "base/text_mutator.h"
#include "gtest/gtest.h"
#include "topology/group_name.h"

namespace tessera::topology {
namespace {

constexpr int kRounds = 200'000;

TEST(GroupNameFuzzTest, NamesAreRefusedOrNameThemselves) {
  TextMutator mutator({"dp_group_tp0_pp1", "tp-pp_group_dp2"},
                      {"_", "-", "0", "1", "dp", "tp", "pp", "_group"}, 13);
  const Mesh mesh = *Mesh::Create(*ParseAxes("dp3,pp2,tp2"));
  int accepted = 0;
  for (int i = 0; i < kRounds; ++i) {
    const std::string name = mutator.Next();
    const auto members = FindGroup(mesh, name);
    if (!members.ok()) {
      ASSERT_FALSE(members.status().message().empty());
      continue;
    }
    ++accepted;
    const std::string_view axes =
        std::string_view(name).substr(0, name.find("_group"));
    const auto again = GroupName(mesh, axes, members->front());
    ASSERT_TRUE(again.ok());
    ASSERT_EQ(*FindGroup(mesh, *again), *members);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace tessera::topology
