// Mutated texts through every parser of the module: each is rejected with an
// error or gives a mesh that survives a round trip.

#include <string>
#include <string_view>
#include <vector>

#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "topology/mesh.h"

namespace tessera::topology {

namespace {

constexpr int kRounds = 200'000;

const std::vector<std::string>& Tokens() {
  static const auto* const tokens = new std::vector<std::string>{
      ",", "-", "=", "_", " ", "tp", "dp", "ep8", "pp2", "cp", "0", "1", "-3"};
  return *tokens;
}

TEST(MeshFuzzTest, MeshesAreRejectedOrRoundTrip) {
  TextMutator mutator(
      {"dp2,pp2,tp2", "dp=4,tp=8", "ep1", "dp_shard4,dp_replicate2"}, Tokens(),
      11);
  int accepted = 0;
  for (int i = 0; i < kRounds; ++i) {
    const auto axes = ParseAxes(mutator.Next());
    if (!axes.ok()) {
      ASSERT_FALSE(axes.status().message().empty());
      continue;
    }
    ++accepted;
    ASSERT_EQ(*ParseAxes(FormatAxes(*axes)), *axes);
    const auto mesh = Mesh::Create(*axes);
    if (!mesh.ok()) continue;
    const Rank last(mesh->world_size() - 1);
    ASSERT_EQ(*mesh->RankAt(*mesh->CoordinatesOf(last)), last);
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_LT(accepted, kRounds - 1000);
}

TEST(MeshFuzzTest, OrdersAreRejectedOrSortTheAxes) {
  TextMutator mutator({"tp-cp-dp-pp", "pp-tp-dp"}, Tokens(), 12);
  const auto axes = *ParseAxes("dp2,pp2,tp2");
  int accepted = 0;
  for (int i = 0; i < kRounds; ++i) {
    const auto mesh = Mesh::Create(axes, mutator.Next());
    if (!mesh.ok()) {
      ASSERT_FALSE(mesh.status().message().empty());
      continue;
    }
    ++accepted;
    ASSERT_EQ(mesh->world_size(), 8);
    ASSERT_EQ(Mesh::Create(axes, mesh->order())->order(), mesh->order());
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace

}  // namespace tessera::topology
