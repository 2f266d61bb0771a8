#include "collectives/adaptive/cost_table.h"

#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

CostTable Example() {
  CostTable table;
  table.key = {"cpu \"x\"; 2 cpus", "shared_memory", 8, 4, true};
  table.costs.near = {1.25e-6, 1.0 / 3e9};
  table.costs.far = {17e-6, 1e-9};
  table.costs.gamma = 1e-10;
  table.measured[{OpKind::kAllReduce, Algorithm::kEngine}] = {{64, 1e-6},
                                                              {4096, 5e-6}};
  table.measured[{OpKind::kAllReduce, Algorithm::kRing}] = {
      {64, 1.0 / 3}, {4096, 5e-6}, {1 << 20, 0.1}};
  table.measured[{OpKind::kBarrier, Algorithm::kTree}] = {{0, 2e-6}};
  return table;
}

TEST(CostTableTest, ComesBackToTheLastBit) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> number(1e-9, 1);
  CostTable table = Example();
  for (int i = 0; i < 200; ++i) {
    table.costs.near.alpha = number(random);
    table.costs.gamma = number(random) * 1e-9;
    table.measured[{OpKind::kGather, Algorithm::kTree}] = {
        {64, number(random)}, {4096, number(random)}};
    EXPECT_THAT(CostTableFromJson(CostTableToJson(table)), IsOkAndHolds(table));
  }
}

TEST(CostTableTest, AnEmptyTableComesBack) {
  EXPECT_THAT(CostTableFromJson(CostTableToJson(CostTable())),
              IsOkAndHolds(CostTable()));
}

TEST(CostTableTest, NamesThatAreNoUtf8DoNotThrow) {
  CostTable table = Example();
  table.key.hardware = "host \xff\xfe";
  const auto read = CostTableFromJson(CostTableToJson(table));
  TESSERA_ASSERT_OK(read);
  EXPECT_EQ(read->measured, table.measured);
}

TEST(CostTableTest, AnotherVersionIsRefused) {
  const std::string text = CostTableToJson(Example());
  const std::string other =
      absl::StrReplaceAll(text, {{"\"version\":1,", "\"version\":2,"}});
  ASSERT_NE(text, other);
  EXPECT_THAT(
      CostTableFromJson(other),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("version 1")));
}

TEST(CostTableTest, AChangedNumberIsFoundOut) {
  const std::string text = CostTableToJson(Example());
  const std::string other = absl::StrReplaceAll(text, {{"4096", "4097"}});
  ASSERT_NE(text, other);
  EXPECT_THAT(
      CostTableFromJson(other),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("checksum")));
}

TEST(CostTableTest, EveryTruncationIsRefused) {
  const std::string text = CostTableToJson(Example());
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_THAT(CostTableFromJson(text.substr(0, size)),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << size;
  }
}

TEST(CostTableTest, TextsThatAreTooLongAreNotParsed) {
  EXPECT_THAT(CostTableFromJson(std::string(kMaxCostText + 1, '[')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("bytes; at most")));
  EXPECT_THAT(CostTableFromJson(std::string(kMaxCostText, '[')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CostTableTest, NumbersOutOfRangeAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad :
       {-1.0, nan, std::numeric_limits<double>::infinity(), 1e9}) {
    CostTable table = Example();
    table.costs.near.beta = bad;
    EXPECT_FALSE(CheckCostTable(table).ok()) << bad;
    table = Example();
    table.measured[{OpKind::kReduce, Algorithm::kTree}] = {{1, bad}};
    EXPECT_FALSE(CheckCostTable(table).ok()) << bad;
  }
  EXPECT_THAT(CheckCostTable(Example()), IsOk());
}

TEST(CostTableTest, CurvesThatAreNoneAreRefused) {
  const auto with = [](std::vector<SizePoint> points) {
    CostTable table;
    table.measured[{OpKind::kReduce, Algorithm::kTree}] = std::move(points);
    return CheckCostTable(table);
  };
  EXPECT_FALSE(with({}).ok());
  EXPECT_FALSE(with({{4, 1e-6}, {4, 1e-6}}).ok());
  EXPECT_FALSE(with({{4, 1e-6}, {3, 1e-6}}).ok());
  EXPECT_FALSE(with({{-1, 1e-6}}).ok());
  EXPECT_FALSE(with({{1, 0}}).ok());
  EXPECT_FALSE(with(std::vector<SizePoint>(kMaxCostPoints + 1, {1, 1})).ok());
  CostTable message;
  message.measured[{OpKind::kSend, Algorithm::kTree}] = {{1, 1}};
  EXPECT_FALSE(CheckCostTable(message).ok());
}

TEST(CostTableTest, ShapesOutOfRangeAreRefused) {
  for (const auto& [ranks, host] :
       {std::pair<int64_t, int64_t>{0, 0}, {4, 0}, {4, 5}, {-1, -1}}) {
    CostTable table = Example();
    table.key.ranks = ranks;
    table.key.ranks_per_host = host;
    EXPECT_FALSE(CheckCostTable(table).ok()) << ranks << " " << host;
  }
}

}  // namespace
}  // namespace tessera::collectives
