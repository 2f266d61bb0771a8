// Mutated texts through every parser of the module: each is refused with a
// message or gives a mesh that reads back.

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutate_text.h"
#include "gtest/gtest.h"
#include "topology/mesh.h"

namespace tessera::topology {
namespace {

constexpr int kRounds = 200'000;
constexpr std::string_view kAlphabet("dtpce_=,-0123456789 \0\xff", 21);

TEST(MeshFuzzTest, MeshesAreRefusedOrReadBack) {
  std::mt19937_64 random(11);
  const std::vector<std::string> corpus = {"dp2,pp2,tp2", "dp=4,tp=8", "ep1",
                                           "dp_shard4,dp_replicate2"};
  int accepted = 0;
  for (int i = 0; i < kRounds; ++i) {
    const auto axes =
        ParseAxes(MutateText(corpus[random() % 4], kAlphabet, random));
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

TEST(MeshFuzzTest, OrdersAreRefusedOrSortTheAxes) {
  std::mt19937_64 random(12);
  const auto axes = *ParseAxes("dp2,pp2,tp2");
  int accepted = 0;
  for (int i = 0; i < kRounds; ++i) {
    const auto mesh =
        Mesh::Create(axes, MutateText("tp-cp-dp-pp", kAlphabet, random));
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
