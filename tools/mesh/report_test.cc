#include "tools/mesh/report.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using topology::Rank;

TEST(ReportTest, TakesTheDefaultOrderAndListsEveryAxis) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const MeshReport report, MakeReport({}));
  EXPECT_EQ(report.order, "tp-cp-ep-dp-pp");
  EXPECT_EQ(report.mesh.order(), "tp-dp-pp");
  EXPECT_THAT(report.axes, ElementsAre("tp", "dp", "pp"));
  ASSERT_EQ(report.listings.size(), 3u);
  EXPECT_EQ(report.listings[0].axes, "tp");
}

TEST(ReportTest, OrderWinsOverPresetAndIsNormalised) {
  MeshOptions options;
  options.preset = "pipeline-tensor-data";
  EXPECT_EQ(MakeReport(options)->mesh.order(), "pp-tp-dp");
  options.order = "dp, tp , pp";
  options.axes = " tp - pp";
  TESSERA_ASSERT_OK_AND_ASSIGN(const MeshReport report, MakeReport(options));
  EXPECT_EQ(report.order, "dp-tp-pp");
  EXPECT_EQ(report.listings.front().axes, "tp,pp");
}

TEST(ReportTest, AxesThatNoPresetKnowsComeAfterIt) {
  MeshOptions options;
  options.mesh = "row2,tp2,column3";
  EXPECT_EQ(MakeReport(options)->mesh.order(), "tp-row-column");
}

TEST(ReportTest, SplitsAndTakesExpertsOut) {
  MeshOptions options;
  options.mesh = "dp8,tp2";
  options.split = "dp:dp_shard4,dp_replicate2;tp:tp_near1,tp_far2";
  options.ep = 4;
  TESSERA_ASSERT_OK_AND_ASSIGN(const MeshReport report, MakeReport(options));
  EXPECT_THAT(report.axes,
              ElementsAre("tp", "dp", "dp_shard", "dp_replicate", "tp_near",
                          "tp_far", "etp", "ep", "edp"));
  EXPECT_EQ(report.mesh.SizeOf("edp")->value(), 4);
}

TEST(ReportTest, VisitsOneRankOrAll) {
  MeshOptions options;
  options.mesh = "tp2,dp2";
  options.axes = "dp";
  options.first_rank = 4;
  std::vector<Rank> ranks;
  std::vector<std::string> names;
  const auto collect = [&](const MeshReport& report) {
    ranks.clear();
    names.clear();
    ForEachRank(report, [&](Rank rank) { ranks.push_back(rank); });
    ForEachGroup(report, report.listings.front(),
                 [&](const std::string& name, const std::vector<Rank>&) {
                   names.push_back(name);
                 });
  };
  collect(*MakeReport(options));
  EXPECT_THAT(ranks, ElementsAre(Rank(4), Rank(5), Rank(6), Rank(7)));
  EXPECT_THAT(names, ElementsAre("dp_group_tp0", "dp_group_tp1"));
  options.rank = 7;
  collect(*MakeReport(options));
  EXPECT_THAT(ranks, ElementsAre(Rank(7)));
  EXPECT_THAT(names, ElementsAre("dp_group_tp1"));
}

TEST(ReportTest, RefusalsNameTheFlagAndItsValue) {
  const std::vector<std::pair<std::function<void(MeshOptions&)>, std::string>>
      cases = {
          {[](auto& o) { o.mesh = "dp0"; }, "--mesh=dp0: "},
          {[](auto& o) { o.mesh = "dp2,dp2"; }, "--mesh=dp2,dp2: "},
          {[](auto& o) { o.order = "tp-dp"; }, "--order=tp-dp: "},
          {[](auto& o) { o.preset = "x"; }, "--preset=x: "},
          {[](auto& o) { o.axes = "zz"; }, "--axes=zz: unknown axis"},
          {[](auto& o) { o.split = "dp"; }, "--split=dp: "},
          {[](auto& o) { o.split = "dp:x3"; }, "--split=dp:x3: "},
          {[](auto& o) { o.split = "zz:x3"; }, "unknown axis \"zz\""},
          {[](auto& o) { o.ep = 3; }, "--ep=3: "},
          {[](auto& o) { o.etp = 0; }, "etp 0"},
          {[](auto& o) { o.grid = "dp/zz"; }, "--grid=dp/zz: "},
          {[](auto& o) { o.grid = "dp/dp"; }, "--grid=dp/dp: "},
          {[](auto& o) { o.rank = 8; }, "--rank=8: rank 8 is outside"},
          {[](auto& o) { o.rank = -1; }, "--rank=-1: "},
          {[](auto& o) { o.first_rank = -1; }, "--first_rank=-1: "},
          {[](auto& o) { o.world_size = 9; }, "--world_size=9: "},
          {[](auto& o) { o.mesh = "dp100000000"; }, "too many to list"},
      };
  for (const auto& [change, message] : cases) {
    MeshOptions options;
    change(options);
    EXPECT_THAT(
        MakeReport(options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

TEST(ReportTest, OneRankOfAHugeMeshCanBeShown) {
  MeshOptions options;
  options.mesh = "dp100000000,tp8";
  options.rank = 799999999;
  options.axes = "tp";
  EXPECT_THAT(MakeReport(options), IsOk());
}

}  // namespace
}  // namespace tessera::tools
