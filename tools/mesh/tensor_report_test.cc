#include "tools/mesh/tensor_report.h"

#include <sstream>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/mesh/print.h"
#include "tools/mesh/report.h"

namespace tessera::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

MeshOptions Example() {
  MeshOptions options;
  options.mesh = "tp2,dp2";
  options.tensor = {.tensor = "128x512", .as = "tp:1", .to = "tp:0"};
  return options;
}

std::string Print(const MeshOptions& options, OutputFormat format) {
  std::ostringstream out;
  PrintReport(*MakeReport(options), format, out);
  return out.str();
}

TEST(TensorReportTest, TextShowsShardsStepsAndBytes) {
  MeshOptions options = Example();
  // A rank keeps 64 x 256 elements and exchanges as many with its neighbour.
  EXPECT_THAT(
      Print(options, OutputFormat::kText),
      HasSubstr("\ntensor f32 [128,512] as tp:1, to tp:0\n"
                "  all_to_all over tp: tp:1 -> tp:0\n"
                "    rank  before                 after                  bytes "
                "sent     received\n"
                "       0  [0, 128) x [0, 256)    [0, 64) x [0, 512)          "
                "65536        65536\n"));
  options.tensor.to = "";
  options.rank = 3;
  EXPECT_THAT(Print(options, OutputFormat::kText),
              HasSubstr("\ntensor f32 [128,512] as tp:1\n"
                        "    rank  holds\n"
                        "       3  [0, 128) x [256, 512)\n"));
}

TEST(TensorReportTest, JsonHasShardsStepsAndBytes) {
  const auto json =
      nlohmann::json::parse(Print(Example(), OutputFormat::kJson))["tensor"];
  EXPECT_EQ(json["shape"], nlohmann::json({128, 512}));
  EXPECT_EQ(json["dtype"], "f32");
  EXPECT_EQ(json["as"], "tp:1");
  EXPECT_EQ(json["to"], "tp:0");
  EXPECT_EQ(json["steps"],
            nlohmann::json::parse(
                R"([{"kind":"all_to_all","axes":["tp"],"to":"tp:0"}])"));
  ASSERT_EQ(json["ranks"].size(), 4u);
  EXPECT_EQ(json["ranks"][3],
            nlohmann::json::parse(R"({"rank":3,"as":[[0,128],[256,512]],
                "to":[[64,128],[0,512]],"sent":65536,"received":65536})"));
}

TEST(TensorReportTest, UnevenShardsAndOtherTypes) {
  MeshOptions options = Example();
  options.mesh = "tp4";
  options.tensor = {.tensor = "10",
                    .as = "tp:0:ceil",
                    .to = "replicated",
                    .dtype = DType::kBF16};
  const auto json =
      nlohmann::json::parse(Print(options, OutputFormat::kJson))["tensor"];
  EXPECT_EQ(json["ranks"][3]["as"], nlohmann::json::parse("[[9,10]]"));
  EXPECT_EQ(json["ranks"][3]["sent"], 3 * 2);
  EXPECT_EQ(json["ranks"][3]["received"], 9 * 2);
}

TEST(TensorReportTest, RejectsInvalidFlags) {
  const auto expect = [](const TensorOptions& tensor, const char* flag,
                         const char* says) {
    MeshOptions options = Example();
    options.mesh = "tp2,dp1024";
    options.tensor = tensor;
    EXPECT_THAT(MakeReport(options),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(flag), HasSubstr(says))));
  };
  expect({.tensor = "128x"}, "--tensor=128x", "such as 128x512");
  expect({.tensor = "-1"}, "--tensor=-1", "sizes of 0 or more");
  expect({.tensor = "1x1x1x1x1x1x1x1x1"}, "--tensor", "1 to 8 sizes");
  expect({.tensor = "8", .as = "tp:1"}, "--as=tp:1", "dimension 1");
  expect({.tensor = "8", .to = "xp:0"}, "--to=xp:0", "xp");
  expect({.tensor = "8", .as = "tp"}, "--as=tp", "such as tp:1");
  expect({.tensor = "8", .as = "tp:0", .to = "dp:0"}, "--to=dp:0",
         "more than 1024 ranks");
  expect({.as = "tp:0"}, "--as=tp:0", "such as --tensor=128x512");
  expect({.to = "tp:0"}, "--to=tp:0", "such as --tensor=128x512");
}

}  // namespace
}  // namespace tessera::tools
