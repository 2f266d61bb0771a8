// ZeRO++ in training: exact options agree bit for bit, quantised ones train
// nearly the same values, and all ranks have the same bits.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::ToyOptions;
using testing::ToyResult;
using testing::Train;

using Values = std::vector<std::vector<double>>;

ToyOptions Options(int stage, int64_t ranks) {
  ToyOptions options = {.ranks = ranks, .steps = 6, .reproducible = true};
  options.state.stage = stage;
  options.state.bucket_bytes = 300;
  return options;
}

// The final values of all ranks.
Values Trained(const ToyOptions& options) {
  const auto results = Train(options);
  Values values;
  for (const auto& result : results) {
    EXPECT_THAT(result, IsOk());
    if (!result.ok()) return {};
    if (values.empty()) values = result->values;
    EXPECT_EQ(result->values, values) << "ranks differ";
  }
  return values;
}

double LargestDifference(const Values& a, const Values& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (size_t p = 0; p < std::min(a.size(), b.size()); ++p) {
    EXPECT_EQ(a[p].size(), b[p].size());
    for (size_t i = 0; i < std::min(a[p].size(), b[p].size()); ++i) {
      largest = std::max(largest, std::abs(a[p][i] - b[p][i]));
    }
  }
  return largest;
}

TEST(ZeroPlusPlusTest, SecondCopiesChangeNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const LayoutKind layout :
         {LayoutKind::kChunks, LayoutKind::kRoundRobin}) {
      ToyOptions options = Options(3, 4);
      options.dtype = dtype;
      options.state.layout = layout;
      const Values expected = Trained(options);
      for (const int64_t size : {1, 2, 4}) {
        options.state.hpz_partition_size = size;
        EXPECT_EQ(Trained(options), expected) << size;
      }
    }
  }
}

TEST(ZeroPlusPlusTest, SecondCopiesWorkWithTiersReplicasAndMicroBatches) {
  ToyOptions options = Options(3, 2);
  options.replicas = 2;
  const Values expected = Trained(options);
  options.state.hpz_partition_size = 2;
  options.adapt = [](int64_t, ShardedStateOptions& state) {
    static auto& tier = *new offload::HostTier(
        std::make_shared<offload::Accounting>("host", offload::kUnlimited));
    state.parameter_tier = &tier;
  };
  EXPECT_EQ(Trained(options), expected);
}

TEST(ZeroPlusPlusTest, QuantisedTrainingIsNearAndTheSameEveryTime) {
  for (const int stage : {1, 2, 3}) {
    for (const int64_t replicas : {1, 2}) {
      ToyOptions options = Options(stage, 3);
      options.replicas = replicas;
      const Values expected = Trained(options);
      options.state.quantized_gradients = true;
      const Values gradients = Trained(options);
      EXPECT_EQ(Trained(options), gradients);
      EXPECT_GT(LargestDifference(gradients, expected), 0);
      EXPECT_LT(LargestDifference(gradients, expected), 1e-2);
      if (stage < 3) continue;
      options.state.quantized_gradients = false;
      options.state.quantized_weights = true;
      const Values weights = Trained(options);
      EXPECT_EQ(Trained(options), weights);
      EXPECT_GT(LargestDifference(weights, expected), 0);
      EXPECT_LT(LargestDifference(weights, expected), 2e-2);
    }
  }
}

TEST(ZeroPlusPlusTest, AllThreeTogether) {
  ToyOptions options = Options(3, 4);
  const Values expected = Trained(options);
  options.state.quantized_gradients = options.state.quantized_weights = true;
  const Values without = Trained(options);
  options.state.hpz_partition_size = 2;
  EXPECT_EQ(Trained(options), without);
  EXPECT_LT(LargestDifference(without, expected), 2e-2);
}

TEST(ZeroPlusPlusTest, RefusesPartsThatDoNotDivideTheGroup) {
  ToyOptions options = Options(3, 4);
  options.state.hpz_partition_size = 3;
  const auto results = Train(options);
  for (const auto& result : results) {
    EXPECT_THAT(result.status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("hpz_partition_size is 3; it must divide "
                                   "the 4 ranks")));
  }
}

}  // namespace
}  // namespace tessera::zero3
