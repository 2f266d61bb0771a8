#include <cmath>
#include <random>
#include <vector>

#include "collectives/adaptive/cost_table.h"
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

TEST(FitLineTest, RecoversTheLineThatMadeThePoints) {
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

TEST(FitLineTest, NoiseOfFivePercentMovesItByAboutThat) {
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

TEST(FitLineTest, FewPointsGiveWhatTheySay) {
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

TEST(CurveTest, IsStraightOnLogarithmicScalesBetweenThem) {
  const std::vector<SizePoint> points = {{64, 1e-6}, {4096, 16e-6}};
  EXPECT_NEAR(CurveAt(points, 512), 4e-6, 1e-12);
  const std::vector<SizePoint> falling = {{64, 16.0}, {4096, 1.0}};
  EXPECT_NEAR(FactorAt(falling, 512), 4.0, 1e-9);
}

TEST(CurveTest, IsLevelBelowAndGrowsAtMostInProportionAbove) {
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

}  // namespace
}  // namespace tessera::collectives
