// The expectations of torsh's three_d_parallelism/config.rs.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "topology/config/mesh_sizes.h"
#include "topology/config/parallel_config.h"
#include "topology/config/strategies.h"
#include "topology/groups.h"
#include "topology/mesh.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using topology::Boundary;
using topology::Mesh;
using topology::ParallelConfig;
using topology::Rank;

// Its RankMapping: the pipeline varies fastest, data parallelism slowest.
Mesh RankMapping(int64_t dp, int64_t tp, int64_t pp) {
  return *Mesh::Create(
      std::vector<topology::Axis>{{"pp", topology::AxisSize(pp)},
                                  {"tp", topology::AxisSize(tp)},
                                  {"dp", topology::AxisSize(dp)}});
}

TEST(TorshRankMappingTest, CoordinatesOfRanks) {
  const Mesh mesh = RankMapping(2, 2, 2);
  EXPECT_EQ(mesh.order(),
            Mesh::Create(mesh.axes(),
                         topology::FindPreset("pipeline-tensor-data")->order)
                ->order());
  // Rank 3 is (dp, tp, pp) = (0, 1, 1).
  EXPECT_THAT(mesh.CoordinateOf(Rank(3), "dp"), IsOkAndHolds(0));
  EXPECT_THAT(mesh.CoordinateOf(Rank(3), "tp"), IsOkAndHolds(1));
  EXPECT_THAT(mesh.CoordinateOf(Rank(3), "pp"), IsOkAndHolds(1));
  EXPECT_THAT(mesh.RankAt({{1, 0, 1}}), IsOkAndHolds(Rank(5)));
}

TEST(TorshRankMappingTest, EveryRankIsTheFormula) {
  for (const int64_t dp : {1, 2, 3}) {
    for (const int64_t tp : {1, 2, 4}) {
      for (const int64_t pp : {1, 3}) {
        const Mesh mesh = RankMapping(dp, tp, pp);
        for (int64_t rank = 0; rank < dp * tp * pp; ++rank) {
          EXPECT_THAT(*mesh.CoordinatesOf(Rank(rank)),
                      ElementsAre(rank % pp, rank / pp % tp, rank / (pp * tp)));
        }
      }
    }
  }
}

TEST(TorshRankMappingTest, HeadsTailsAndNeighbours) {
  const Mesh mesh = RankMapping(2, 2, 2);
  const topology::Groups pp = *mesh.GroupsAlong("pp");
  EXPECT_THAT(pp.Head(Rank(3)), IsOkAndHolds(Rank(2)));
  EXPECT_THAT(pp.Tail(Rank(2)), IsOkAndHolds(Rank(3)));
  EXPECT_EQ(*pp.Shift(Rank(2), 1, Boundary::kOpen), Rank(3));
  EXPECT_EQ(*pp.Shift(Rank(3), 1, Boundary::kOpen), std::nullopt);
  EXPECT_EQ(*pp.Shift(Rank(2), -1, Boundary::kOpen), std::nullopt);
  EXPECT_THAT(*mesh.GroupsAlong("dp")->MembersWith(Rank(3)),
              ElementsAre(Rank(3), Rank(7)));
  EXPECT_THAT(*mesh.GroupsAlong("tp")->MembersWith(Rank(3)),
              ElementsAre(Rank(1), Rank(3)));
  EXPECT_THAT(*pp.MembersWith(Rank(3)), ElementsAre(Rank(2), Rank(3)));
}

TEST(TorshProcessGroupIdsTest, NamesOfGroups) {
  const Mesh mesh = RankMapping(2, 2, 2);
  EXPECT_THAT(GroupName(mesh, "dp", Rank(1)), IsOkAndHolds("dp_group_tp0_pp1"));
  EXPECT_THAT(GroupName(mesh, "tp", Rank(4)), IsOkAndHolds("tp_group_dp1_pp0"));
  EXPECT_THAT(GroupName(mesh, "pp", Rank(4)), IsOkAndHolds("pp_group_dp1_tp0"));
}

TEST(TorshConfigTest, SizesMustMultiplyToTheWorld) {
  ParallelConfig config = {.mesh = {.dp = 2, .pp = 2, .tp = 2}, .layers = 24};
  TESSERA_EXPECT_OK(config.Validate(8));
  EXPECT_THAT(config.Validate(9),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("9")));
}

TEST(TorshConfigTest, LayersPerStage) {
  ParallelConfig config = {.mesh = {.pp = 4}, .layers = 24};
  EXPECT_THAT(*config.LayersPerStage(), ElementsAre(6, 6, 6, 6));
  config.layers = 26;  // torsh refuses this; here stages may be uneven.
  EXPECT_THAT(*config.LayersPerStage(), ElementsAre(7, 7, 6, 6));
}

TEST(TorshConfigTest, AllProblemsAreReportedAtOnce) {
  const ParallelConfig config = {
      .mesh = {.pp = 8}, .layers = 4, .micro_batch = 0};
  std::vector<std::string> fields;
  for (const auto& problem : config.Problems(8)) {
    fields.push_back(problem.field);
    EXPECT_FALSE(problem.allowed.empty()) << problem.ToString();
  }
  EXPECT_THAT(fields, Contains("micro_batch"));
  EXPECT_GE(fields.size(), 2u);
}

TEST(TorshConfigTest, StrategiesHaveNames) {
  using topology::CommunicationStrategy;
  using topology::MemoryStrategy;
  EXPECT_THAT(topology::ParseEnum<MemoryStrategy>("basic"),
              IsOkAndHolds(MemoryStrategy::kBasic));
  EXPECT_THAT(topology::ParseEnum<MemoryStrategy>("standard"),
              IsOkAndHolds(MemoryStrategy::kStandard));
  EXPECT_THAT(topology::ParseEnum<MemoryStrategy>("aggressive"),
              IsOkAndHolds(MemoryStrategy::kAggressive));
  EXPECT_THAT(topology::ParseEnum<MemoryStrategy>("extreme"),
              IsOkAndHolds(MemoryStrategy::kExtreme));
  for (const char* name :
       {"all_reduce", "hierarchical", "ring", "tree", "adaptive"}) {
    TESSERA_EXPECT_OK(topology::ParseEnum<CommunicationStrategy>(name));
  }
}

TEST(TorshConfigTest, SchedulesCanBeGenerated) {
  for (const char* name :
       {"round_robin", "interleaved_1f1b", "gpipe", "1f1b"}) {
    const int64_t chunks = name == std::string("interleaved_1f1b") ? 2 : 1;
    TESSERA_EXPECT_OK(pipeline::Generate(
        name, {.ranks = 2, .chunks = chunks, .microbatches = 4}))
        << name;
  }
}

TEST(TorshConfigTest, TextAndJsonGoBothWays) {
  ParallelConfig config = {.mesh = {.dp = 2, .pp = 2, .tp = 2}, .layers = 24};
  config.memory_strategy = topology::MemoryStrategy::kAggressive;
  EXPECT_THAT(ParallelConfig::FromJson(config.ToJson()), IsOkAndHolds(config));
  EXPECT_THAT(config.ToString(), HasSubstr("layers=24"));
}

}  // namespace
}  // namespace tessera
