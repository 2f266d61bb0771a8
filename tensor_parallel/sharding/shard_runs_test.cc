#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/random_specs.h"
#include "tensor_parallel/sharding/shard_spec.h"

namespace tessera::tensor_parallel {
namespace {

TEST(ShardRunsTest, AreTheElementsOfTheRangesRowByRow) {
  const topology::Mesh mesh = MeshOf("tp3,dp4");
  RandomSpecs random(29);
  for (int repeat = 0; repeat < 1000; ++repeat) {
    const Dims shape = random.Shape();
    const Shard shard = *ShardOf(mesh, random.Spec(mesh, shape), shape,
                                 topology::Rank(random.Below(12)));
    std::vector<int64_t> expected = {0};
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      std::vector<int64_t> next;
      for (const int64_t index : expected) {
        for (const IndexRange range : shard.ranges[dim]) {
          for (int64_t i = range.begin; i < range.end; ++i) {
            next.push_back(index * shape[dim] + i);
          }
        }
      }
      expected = std::move(next);
    }
    std::vector<int64_t> given;
    ForEachRun(shard, shape, [&](const ShardRun& run) {
      EXPECT_EQ(run.local, static_cast<int64_t>(given.size()));
      EXPECT_GT(run.length, 0);
      for (int64_t i = 0; i < run.length; ++i) given.push_back(run.whole + i);
    });
    EXPECT_EQ(given, expected);
  }
}

TEST(ShardRunsTest, DimensionsThatAreNotCutAreOneRun) {
  const topology::Mesh mesh = MeshOf("tp2");
  const auto runs = [&](const ShardSpec& spec) {
    const Dims shape = {4, 6, 5};
    int count = 0;
    ForEachRun(*ShardOf(mesh, spec, shape, topology::Rank(1)), shape,
               [&](const ShardRun&) { ++count; });
    return count;
  };
  EXPECT_EQ(runs(ShardSpec::Replicated(3)), 1);
  EXPECT_EQ(runs({.dims = {{{"tp"}}, {}, {}}}), 1);
  EXPECT_EQ(runs({.dims = {{}, {{"tp"}}, {}}}), 4);
  EXPECT_EQ(runs({.dims = {{}, {}, {{"tp"}}}}), 24);
}

TEST(ShardRunsTest, ATensorWithoutDimensionsIsOneElement) {
  int64_t elements = 0;
  ForEachRun(Shard(), {}, [&](const ShardRun& run) { elements += run.length; });
  EXPECT_EQ(elements, 1);
}

}  // namespace
}  // namespace tessera::tensor_parallel
