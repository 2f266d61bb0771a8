#include "zero3/parameters/statistics.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

ModelParameters ModelOf(const std::vector<int64_t>& sizes) {
  ModelParameters::Builder builder;
  for (const int64_t size : sizes) {
    builder.Add({.name = absl::StrCat("p", builder.Build()->count()),
                 .shape = {size},
                 .dtype = DType::kBF16,
                 .trainable = size % 2 == 0});
  }
  return *builder.Build();
}

TEST(StatisticsTest, NoParametersGiveZeros) {
  EXPECT_EQ(StatisticsOf({}), ParameterStatistics());
}

TEST(StatisticsTest, KnownModel) {
  const ParameterStatistics statistics =
      StatisticsOf(ModelOf({10, 500, 21, 100, 20, 20}).all());
  EXPECT_EQ(statistics.mean, 111);
  EXPECT_EQ(statistics.mean_remainder, 5);
  EXPECT_EQ(statistics.median, 20);
  EXPECT_TRUE(statistics.median_has_half);
  EXPECT_EQ(statistics.trainable_count, 5);
  EXPECT_EQ(statistics.trainable_bytes, 1300);
  EXPECT_EQ(statistics.ToString(),
            "6 parameters, 671 elements, 1342 bytes; elements each: mean "
            "111.83, median 20.5, least 10, most 500; trainable: 5 parameters, "
            "650 elements, 1300 bytes");
}

TEST(StatisticsTest, TrainableModelHasNoTrainablePart) {
  EXPECT_EQ(StatisticsOf(ModelOf({4, 6}).all()).ToString(),
            "2 parameters, 10 elements, 20 bytes; elements each: mean 5, "
            "median 5, least 4, most 6");
}

TEST(StatisticsTest, HugeSizesStayExact) {
  constexpr int64_t kHuge = int64_t{1} << 60;
  const ParameterStatistics statistics =
      StatisticsOf(ModelOf({kHuge, kHuge + 1, kHuge + 1}).all());
  EXPECT_EQ(statistics.mean, kHuge);
  EXPECT_EQ(statistics.mean_remainder, 2);
  EXPECT_EQ(statistics.median, kHuge + 1);
  EXPECT_NE(statistics.ToString().find(absl::StrCat(kHuge, ".66")),
            std::string::npos);
}

// Compares with the definitions: the mean times the count is the sum, and the
// median is the mean of the middle sizes.
TEST(StatisticsTest, EqualsItsDefinitionOnRandomSizes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> sizes(1 + random() % 9);
    for (int64_t& size : sizes) size = static_cast<int64_t>(random() % 40);
    const ParameterStatistics statistics = StatisticsOf(ModelOf(sizes).all());
    int64_t sum = 0;
    for (const int64_t size : sizes) sum += size;
    EXPECT_EQ(statistics.elements, sum);
    EXPECT_EQ(statistics.mean * statistics.count + statistics.mean_remainder,
              sum);
    EXPECT_LT(statistics.mean_remainder, statistics.count);
    std::sort(sizes.begin(), sizes.end());
    const int64_t twice =
        sizes[(sizes.size() - 1) / 2] + sizes[sizes.size() / 2];
    EXPECT_EQ(2 * statistics.median + (statistics.median_has_half ? 1 : 0),
              twice);
    EXPECT_EQ(statistics.least, sizes.front());
    EXPECT_EQ(statistics.most, sizes.back());
  }
}

}  // namespace
}  // namespace tessera::zero3
