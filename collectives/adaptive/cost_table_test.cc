#include "collectives/adaptive/cost_table.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

std::vector<SizePoint> PointsOf(const Line& line,
                                const std::vector<int64_t>& sizes) {
  std::vector<SizePoint> points;
  for (const int64_t size : sizes) {
    points.push_back(
        {size, line.alpha + line.beta * static_cast<double>(size)});
  }
  return points;
}

const std::vector<int64_t> kSizes = {8, 512, 4096, 65536, 1 << 20, 16 << 20};

TEST(FitLineTest, RecoversExactLine) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(0, 3);
  for (int i = 0; i < 1000; ++i) {
    const Line line = {1e-7 * std::pow(10, exponent(random)),
                       1e-11 * std::pow(10, exponent(random))};
    const Line fitted = FitLine(PointsOf(line, kSizes));
    EXPECT_NEAR(fitted.alpha / line.alpha, 1, 1e-6);
    EXPECT_NEAR(fitted.beta / line.beta, 1, 1e-6);
  }
}

TEST(FitLineTest, ToleratesFivePercentNoise) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> noise(0.95, 1.05);
  const Line line = {3e-6, 2e-10};
  for (int i = 0; i < 200; ++i) {
    std::vector<SizePoint> points = PointsOf(line, kSizes);
    for (SizePoint& point : points) point.value *= noise(random);
    const Line fitted = FitLine(points);
    EXPECT_NEAR(fitted.alpha / line.alpha, 1, 0.06);
    EXPECT_NEAR(fitted.beta / line.beta, 1, 0.06);
  }
}

TEST(FitLineTest, NoCoefficientIsNegative) {
  const std::vector<SizePoint> falling = {{8, 4e-6}, {1 << 20, 1e-6}};
  EXPECT_GE(FitLine(falling).alpha, 0);
  EXPECT_EQ(FitLine(falling).beta, 0);
  const std::vector<SizePoint> steep = {{1000, 1e-6}, {2000, 9e-6}};
  EXPECT_EQ(FitLine(steep).alpha, 0);
  EXPECT_GT(FitLine(steep).beta, 0);
}

TEST(FitLineTest, FitsZeroOrOnePoint) {
  EXPECT_EQ(FitLine({}), Line());
  const std::vector<SizePoint> one = {{64, 5e-6}};
  EXPECT_DOUBLE_EQ(FitLine(one).alpha, 5e-6);
  EXPECT_EQ(FitLine(one).beta, 0);
  const std::vector<SizePoint> barrier = {{0, 5e-6}};
  EXPECT_DOUBLE_EQ(FitLine(barrier).alpha, 5e-6);
}

TEST(CurveTest, GoesThroughItsPoints) {
  const std::vector<SizePoint> points = {
      {64, 1e-6}, {4096, 8e-6}, {65536, 2e-5}};
  for (const SizePoint& point : points) {
    EXPECT_NEAR(CurveAt(points, point.bytes), point.value, 1e-15);
    EXPECT_NEAR(FactorAt(points, point.bytes), point.value, 1e-15);
  }
}

TEST(CurveTest, InterpolatesLogarithmically) {
  const std::vector<SizePoint> points = {{64, 1e-6}, {4096, 16e-6}};
  EXPECT_NEAR(CurveAt(points, 512), 4e-6, 1e-12);
  const std::vector<SizePoint> falling = {{64, 16.0}, {4096, 1.0}};
  EXPECT_NEAR(FactorAt(falling, 512), 4.0, 1e-9);
}

TEST(CurveTest, IsConstantBelowAndAtMostProportionalAbove) {
  const std::vector<SizePoint> points = {{64, 1e-6}, {1024, 64e-6}};
  EXPECT_EQ(CurveAt(points, 1), 1e-6);
  EXPECT_EQ(CurveAt(points, 0), 1e-6);
  EXPECT_NEAR(CurveAt(points, 4096), 4 * 64e-6, 1e-12);  // Not 16 times.
  const std::vector<SizePoint> falling = {{64, 4e-6}, {1024, 1e-6}};
  EXPECT_NEAR(CurveAt(falling, 1 << 20), 1e-6, 1e-15);
  EXPECT_EQ(FactorAt(points, 1 << 20), 64e-6);
}

TEST(CurveTest, OnePointGrowsInProportion) {
  const std::vector<SizePoint> one = {{1000, 1e-6}};
  EXPECT_EQ(CurveAt(one, 10), 1e-6);
  EXPECT_NEAR(CurveAt(one, 5000), 5e-6, 1e-15);
  EXPECT_EQ(FactorAt(one, 5000), 1e-6);
  EXPECT_EQ(CurveAt({}, 5000), 0);
  EXPECT_EQ(FactorAt({}, 5000), 1);
}

// Each algorithm's formula if only latency, only bandwidth or only reduction
// costs time: it counts the rounds and the bytes.
FormulaCosts Alpha() { return {{1, 0}, {1, 0}, 0}; }
FormulaCosts Beta() { return {{0, 1}, {0, 1}, 0}; }
FormulaCosts Gamma() { return {{0, 0}, {0, 0}, 1}; }

double Seconds(const FormulaCosts& costs, Algorithm algorithm, OpKind kind,
               int64_t bytes, int64_t ranks) {
  return FormulaSeconds(costs, algorithm, kind, bytes, ranks, ranks);
}

constexpr double kClose = 1e-6;

TEST(FormulaTest, RingAllReduce) {
  const auto ring = [](const FormulaCosts& costs) {
    return Seconds(costs, Algorithm::kRing, OpKind::kAllReduce, 800, 8);
  };
  EXPECT_NEAR(ring(Alpha()), 14, kClose);
  EXPECT_NEAR(ring(Beta()), 1400, kClose);
  EXPECT_NEAR(ring(Gamma()), 700, kClose);
}

TEST(FormulaTest, RecursiveDoublingAllReduce) {
  const auto doubling = [](const FormulaCosts& costs) {
    return Seconds(costs, Algorithm::kRecursiveDoubling, OpKind::kAllReduce,
                   800, 8);
  };
  EXPECT_NEAR(doubling(Alpha()), 3, kClose);
  EXPECT_NEAR(doubling(Beta()), 2400, kClose);
  EXPECT_NEAR(doubling(Gamma()), 2400, kClose);
}

TEST(FormulaTest, HalvingDoublingAllReduceMovesAsLittleAsARing) {
  const auto halving = [](const FormulaCosts& costs) {
    return Seconds(costs, Algorithm::kHalvingDoubling, OpKind::kAllReduce, 800,
                   8);
  };
  EXPECT_NEAR(halving(Alpha()), 6, kClose);
  EXPECT_NEAR(halving(Beta()), 1400, kClose);
  EXPECT_NEAR(halving(Gamma()), 700, kClose);
}

TEST(FormulaTest, BruckTradesRoundsForBytes) {
  const auto all_to_all = [](const FormulaCosts& costs, Algorithm algorithm) {
    return Seconds(costs, algorithm, OpKind::kAllToAll, 800, 8);
  };
  EXPECT_NEAR(all_to_all(Alpha(), Algorithm::kBruck), 3, kClose);
  EXPECT_NEAR(all_to_all(Alpha(), Algorithm::kPairwise), 7, kClose);
  EXPECT_NEAR(all_to_all(Beta(), Algorithm::kBruck), 1200, kClose);
  EXPECT_NEAR(all_to_all(Beta(), Algorithm::kPairwise), 700, kClose);
}

TEST(FormulaTest, MovingCostsNoReduction) {
  for (const OpKind kind : kCollectiveKinds) {
    if (Reduces(kind)) continue;
    for (const Algorithm algorithm : AlgorithmsFor(kind, false)) {
      EXPECT_NEAR(Seconds(Gamma(), algorithm, kind, 800, 8), 0, kClose)
          << kind << " " << algorithm;
    }
  }
}

TEST(FormulaTest, HierarchicalCrossesHostsInFewRounds) {
  const FormulaCosts far_only = {{0, 0}, {1, 0}, 0};
  const auto rounds = [&](Algorithm algorithm) {
    return FormulaSeconds(far_only, algorithm, OpKind::kAllReduce, 800,
                          /*ranks=*/64, /*ranks_per_host=*/8);
  };
  EXPECT_NEAR(rounds(Algorithm::kHierarchical), 6, kClose);
  EXPECT_NEAR(rounds(Algorithm::kRing), 126, kClose);
}

TEST(FormulaTest, AllAreAboveZeroAndGrowWithBytesAndRanks) {
  const FormulaCosts costs = {{1e-6, 1e-10}, {1e-5, 1e-9}, 1e-10};
  for (const OpKind kind : kCollectiveKinds) {
    for (const Algorithm algorithm : AlgorithmsFor(kind, false)) {
      EXPECT_GT(FormulaSeconds(costs, algorithm, kind, 0, 1, 1), 0);
      for (int64_t ranks = 2; ranks <= 64; ranks *= 2) {
        for (int64_t bytes = 0; bytes <= 1 << 24; bytes = 2 * bytes + 64) {
          const double here =
              FormulaSeconds(costs, algorithm, kind, bytes, ranks, ranks);
          EXPECT_GT(here, 0);
          EXPECT_LE(here, FormulaSeconds(costs, algorithm, kind, 2 * bytes + 64,
                                         ranks, ranks));
          EXPECT_LE(here, FormulaSeconds(costs, algorithm, kind, bytes,
                                         2 * ranks, 2 * ranks));
        }
      }
    }
  }
}

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

TEST(CostTableTest, RoundTripsBitForBit) {
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

TEST(CostTableTest, RoundTripsEmptyTable) {
  EXPECT_THAT(CostTableFromJson(CostTableToJson(CostTable())),
              IsOkAndHolds(CostTable()));
}

TEST(CostTableTest, AcceptsNonUtf8Names) {
  CostTable table = Example();
  table.key.hardware = "host \xff\xfe";
  const auto read = CostTableFromJson(CostTableToJson(table));
  TESSERA_ASSERT_OK(read);
  EXPECT_EQ(read->measured, table.measured);
}

TEST(CostTableTest, RejectsAnotherVersion) {
  const std::string text = CostTableToJson(Example());
  const std::string other =
      absl::StrReplaceAll(text, {{"\"version\":1,", "\"version\":2,"}});
  ASSERT_NE(text, other);
  EXPECT_THAT(
      CostTableFromJson(other),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("version 1")));
}

TEST(CostTableTest, DetectsChangedNumber) {
  const std::string text = CostTableToJson(Example());
  const std::string other = absl::StrReplaceAll(text, {{"4096", "4097"}});
  ASSERT_NE(text, other);
  EXPECT_THAT(
      CostTableFromJson(other),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("checksum")));
}

TEST(CostTableTest, RejectsEveryTruncation) {
  const std::string text = CostTableToJson(Example());
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_THAT(CostTableFromJson(text.substr(0, size)),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << size;
  }
}

TEST(CostTableTest, RejectsTooLongTexts) {
  EXPECT_THAT(CostTableFromJson(std::string(kMaxCostText + 1, '[')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("bytes; use at most")));
  EXPECT_THAT(CostTableFromJson(std::string(kMaxCostText, '[')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CostTableTest, RejectsNumbersOutOfRange) {
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

TEST(CostTableTest, RejectsInvalidCurves) {
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

TEST(CostTableTest, RejectsShapesOutOfRange) {
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
