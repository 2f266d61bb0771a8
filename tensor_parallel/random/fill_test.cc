#include "tensor_parallel/random/fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/random_specs.h"
#include "tensor_parallel/sharding/shard_spec.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Filler = std::function<absl::Status(DistributedTensor&)>;

constexpr RandomKey kKey = {.seed = 42, .stream = 7};

std::vector<Filler> Fillers() {
  return {
      [](DistributedTensor& t) { return FillUniform(kKey, -0.5, 2, t); },
      [](DistributedTensor& t) { return FillNormal(kKey, 1, 0.02, t); },
      [](DistributedTensor& t) {
        return FillTruncatedNormal(kKey, 0, 0.5, -0.5, 0.75, t);
      },
  };
}

DistributedTensor Make(const topology::Mesh& mesh, topology::Rank rank,
                       const ShardSpec& spec, DType dtype, const Dims& shape) {
  return *DistributedTensor::Create(mesh, rank, spec, dtype, shape);
}

DistributedTensor OneRank(const Filler& fill, DType dtype, const Dims& shape) {
  DistributedTensor tensor =
      Make(MeshOf("tp1"), topology::Rank(0),
           ShardSpec::Replicated(shape.size()), dtype, shape);
  TESSERA_EXPECT_OK(fill(tensor));
  return tensor;
}

// Compares the part with the whole bit for bit, run by run.
void ExpectPartOf(const DistributedTensor& part, const DistributedTensor& whole,
                  bool zeros) {
  const auto size = static_cast<size_t>(SizeInBytes(part.dtype()));
  const std::byte* const all = whole.local().buffer().data();
  const std::byte* const mine = part.local().buffer().data();
  ForEachRun(part.shard(), part.shape(), [&](const ShardRun& run) {
    const size_t bytes = static_cast<size_t>(run.length) * size;
    std::vector<std::byte> expected(bytes);
    if (!zeros) {
      std::memcpy(expected.data(), all + static_cast<size_t>(run.whole) * size,
                  bytes);
    }
    ASSERT_EQ(std::memcmp(expected.data(),
                          mine + static_cast<size_t>(run.local) * size, bytes),
              0)
        << part.ToString();
  });
}

TEST(FillTest, EveryMeshAndSpecStartsFromTheSameBits) {
  const std::vector<Filler> fillers = Fillers();
  for (const char* axes : {"tp1", "tp2", "tp7", "tp3,dp2", "dp2,cp2,tp3"}) {
    const topology::Mesh mesh = MeshOf(axes, topology::Rank(3));
    RandomSpecs random(13);
    for (int repeat = 0; repeat < 90; ++repeat) {
      const DType dtype = kAllDTypes[static_cast<size_t>(repeat) % 6];
      const Filler& fill = fillers[static_cast<size_t>(repeat) % 3];
      const Dims shape = random.Shape();
      const ShardSpec spec = random.Spec(mesh, shape);
      const DistributedTensor whole = OneRank(fill, dtype, shape);
      for (int64_t r = 0; r < mesh.world_size(); ++r) {
        const topology::Rank rank(3 + r);
        DistributedTensor part = Make(mesh, rank, spec, dtype, shape);
        TESSERA_ASSERT_OK(fill(part));
        bool zeros = false;
        for (const std::string& axis : spec.partial) {
          zeros |= *mesh.CoordinateOf(rank, axis) != 0;
        }
        ExpectPartOf(part, whole, zeros);
      }
    }
  }
}

// Longer than the internal block of random numbers.
TEST(FillTest, LongRowsToo) {
  const topology::Mesh mesh = MeshOf("tp3");
  for (const Filler& fill : Fillers()) {
    const Dims shape = {3, 5001};
    const DistributedTensor whole = OneRank(fill, DType::kBF16, shape);
    for (const size_t dim : {0, 1}) {
      ShardSpec spec = ShardSpec::Replicated(2);
      spec.dims[dim].axes = {"tp"};
      for (int64_t r = 0; r < 3; ++r) {
        DistributedTensor part =
            Make(mesh, topology::Rank(r), spec, DType::kBF16, shape);
        TESSERA_ASSERT_OK(fill(part));
        ExpectPartOf(part, whole, false);
      }
    }
  }
}

TEST(FillTest, ElementsAreTheKeysNumbersRoundedOnce) {
  const Philox random(kKey);
  const DistributedTensor uniform =
      OneRank([](DistributedTensor& t) { return FillUniform(kKey, -1, 3, t); },
              DType::kF64, {100});
  const DistributedTensor normal =
      OneRank([](DistributedTensor& t) { return FillNormal(kKey, 1, 0.02, t); },
              DType::kF16, {100});
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ((*uniform.local().view().AsSpan<double>())[i],
              -1 + 4 * random.Uniform(i));
    EXPECT_EQ(
        static_cast<float>((*normal.local().view().AsSpan<F16>())[i]),
        static_cast<float>(ConvertValue<F16>(1 + 0.02 * random.Normal(i))));
  }
}

// Kolmogorov's distance between the distribution of the sample and the expected
// one: below 1.95 in all but one of a thousand samples.
TEST(FillTest, TruncatedNumbersAreDistributedAsThoseThatFit) {
  constexpr int64_t kCount = 100'000;
  const DistributedTensor tensor = OneRank(
      [](DistributedTensor& t) {
        return FillTruncatedNormal(kKey, 2, 3, -1, 4, t);
      },
      DType::kF64, {kCount});
  const std::span<const double> given = *tensor.local().view().AsSpan<double>();
  std::vector<double> sample(given.begin(), given.end());
  std::sort(sample.begin(), sample.end());
  EXPECT_GE(sample.front(), -1);
  EXPECT_LE(sample.back(), 4);
  const auto cdf = [](double x) {
    return std::erfc(-(x - 2) / 3 / std::sqrt(2)) / 2;
  };
  double distance = 0;
  for (size_t i = 0; i < sample.size(); ++i) {
    const double expected = (cdf(sample[i]) - cdf(-1)) / (cdf(4) - cdf(-1));
    distance = std::max(
        distance, std::abs((static_cast<double>(i) + 0.5) / kCount - expected));
  }
  EXPECT_LT(distance * std::sqrt(static_cast<double>(kCount)), 1.95);
}

TEST(FillTest, WhatCannotBeFilledIsRefusedAndKept) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  DistributedTensor tensor = OneRank(Fillers()[0], DType::kF32, {8});
  const DistributedTensor before = OneRank(Fillers()[0], DType::kF32, {8});
  const auto refusal = [&](const absl::Status& status, auto says) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, says));
    EXPECT_TRUE(SameBits(tensor, before));
  };
  refusal(FillUniform(kKey, 2, 1, tensor), HasSubstr("[2, 1)"));
  refusal(FillUniform(kKey, 0, kInfinity, tensor), HasSubstr("finite"));
  refusal(FillNormal(kKey, 0, -1, tensor), HasSubstr("deviation -1"));
  refusal(FillNormal(kKey, kInfinity, 1, tensor), HasSubstr("mean inf"));
  refusal(FillTruncatedNormal(kKey, 0, 1, 3, 4, tensor),
          AllOf(HasSubstr("in [3, 4]"), HasSubstr("0.25 or more")));
  refusal(FillTruncatedNormal(kKey, 0, 1, 1, -1, tensor), HasSubstr("[1, -1]"));
  refusal(FillTruncatedNormal(kKey, 0, 0, 1, 1, tensor),
          HasSubstr("in [1, 1]"));
  DistributedTensor integers = Make(MeshOf("tp1"), topology::Rank(0),
                                    ShardSpec::Replicated(1), DType::kI32, {4});
  refusal(FillNormal(kKey, 0, 1, integers), HasSubstr("floating-point"));
}

}  // namespace
}  // namespace tessera::tensor_parallel
