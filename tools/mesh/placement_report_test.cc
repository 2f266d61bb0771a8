#include "tools/mesh/placement_report.h"

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "topology/axis.h"

namespace tessera::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using topology::Mesh;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Mesh Make(std::string_view axes) {
  return *Mesh::Create(*topology::ParseAxes(axes));
}

TEST(PlacementReportTest, TensorAcrossHostsIsFoundAndMended) {
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

TEST(PlacementReportTest, SaysWhenNoOrderIsFaster) {
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

TEST(PlacementReportTest, RefusalsNameTheFlag) {
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
