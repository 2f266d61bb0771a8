#include "tensor_parallel/sharding/redistribution.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/testing/random_layouts.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<StepKind> KindsOf(const RedistributionPlan& plan) {
  std::vector<StepKind> kinds;
  for (const RedistributionStep& step : plan.steps) kinds.push_back(step.kind);
  return kinds;
}

// Tries every sequence of up to four steps.
class EverySequence {
 public:
  EverySequence(const ShardedLayout& target, const PlanOptions& options)
      : target_(target), options_(options) {}

  int64_t Best(const ShardedLayout& from) {
    Try(from, 0, 0);
    return best_;
  }

 private:
  int64_t CostOfStep(const RedistributionStep& step) {
    const auto [at, is_new] = costs_.try_emplace(step.ToString(), 0);
    if (is_new) at->second = *CostOf(step, DType::kF32, options_);
    return at->second;
  }

  void Try(const ShardedLayout& layout, int64_t cost, int depth) {
    if (layout == target_) best_ = std::min(best_, cost);
    if (depth == 4 || layout == target_ || cost >= best_) return;
    for (const RedistributionStep& step : NextSteps(layout, target_)) {
      Try(step.to, cost + CostOfStep(step), depth + 1);
    }
  }

  const ShardedLayout& target_;
  const PlanOptions& options_;
  std::map<std::string, int64_t> costs_;
  int64_t best_ = std::numeric_limits<int64_t>::max();
};

TEST(PlanRedistributionTest, NoSequenceOfUpToFourStepsIsCheaper) {
  const topology::Mesh mesh = MeshOf("tp2,dp3");
  for (const int64_t latency : {0, 20, 20'000}) {
    const PlanOptions options = {.latency_bytes = latency};
    RandomLayouts random(static_cast<uint64_t>(latency) + 1);
    for (int repeat = 0; repeat < 60; ++repeat) {
      Dims shape = random.Shape();
      if (shape.size() > 2) shape.pop_back();
      const ShardedLayout from = random.Layout(mesh, shape);
      const ShardedLayout to = random.Layout(mesh, shape);
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const RedistributionPlan plan,
          PlanRedistribution(from, to, DType::kF32, options));
      EXPECT_EQ(plan.cost, EverySequence(to, options).Best(from))
          << from << " to " << to << "\n"
          << plan.ToString();
    }
  }
}

// A rank must receive the elements that it does not have. Without partial sums
// plans for even shards usually receive nothing else.
TEST(PlanRedistributionTest, EvenShardsReceiveLittleMoreThanTheyMust) {
  const topology::Mesh mesh = MeshOf("tp2,dp2,cp2");
  RandomLayouts random(17);
  const Dims shape = {16, 8};
  const auto even = [&] {
    Placements placements = random.Layout(mesh, shape).placements();
    std::erase_if(placements, [](const Placement& p) { return p.dim < 0; });
    for (Placement& placement : placements) placement.rule = {};
    return *ShardedLayout::Create(mesh, shape, placements);
  };
  int at_the_bound = 0;
  constexpr int kRepeats = 200;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const ShardedLayout from = even();
    const ShardedLayout to = even();
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RedistributionPlan plan,
        PlanRedistribution(from, to, DType::kF32, {.latency_bytes = 1}));
    int64_t most_lacking = 0;
    int64_t most_received = 0;
    for (int64_t r = 0; r < 8; ++r) {
      const topology::Rank rank(r);
      const Box wanted = to.BoxOf(rank);
      const int64_t lacking =
          4 * (wanted.element_count() -
               Intersection(from.BoxOf(rank), wanted).element_count());
      const int64_t received = plan.BytesOf(rank)->received;
      EXPECT_GE(received, lacking);
      most_lacking = std::max(most_lacking, lacking);
      most_received = std::max(most_received, received);
    }
    if (most_received == most_lacking) ++at_the_bound;
  }
  EXPECT_GE(at_the_bound, kRepeats * 9 / 10);
}

TEST(PlanRedistributionTest, SentAndReceivedBytesAgree) {
  const topology::Mesh mesh = MeshOf("tp2,dp3,cp2");
  RandomLayouts random(23);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const Dims shape = random.Shape();
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RedistributionPlan plan,
        PlanRedistribution(random.Layout(mesh, shape),
                           random.Layout(mesh, shape), DType::kBF16));
    int64_t balance = 0;
    for (int64_t r = 0; r < mesh.world_size(); ++r) {
      const StepBytes bytes = *plan.BytesOf(topology::Rank(r));
      balance += bytes.sent - bytes.received;
    }
    EXPECT_EQ(balance, 0) << plan.ToString();
  }
}

class PlanOfAMatrixTest : public ::testing::Test {
 protected:
  RedistributionPlan Plan(const char* from, const char* to) const {
    return *PlanRedistribution(LayoutOf(mesh_, {1024, 1024}, from),
                               LayoutOf(mesh_, {1024, 1024}, to), DType::kF32);
  }
  StepBytes BytesOf(const char* from, const char* to) const {
    return *Plan(from, to).BytesOf(topology::Rank(0));
  }

  const topology::Mesh mesh_ = MeshOf("tp4,dp2");
  const int64_t bytes_ = 4 << 20;
};

TEST_F(PlanOfAMatrixTest, FindsTheUsualCollectives) {
  const auto kinds = [&](const char* from, const char* to) {
    return KindsOf(Plan(from, to));
  };
  EXPECT_THAT(kinds("tp:0", "tp:0"), ElementsAre());
  EXPECT_THAT(kinds("replicated", "tp:0"), ElementsAre(StepKind::kSlice));
  EXPECT_THAT(kinds("replicated", "tp:sum"), ElementsAre(StepKind::kPad));
  EXPECT_THAT(kinds("tp:0", "tp:sum"), ElementsAre(StepKind::kPad));
  EXPECT_THAT(kinds("tp:0", "replicated"), ElementsAre(StepKind::kAllGather));
  EXPECT_THAT(kinds("tp:0", "tp:1"), ElementsAre(StepKind::kAllToAll));
  EXPECT_THAT(kinds("tp:sum", "tp:1"), ElementsAre(StepKind::kReduceScatter));
  EXPECT_THAT(kinds("tp:sum,dp:sum", "tp:1,dp:1"),
              ElementsAre(StepKind::kReduceScatter));
  EXPECT_THAT(kinds("tp:sum", "replicated"), ElementsAre(StepKind::kAllReduce));
  EXPECT_THAT(kinds("tp:sum,dp:sum", "replicated"),
              ElementsAre(StepKind::kAllReduce));
}

TEST_F(PlanOfAMatrixTest, BytesAreThoseOfTheFormulas) {
  EXPECT_EQ(BytesOf("tp:0", "replicated"),
            (StepBytes{bytes_ * 3 / 4, bytes_ * 3 / 4, bytes_}));
  EXPECT_EQ(BytesOf("tp:0", "tp:1"),
            (StepBytes{bytes_ * 3 / 16, bytes_ * 3 / 16, bytes_ / 4}));
  EXPECT_EQ(BytesOf("tp:sum", "tp:1"),
            (StepBytes{bytes_ * 3 / 4, bytes_ * 3 / 4, bytes_}));
  EXPECT_EQ(BytesOf("tp:sum", "replicated"),
            (StepBytes{bytes_ * 3 / 2, bytes_ * 3 / 2, bytes_}));
  EXPECT_EQ(BytesOf("replicated", "tp:0"), StepBytes{});
}

// A rank does not gather columns that another axis takes away.
TEST_F(PlanOfAMatrixTest, OnlyTheColumnsThatARankKeepsAreSent) {
  EXPECT_EQ(Plan("tp:0", "dp:1").ToString(),
            "all_to_all over tp: tp:0 -> dp:1");
  EXPECT_EQ(BytesOf("tp:0", "dp:1").received, bytes_ * 3 / 8);
}

TEST_F(PlanOfAMatrixTest, ManyAxesStillHaveAPlan) {
  const topology::Mesh mesh = MeshOf("a2,b2,c2,d2,e2,f2");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RedistributionPlan plan,
      PlanRedistribution(
          LayoutOf(mesh, {64, 64, 64}, "a:0,b:1,c:2,d:0,e:sum,f:1"),
          LayoutOf(mesh, {64, 64, 64}, "f:0,e:1,a:2,b:sum,c:1"), DType::kF32));
  EXPECT_FALSE(plan.steps.empty());
  EXPECT_EQ(plan.steps.back().to, plan.to);
}

TEST_F(PlanOfAMatrixTest, RejectsInvalidQuestions) {
  const auto expect = [&](DType dtype, const ShardedLayout& from,
                          const ShardedLayout& to, auto says) {
    EXPECT_THAT(PlanRedistribution(from, to, dtype),
                StatusIs(absl::StatusCode::kInvalidArgument, says));
  };
  const ShardedLayout whole = LayoutOf(mesh_, {8, 8}, "replicated");
  expect(DType::kF8E4M3, LayoutOf(mesh_, {8, 8}, "tp:sum"), whole,
         AllOf(HasSubstr("partial sums along axis tp of fp8_e4m3"),
               HasSubstr("convert")));
  expect(DType::kF32, LayoutOf(mesh_, {8, 4}, "tp:0"), whole,
         HasSubstr("layouts of one shape"));
  expect(DType::kF32, LayoutOf(MeshOf("tp2"), {8, 8}, "tp:0"), whole,
         HasSubstr("on mesh tp2 to"));
  expect(DType::kF32, LayoutOf(MeshOf("dp2,tp4"), {8, 8}, "tp:0"), whole,
         HasSubstr("on mesh dp2,tp4 to"));
  EXPECT_THAT(Plan("tp:0", "tp:1").BytesOf(topology::Rank(8)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("8")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
