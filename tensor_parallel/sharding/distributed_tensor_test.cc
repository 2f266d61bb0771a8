#include "tensor_parallel/sharding/distributed_tensor.h"

#include <numeric>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/random_specs.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor Counting(const Dims& shape) {
  Tensor tensor = *Tensor::Create(DType::kI32, shape);
  const std::span<int32_t> values = *tensor.view().AsSpan<int32_t>();
  std::iota(values.begin(), values.end(), 0);
  return tensor;
}

std::span<const int32_t> ValuesOf(const DistributedTensor& tensor) {
  return *tensor.local().view().AsSpan<int32_t>();
}

TEST(DistributedTensorTest, SlicesOfAWholeTensorAndBack) {
  const topology::Mesh mesh = MeshOf("tp3,dp4");
  RandomSpecs random(11);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const Dims shape = random.Shape();
    ShardSpec spec = random.Spec(mesh, shape);
    spec.partial.clear();
    const Tensor full = Counting(shape);
    Tensor back = *Tensor::Create(DType::kI32, shape);
    std::vector<int32_t> seen(static_cast<size_t>(full.element_count()));
    for (int64_t r = 0; r < mesh.world_size(); ++r) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const DistributedTensor tensor,
          DistributedTensor::FromFull(mesh, topology::Rank(r), spec,
                                      full.view()));
      // The values of the counting tensor are its indices: those of the ranges,
      // row by row.
      std::vector<int64_t> expected = {0};
      for (size_t dim = 0; dim < shape.size(); ++dim) {
        std::vector<int64_t> next;
        for (const int64_t offset : expected) {
          for (const IndexRange range : tensor.shard().ranges[dim]) {
            for (int64_t i = range.begin; i < range.end; ++i) {
              next.push_back(offset * shape[dim] + i);
            }
          }
        }
        expected = std::move(next);
      }
      const std::span<const int32_t> values = ValuesOf(tensor);
      ASSERT_EQ(values.size(), expected.size());
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], expected[i]) << tensor.ToString();
        ++seen[static_cast<size_t>(values[i])];
      }
      TESSERA_ASSERT_OK(CopyShared(tensor.shard(), tensor.local().view(),
                                   WholeOf(shape), back.view()));
    }
    EXPECT_THAT(seen, Each(::testing::Ge(1)));
    const std::span<const int32_t> all = *back.view().AsSpan<int32_t>();
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], static_cast<int32_t>(i));
    }
  }
}

TEST(OffsetInTest, IsWhereTheElementsLieInARow) {
  const topology::Mesh mesh = MeshOf("tp3,dp4");
  RandomSpecs random(5);
  int rows = 0;
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const Dims shape = random.Shape();
    const Shard whole = *ShardOf(mesh, random.Spec(mesh, shape), shape,
                                 topology::Rank(random.Below(12)));
    const Shard part =
        Intersection(whole, *ShardOf(mesh, random.Spec(mesh, shape), shape,
                                     topology::Rank(random.Below(12))));
    // The position of each element of the part in the whole.
    Tensor places = Counting(whole.shape());
    Tensor taken = *Tensor::Create(DType::kI32, part.shape());
    TESSERA_ASSERT_OK(
        CopyShared(whole, std::as_const(places).view(), part, taken.view()));
    const std::span<int32_t> at = *taken.view().AsSpan<int32_t>();
    bool in_a_row = true;
    for (size_t i = 1; i < at.size(); ++i) in_a_row &= at[i] == at[i - 1] + 1;
    const std::optional<int64_t> offset = OffsetIn(whole, part);
    ASSERT_EQ(offset.has_value(), in_a_row);
    if (!at.empty() && in_a_row) {
      EXPECT_EQ(*offset, at[0]);
      ++rows;
    }
  }
  EXPECT_GT(rows, 100);
}

TEST(DistributedTensorTest, OnlyTheFirstRankOfAPartialAxisHasTheValues) {
  const topology::Mesh mesh = MeshOf("tp2");
  const ShardSpec spec = {.dims = {{}}, .partial = {"tp"}};
  const Tensor full = Counting({4});
  EXPECT_THAT(ValuesOf(*DistributedTensor::FromFull(mesh, topology::Rank(0),
                                                    spec, full.view())),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ValuesOf(*DistributedTensor::FromFull(mesh, topology::Rank(1),
                                                    spec, full.view())),
              Each(0));
}

TEST(DistributedTensorTest, EqualityIsOfBitsSpecAndShard) {
  const topology::Mesh mesh = MeshOf("tp2");
  const ShardSpec spec = {.dims = {{{"tp"}}}};
  const Tensor full = Counting({5});
  const auto make = [&](int64_t rank, const ShardSpec& as) {
    return *DistributedTensor::FromFull(mesh, topology::Rank(rank), as,
                                        full.view());
  };
  EXPECT_TRUE(SameBits(make(0, spec), make(0, spec)));
  EXPECT_FALSE(SameBits(make(0, spec), make(1, spec)));
  EXPECT_FALSE(SameBits(make(0, spec), make(0, ShardSpec::Replicated(1))));
  DistributedTensor changed = make(0, spec);
  (*changed.local().view().AsSpan<int32_t>())[2] ^= 1;
  EXPECT_FALSE(SameBits(make(0, spec), changed));
}

TEST(DistributedTensorTest, ALocalTensorOfAnotherShapeIsRefused) {
  const topology::Mesh mesh = MeshOf("tp2");
  const ShardSpec spec = {.dims = {{{"tp"}}}};
  EXPECT_THAT(DistributedTensor::FromLocal(mesh, topology::Rank(1), spec, {{5}},
                                           Counting({3})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a local tensor of shape [3]"),
                             HasSubstr("rank 1 has [2] of [5] as [tp]"))));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const DistributedTensor tensor,
      DistributedTensor::FromLocal(mesh, topology::Rank(1), spec, {{5}},
                                   Counting({2})));
  EXPECT_EQ(tensor.ToString(), "i32 [5] as [tp], rank 1 has [2]");
  EXPECT_THAT(DistributedTensor::Create(mesh, topology::Rank(7), spec,
                                        DType::kF32, {{5}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("7")));
}

TEST(CopySharedTest, ViewsThatAreNotOfTheirShardsAreRefused) {
  const Tensor source = Counting({4});
  Tensor target = Counting({3});
  Tensor other = *Tensor::Create(DType::kF32, {{4}});
  const auto refusal = [](const absl::Status& status, const char* says) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(says)));
  };
  refusal(
      CopyShared(WholeOf({{5}}), source.view(), WholeOf({{3}}), target.view()),
      "the source has shape [4], its shard [5]");
  refusal(
      CopyShared(WholeOf({{4}}), source.view(), WholeOf({{4}}), target.view()),
      "the target has shape [3], its shard [4]");
  refusal(
      CopyShared(WholeOf({{4}}), source.view(), WholeOf({{4}}), other.view()),
      "copy of i32 elements to f32");
  Tensor square = Counting({3, 1});
  refusal(CopyShared(WholeOf({{4}}), source.view(), WholeOf({{3, 1}}),
                     square.view()),
          "shards of 1 and of 2 dimensions");
  EXPECT_THAT(*target.view().AsSpan<int32_t>(), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace tessera::tensor_parallel
