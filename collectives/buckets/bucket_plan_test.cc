#include "collectives/buckets/bucket_plan.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

std::vector<int64_t> Identity(size_t count) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

TEST(BucketPlanTest, FillsBucketsUpToTheirSize) {
  const std::vector<BucketTensor> tensors(10, {256, DType::kF32});  // 1 KiB.
  const BucketPlan plan = PlanBuckets(tensors, Identity(10), 4096);
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[0].members, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(plan.buckets[2].members, (std::vector<int64_t>{8, 9}));
  EXPECT_EQ(plan.place[5].bucket, 1);
  EXPECT_EQ(plan.place[5].offset, 256);
}

TEST(BucketPlanTest, ATensorLargerThanABucketHasItsOwn) {
  const std::vector<BucketTensor> tensors = {
      {10, DType::kF32}, {5000, DType::kF32}, {10, DType::kF32}};
  const BucketPlan plan = PlanBuckets(tensors, Identity(3), 4096);
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[1].members, (std::vector<int64_t>{1}));
}

TEST(BucketPlanTest, NoTensorsNoBuckets) {
  EXPECT_TRUE(PlanBuckets({}, {}, 100).buckets.empty());
}

// Properties on random tensors: every tensor in exactly one place, nothing
// overlaps, sizes and types hold, and buckets come in the order in which they
// become whole.
TEST(BucketPlanTest, HoldsItsPropertiesOnRandomTensors) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    const size_t count = random() % 40;
    std::vector<BucketTensor> tensors(count);
    for (BucketTensor& tensor : tensors) {
      tensor.count = static_cast<int64_t>(random() % 700);
      tensor.dtype = random() % 3 == 0 ? DType::kBF16 : DType::kF32;
    }
    std::vector<int64_t> order = Identity(count);
    std::shuffle(order.begin(), order.end(), random);
    const int64_t limit = 1 + static_cast<int64_t>(random() % 5000);
    const BucketPlan plan = PlanBuckets(tensors, order, limit);

    std::vector<int> placed(count, 0);
    int64_t last_completion = -1;
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      const BucketPlan::Bucket& bucket = plan.buckets[b];
      ASSERT_FALSE(bucket.members.empty());
      int64_t end = 0;
      int64_t completion = -1;
      for (int64_t member : bucket.members) {
        const auto m = static_cast<size_t>(member);
        ++placed[m];
        EXPECT_EQ(plan.place[m].bucket, static_cast<int64_t>(b));
        EXPECT_EQ(tensors[m].dtype, bucket.dtype);
        EXPECT_GE(plan.place[m].offset, end);
        EXPECT_EQ(plan.place[m].offset * SizeInBytes(bucket.dtype) % 64, 0);
        end = plan.place[m].offset + tensors[m].count;
        completion = std::max<int64_t>(
            completion,
            std::find(order.begin(), order.end(), member) - order.begin());
      }
      EXPECT_LE(end, bucket.count);
      if (bucket.members.size() > 1) {
        EXPECT_LE(bucket.count * SizeInBytes(bucket.dtype), limit);
      }
      EXPECT_GT(completion, last_completion);
      last_completion = completion;
    }
    EXPECT_TRUE(std::all_of(placed.begin(), placed.end(),
                            [](int n) { return n == 1; }));
  }
}

}  // namespace
}  // namespace tessera::collectives
