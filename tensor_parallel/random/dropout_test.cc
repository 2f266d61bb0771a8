#include "tensor_parallel/random/dropout.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/random/fill.h"
#include "tensor_parallel/sharding/random_specs.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr RandomKey kKey = {.seed = 5, .stream = 9};

DistributedTensor Make(const topology::Mesh& mesh, topology::Rank rank,
                       const ShardSpec& spec, DType dtype, const Dims& shape) {
  return *DistributedTensor::Create(mesh, rank, spec, dtype, shape);
}

DistributedTensor Random(const topology::Mesh& mesh, topology::Rank rank,
                         const ShardSpec& spec, DType dtype,
                         const Dims& shape) {
  DistributedTensor tensor = Make(mesh, rank, spec, dtype, shape);
  TESSERA_EXPECT_OK(FillUniform({.seed = 1, .stream = 1}, 1, 2, tensor));
  return tensor;
}

DistributedTensor Dropped(const Dropout& dropout,
                          const DistributedTensor& input) {
  DistributedTensor output = Make(input.mesh(), input.rank(), input.spec(),
                                  input.dtype(), input.shape());
  TESSERA_EXPECT_OK(dropout.Apply(input, output));
  return output;
}

TEST(DropoutTest, EveryMeshDropsTheSameElements) {
  const Dropout dropout = *Dropout::Create(kKey, 0.3);
  for (const char* axes : {"tp2", "tp3,dp2", "dp2,cp2,tp3"}) {
    const topology::Mesh mesh = MeshOf(axes);
    RandomSpecs random(31);
    for (int repeat = 0; repeat < 60; ++repeat) {
      const DType dtype = kAllDTypes[static_cast<size_t>(repeat) % 6];
      const Dims shape = random.Shape();
      ShardSpec spec = random.Spec(mesh, shape);
      spec.partial.clear();
      const topology::Mesh one = MeshOf("tp1");
      const ShardSpec replicated = ShardSpec::Replicated(shape.size());
      const DistributedTensor whole = Dropped(
          dropout, Random(one, topology::Rank(0), replicated, dtype, shape));
      for (int64_t r = 0; r < mesh.world_size(); ++r) {
        const topology::Rank rank(r);
        EXPECT_TRUE(
            SameBits(Dropped(dropout, Random(mesh, rank, spec, dtype, shape)),
                     *DistributedTensor::FromFull(mesh, rank, spec,
                                                  whole.local().view())));
      }
    }
  }
}

TEST(DropoutTest, DropsItsShareAndScalesTheRest) {
  const topology::Mesh mesh = MeshOf("tp1");
  constexpr int64_t kCount = 100'000;
  const Philox random(kKey);
  for (const double probability : {0.0, 0.1, 0.5, 0.99}) {
    const Dropout dropout = *Dropout::Create(kKey, probability);
    EXPECT_EQ(dropout.probability(), probability);
    const DistributedTensor input =
        Random(mesh, topology::Rank(0), ShardSpec::Replicated(1), DType::kF64,
               {kCount});
    const DistributedTensor output = Dropped(dropout, input);
    const std::span<const double> x = *input.local().view().AsSpan<double>();
    const std::span<const double> y = *output.local().view().AsSpan<double>();
    double dropped = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const bool kept = random.Uniform(i) >= probability;
      dropped += kept ? 0 : 1;
      EXPECT_EQ(y[i], kept ? x[i] * (1 / (1 - probability)) : 0);
    }
    // Four standard deviations.
    EXPECT_NEAR(dropped / kCount, probability,
                4 * std::sqrt(probability * (1 - probability) / kCount));
  }
}

// <y, dy> = <x, dx>: the backward pass is the transpose of the forward pass.
TEST(DropoutTest, TheBackwardPassHasTheMaskOfTheForwardPass) {
  const topology::Mesh mesh = MeshOf("tp2");
  const ShardSpec spec = {.dims = {{{"tp"}}, {}}};
  const Dropout dropout = *Dropout::Create(kKey, 0.4);
  for (const int64_t r : {0, 1}) {
    const DistributedTensor x =
        Random(mesh, topology::Rank(r), spec, DType::kF64, {9, 11});
    DistributedTensor dy =
        Make(mesh, topology::Rank(r), spec, DType::kF64, {9, 11});
    TESSERA_ASSERT_OK(FillNormal({.seed = 77}, 0, 1, dy));
    const DistributedTensor y = Dropped(dropout, x);
    // In place.
    DistributedTensor dx =
        Make(mesh, topology::Rank(r), spec, DType::kF64, {9, 11});
    TESSERA_ASSERT_OK(FillNormal({.seed = 77}, 0, 1, dx));
    TESSERA_ASSERT_OK(dropout.Apply(dx, dx));
    double forward = 0;
    double backward = 0;
    for (size_t i = 0; i < static_cast<size_t>(x.local().element_count());
         ++i) {
      const auto at = [i](const DistributedTensor& tensor) {
        return (*tensor.local().view().AsSpan<double>())[i];
      };
      forward += at(y) * at(dy);
      backward += at(x) * at(dx);
      EXPECT_EQ(at(y) == 0, at(dx) == 0);
    }
    EXPECT_NEAR(forward, backward, 1e-10);
  }
}

TEST(DropoutTest, MasksDifferAlongTheAxesThatAreNamedAndNoOthers) {
  const topology::Mesh mesh = MeshOf("tp2,dp3,cp2");
  const ShardSpec spec = {.dims = {{}}};
  const auto mask = [&](const Dropout& dropout, int64_t rank) {
    const DistributedTensor output = Dropped(
        dropout, Random(mesh, topology::Rank(rank), spec, DType::kF32, {64}));
    const std::span<const float> y = *output.local().view().AsSpan<float>();
    std::vector<bool> kept;
    for (const float value : y) kept.push_back(value != 0);
    return kept;
  };
  for (const std::vector<std::string>& axes :
       std::vector<std::vector<std::string>>{
           {}, {"dp"}, {"tp"}, {"dp", "cp"}, {"tp", "dp", "cp"}}) {
    const Dropout dropout = *Dropout::Create(kKey, 0.5, axes);
    std::map<std::vector<bool>, std::vector<int64_t>> places;
    for (int64_t r = 0; r < 12; ++r) {
      std::vector<int64_t> place;
      for (const std::string& axis : axes) {
        place.push_back(*mesh.CoordinateOf(topology::Rank(r), axis));
      }
      const auto [at, is_new] = places.try_emplace(mask(dropout, r), place);
      EXPECT_EQ(at->second, place) << r;
    }
    size_t expected = 1;
    for (const std::string& axis : axes) {
      expected *= static_cast<size_t>(mesh.SizeOf(axis)->value());
    }
    EXPECT_EQ(places.size(), expected);
  }
  // The order of the named axes does not matter; the set does.
  const auto key = [&](std::vector<std::string> axes) {
    return *Dropout::Create(kKey, 0.5, axes)->KeyOf(mesh, topology::Rank(11));
  };
  EXPECT_EQ(key({"tp", "cp"}), key({"cp", "tp"}));
  EXPECT_FALSE(key({"tp"}) == key({"cp"}));
  EXPECT_EQ(key({}), kKey);
}

TEST(DropoutTest, WhatCannotBeIsRefusedAndNothingIsWritten) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double probability : {-0.1, 1.0, kNan}) {
    EXPECT_THAT(Dropout::Create(kKey, probability),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("must be in [0, 1)")));
  }
  EXPECT_THAT(
      Dropout::Create(kKey, 0.1, {"dp", "dp"}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"dp\" twice")));
  const topology::Mesh mesh = MeshOf("tp2,dp2");
  const ShardSpec spec = {.dims = {{{"tp"}}}};
  const DistributedTensor x =
      Random(mesh, topology::Rank(0), spec, DType::kF32, {8});
  DistributedTensor y = Random(mesh, topology::Rank(0), spec, DType::kF32, {8});
  const auto refusal = [&](const absl::Status& status, auto says) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, says));
    EXPECT_TRUE(SameBits(x, y));
  };
  refusal(Dropout::Create(kKey, 0.1, {"tp"})->Apply(x, y),
          AllOf(HasSubstr("differs along \"tp\""), HasSubstr("[tp]")));
  refusal(Dropout::Create(kKey, 0.1, {"zz"})->Apply(x, y), HasSubstr("zz"));
  const Dropout dropout = *Dropout::Create(kKey, 0.1);
  DistributedTensor other =
      Random(mesh, topology::Rank(1), spec, DType::kF32, {8});
  refusal(dropout.Apply(x, other), HasSubstr("they must be equal"));
  DistributedTensor wider =
      Random(mesh, topology::Rank(0), spec, DType::kF64, {8});
  refusal(dropout.Apply(x, wider),
          AllOf(HasSubstr("the output is f64 [4]"), HasSubstr("one type")));
  refusal(dropout.Apply(mesh, topology::Rank(0), spec, {{6}}, x.local().view(),
                        y.local().view()),
          HasSubstr("shard of [3]"));
}

}  // namespace
}  // namespace tessera::tensor_parallel
