#include "tools/mesh/report.h"

#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "topology/mesh.h"

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

TEST(ReportTest, UnknownAxesFollowPreset) {
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

TEST(ReportTest, ErrorsNameFlagAndValue) {
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

using ::testing::AllOf;
using topology::Mesh;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Mesh Make(std::string_view axes) {
  return *Mesh::Create(*topology::ParseAxes(axes));
}

TEST(PlacementReportTest, FixesTensorGroupsAcrossHosts) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const PlacementReport report,
      MakePlacementReport(Make("dp8,tp8"), "hosts=8,gpus=8", ""));
  EXPECT_GT(report.given.seconds_per_step, report.best.seconds_per_step);
  EXPECT_EQ(report.best.order.front().name, "tp");
  std::ostringstream text;
  PrintPlacementText(report, text);
  EXPECT_THAT(text.str(),
              AllOf(HasSubstr("on 8 hosts, 64 devices"), HasSubstr("warning: "),
                    HasSubstr("--order=tp-dp")));
}

TEST(PlacementReportTest, ReportsIfNoOrderIsFaster) {
  std::ostringstream text;
  PrintPlacementText(
      *MakePlacementReport(Make("tp8,dp8"), "hosts=8,gpus=8", ""), text);
  EXPECT_THAT(text.str(), HasSubstr("no order of the axes communicates"));
}

TEST(PlacementReportTest, JsonHasBothOrders) {
  std::ostringstream text;
  PrintPlacementJson(
      *MakePlacementReport(Make("dp4,tp2"), "hosts=4,gpus=2", "zero=3"), text);
  const auto json = nlohmann::json::parse(text.str());
  EXPECT_EQ(json["devices"], 8);
  EXPECT_EQ(json["given"]["order"], "dp-tp");
  EXPECT_EQ(json["best"]["order"], "tp-dp");
  EXPECT_EQ(json["best"]["axes"][0]["worst_level"], "nvlink");
  EXPECT_EQ(json["best"]["axes"][0]["groups_at_level"]["nvlink"], 4);
}

TEST(PlacementReportTest, ReadsThisMachineAndFiles) {
  std::vector<std::string> notes;
  const auto here = ReadCluster("here", &notes);
#ifdef TESSERA_HAVE_HWLOC
  TESSERA_ASSERT_OK(here);
  EXPECT_GE(here->num_devices(), 1);
#else
  EXPECT_THAT(here, StatusIs(absl::StatusCode::kUnimplemented));
#endif
  const std::string path = ::testing::TempDir() + "/c.json";
  TESSERA_ASSERT_OK(WriteFile(
      path,
      R"({"hosts":[{"name":"a","devices":[{"kind":"cpu","count":3}]}]})"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, ReadCluster(path, &notes));
  EXPECT_EQ(file.num_devices(), 3);
}

TEST(PlacementReportTest, ReadsAModel) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto shape,
                               ReadModel("layers=80,parameters=7e10,zero=3"));
  EXPECT_EQ(shape.layers, 80);
  EXPECT_EQ(shape.dense_parameters, 7e10);
  EXPECT_EQ(shape.zero_stage, 3);
  EXPECT_EQ(shape.hidden, 4096);
}

TEST(PlacementReportTest, ErrorsNameFlag) {
  const Mesh mesh = Make("tp2,dp2");
  const std::vector<std::pair<std::string, std::string>> clusters = {
      {"hosts=0", "--cluster=hosts=0: "},
      {"gpus=2", "4"},
      {"/nonexistent.json", "--cluster=/nonexistent.json: "}};
  for (const auto& [cluster, message] : clusters) {
    EXPECT_THAT(MakePlacementReport(mesh, cluster, ""),
                StatusIs(kInvalid, HasSubstr(message)));
  }
  for (const char* model : {"layers", "layers=x", "depth=3", "layers=0",
                            "zero=4", "parameters=nan"}) {
    EXPECT_THAT(MakePlacementReport(mesh, "gpus=4", model),
                StatusIs(kInvalid, HasSubstr("--model=")))
        << model;
  }
  EXPECT_THAT(MakePlacementReport(Make("row2"), "gpus=4", ""),
              StatusIs(kInvalid, HasSubstr("row")));
}

}  // namespace

}  // namespace tessera::tools
