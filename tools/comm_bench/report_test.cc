#include "tools/comm_bench/report.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::tools {
namespace {

using collectives::OpKind;
using ::testing::HasSubstr;
using ::testing::Not;

Row Example() {
  return {.engine = "shared_memory",
          .algorithm = "ring",
          .world = 4,
          .bytes = 1'000'000,
          .iterations = 20,
          .seconds = 1e-3,
          .in_place_seconds = 2e-3,
          .ratio = 2};
}

TEST(RowTest, BandwidthsAreThoseOfNcclTests) {
  Row row = Example();
  EXPECT_DOUBLE_EQ(RowToJson(row)["algbw_GBps"], 1.0);
  EXPECT_DOUBLE_EQ(RowToJson(row)["busbw_GBps"], 1.5);
  EXPECT_DOUBLE_EQ(RowToJson(row)["in_place_algbw_GBps"], 0.5);
  EXPECT_DOUBLE_EQ(RowToJson(row)["in_place_busbw_GBps"], 0.75);
  row.op = OpKind::kAllGather;
  EXPECT_DOUBLE_EQ(RowToJson(row)["busbw_GBps"], 0.75);
  row.op = OpKind::kBroadcast;
  EXPECT_DOUBLE_EQ(RowToJson(row)["busbw_GBps"], 1.0);
  row.seconds = 0;
  EXPECT_EQ(RowToJson(row)["busbw_GBps"], 0);
}

TEST(RowTest, ColumnsKeepTheirOrder) {
  std::vector<std::string> names;
  const nlohmann::ordered_json json = RowToJson(Example());
  for (const auto& [name, value] : json.items()) {
    names.push_back(name);
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre(
                  "engine", "algorithm", "op", "dtype", "world", "bytes",
                  "iterations", "time_us", "algbw_GBps", "busbw_GBps", "ratio",
                  "count", "redop", "root", "wrong", "in_place_time_us",
                  "in_place_algbw_GBps", "in_place_busbw_GBps"));
}

TEST(RowTest, JsonHoldsEverythingThatWasMeasured) {
  const nlohmann::ordered_json json = RowToJson(Example());
  EXPECT_EQ(json["engine"], "shared_memory");
  EXPECT_EQ(json["op"], "all_reduce");
  EXPECT_EQ(json["dtype"], "f32");
  EXPECT_EQ(json["count"], 250'000);
  EXPECT_EQ(json["redop"], "sum");
  EXPECT_EQ(json["root"], -1);
  EXPECT_EQ(json["wrong"], 0);
  EXPECT_DOUBLE_EQ(json["time_us"], 1000);
}

TEST(RowTest, NullIsWhatWasNotMeasured) {
  const nlohmann::ordered_json json =
      RowToJson({.op = OpKind::kBroadcast, .root = 3, .checked = false});
  EXPECT_EQ(json["root"], 3);
  EXPECT_EQ(json["redop"], "none");
  for (const char* name :
       {"wrong", "in_place_time_us", "in_place_busbw_GBps"}) {
    EXPECT_TRUE(json[name].is_null()) << name;
  }
}

TEST(RowTest, TextHasTheColumnsOfNcclTestsUnderAHeading) {
  const nlohmann::ordered_json row = RowToJson(Example());
  const std::string text = RowToText(row, {});
  EXPECT_THAT(text, HasSubstr("# all_reduce, 4 ranks\n"));
  EXPECT_THAT(text,
              HasSubstr("     1000000       250000       f32         sum    -1"
                        "       1000    1.00    1.50      0"
                        "       2000    0.50    0.75      0   2.00  "
                        "shared_memory, ring\n"));
  // Whatever reads nccl-tests' output leaves out lines that begin with #.
  EXPECT_THAT(RowToText(row, row), Not(HasSubstr("#")));
  Row unchecked = Example();
  unchecked.checked = false;
  EXPECT_THAT(RowToText(RowToJson(unchecked), row), HasSubstr("1.50    N/A"));
  Row other = Example();
  other.world = 8;
  EXPECT_THAT(RowToText(RowToJson(other), row),
              HasSubstr("# all_reduce, 8 ranks"));
}

}  // namespace
}  // namespace tessera::tools
