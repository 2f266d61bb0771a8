#include "zero3/state/reduce_buckets.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

StateLayout LayoutOf(const std::vector<ParameterSpec>& specs,
                     const LayoutOptions& options) {
  ModelParameters::Builder builder;
  for (const ParameterSpec& spec : specs) builder.Add(spec);
  return *StateLayout::Create(*builder.Build(), options);
}

const std::vector<ParameterSpec> kSpecs = {
    {.name = "a", .shape = {5}, .group = 0},
    {.name = "b", .shape = {2, 3}, .group = 1},
    {.name = "frozen", .shape = {7}, .trainable = false, .group = 1},
    {.name = "c", .shape = {11}, .group = 2},
    {.name = "empty", .shape = {0}, .group = 2}};

// The last layer comes first.
TEST(ReduceBucketsTest, ABucketHasGradientsOfOneGroup) {
  const StateLayout layout = LayoutOf(kSpecs, {.ranks = 2});
  const std::vector<DType> dtypes(5, DType::kF32);
  const ReduceBuckets buckets = ReduceBuckets::Of(layout, dtypes, 1 << 20);
  ASSERT_EQ(buckets.all().size(), 3u);
  EXPECT_THAT(buckets.all()[0].parameters,
              ElementsAre(ParameterId(4), ParameterId(3)));
  EXPECT_THAT(buckets.all()[1].parameters, ElementsAre(ParameterId(1)));
  EXPECT_THAT(buckets.all()[2].parameters, ElementsAre(ParameterId(0)));
  EXPECT_EQ(buckets.BucketOf(ParameterId(0)), 2u);
  EXPECT_EQ(buckets.BucketOf(ParameterId(3)), 0u);
}

TEST(ReduceBucketsTest, BucketsAreFilledInTheReverseOrderOfUse) {
  std::vector<ParameterSpec> specs = kSpecs;
  for (ParameterSpec& spec : specs) spec.group = 0;
  const std::vector<DType> dtypes(5, DType::kF32);
  // Only chunks need packing. 11 elements of "c" and 6 of "b" fit.
  const ReduceBuckets buckets = ReduceBuckets::Of(
      LayoutOf(specs, {.kind = LayoutKind::kRoundRobin, .ranks = 2}), dtypes,
      17 * 4);
  ASSERT_EQ(buckets.all().size(), 2u);
  EXPECT_THAT(buckets.all()[0].parameters,
              ElementsAre(ParameterId(4), ParameterId(3), ParameterId(1)));
  // With chunks, a gradient of at least a quarter of a bucket gets its own
  // bucket: with 4 x 48 bytes all except "c", which has 48, are packed.
  const ReduceBuckets packed =
      ReduceBuckets::Of(LayoutOf(specs, {.ranks = 2}), dtypes, 4 * 48);
  ASSERT_EQ(packed.all().size(), 3u);
  EXPECT_THAT(packed.all()[1].parameters, ElementsAre(ParameterId(3)));
  EXPECT_TRUE(packed.all()[1].is_direct);
  EXPECT_THAT(packed.all()[2].parameters,
              ElementsAre(ParameterId(1), ParameterId(0)));
  EXPECT_FALSE(packed.all()[2].is_direct);
}

TEST(ReduceBucketsTest, AGradientThatIsLargerThanABucketIsAlone) {
  const StateLayout layout = LayoutOf(kSpecs, {.ranks = 2});
  const std::vector<DType> dtypes(5, DType::kF32);
  EXPECT_EQ(ReduceBuckets::Of(layout, dtypes, 1).all().size(), 4u);
}

TEST(ReduceBucketsTest, ABucketHasOneType) {
  const StateLayout layout = LayoutOf(kSpecs, {.ranks = 2});
  std::vector<DType> dtypes(5, DType::kF32);
  dtypes[3] = DType::kF64;
  const ReduceBuckets buckets = ReduceBuckets::Of(layout, dtypes, 1 << 20);
  ASSERT_EQ(buckets.all().size(), 4u);
  EXPECT_EQ(buckets.all()[0].dtype, DType::kF32);
  EXPECT_EQ(buckets.all()[1].dtype, DType::kF64);
}

// Returns true if each gradient is contiguous, starting at BeginOf.
bool IsInOnePiece(const StateLayout& layout, const ReduceBucket& bucket,
                  const ReduceBuckets& buckets) {
  std::map<int64_t, std::pair<ParameterId, int64_t>> at;  // Element, by place.
  for (const auto& pieces : bucket.pieces) {
    for (const BucketPiece& piece : pieces) {
      for (int64_t e = 0; e < piece.size; ++e) {
        at[piece.offset + e] = {piece.parameter, piece.begin + e};
      }
    }
  }
  for (ParameterId id : bucket.parameters) {
    for (int64_t e = 0; e < layout.model()[id].elements; ++e) {
      if (at[buckets.BeginOf(id) + e] != std::pair(id, e)) return false;
    }
  }
  return true;
}

// Every element of every gradient has one place, in its owner's part.
TEST(ReduceBucketsTest, EachElementLiesOnceWithItsHolder) {
  for (const LayoutKind kind :
       {LayoutKind::kChunks, LayoutKind::kRoundRobin, LayoutKind::kBalanced}) {
    for (const int64_t ranks : {1, 2, 3, 5, 8}) {
      for (const int64_t alignment : {1, 4}) {
        const StateLayout layout = LayoutOf(
            kSpecs, {.kind = kind, .ranks = ranks, .alignment = alignment});
        const std::vector<DType> dtypes(5, DType::kF32);
        const ReduceBuckets buckets = ReduceBuckets::Of(layout, dtypes, 60);
        std::set<std::pair<int64_t, int64_t>> seen;
        for (const ReduceBucket& bucket : buckets.all()) {
          int64_t offset = 0;
          for (size_t r = 0; r < bucket.pieces.size(); ++r) {
            const int64_t first = offset;
            for (const BucketPiece& piece : bucket.pieces[r]) {
              EXPECT_EQ(piece.offset, offset);
              EXPECT_GE(piece.slot, piece.size);
              offset += piece.slot;
              for (int64_t e = 0; e < piece.size; ++e) {
                EXPECT_TRUE(
                    seen.insert({piece.parameter.value(), piece.begin + e})
                        .second);
                const auto holder = layout.Locate(
                    piece.parameter, piece.begin + e, piece.begin + e + 1);
                ASSERT_EQ(holder.size(), 1u);
                EXPECT_EQ(holder[0].rank.value(), static_cast<int64_t>(r));
              }
            }
            EXPECT_EQ(offset - first, bucket.counts[r]);
          }
          EXPECT_EQ(offset, bucket.elements);
          EXPECT_EQ(bucket.is_direct, IsInOnePiece(layout, bucket, buckets));
          if (kind == LayoutKind::kChunks) {
            EXPECT_THAT(bucket.counts, Each(bucket.counts.front()));
          }
        }
        EXPECT_EQ(seen.size(), 5u + 6 + 11);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::zero3
