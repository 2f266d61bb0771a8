#include "tensor_parallel/sharding/redistribution_plan.h"

#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/random_specs.h"

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

// Tries every sequence of steps that repeats no spec; returns the lowest cost.
class EverySequence {
 public:
  EverySequence(const topology::Mesh& mesh, const Dims& shape,
                const ShardSpec& target, const PlanOptions& options)
      : mesh_(mesh), shape_(shape), target_(target), options_(options) {}

  int64_t Best(const ShardSpec& from) {
    for (const ShardSpec* spec : {&from, &target_}) {
      for (const std::string& axis : spec->AxesInUse()) axes_.insert(axis);
    }
    Try(from, 0, 0);
    return best_;
  }

 private:
  // The cost of a step does not depend on the sequence, so it is cached.
  int64_t CostOfStep(const RedistributionStep& step) {
    const auto [at, is_new] = costs_.try_emplace(step.ToString(), 0);
    if (is_new) {
      at->second = *CostOf(mesh_, shape_, DType::kF32, step, options_);
    }
    return at->second;
  }

  void Try(const ShardSpec& spec, int64_t cost, int depth) {
    if (spec == target_) best_ = std::min(best_, cost);
    if (depth == 4 || spec == target_) return;
    for (const RedistributionStep& step :
         NextSteps(mesh_, spec, target_,
                   std::vector<std::string>(axes_.begin(), axes_.end()))) {
      Try(step.to, cost + CostOfStep(step), depth + 1);
    }
  }

  const topology::Mesh& mesh_;
  const Dims& shape_;
  const ShardSpec& target_;
  const PlanOptions& options_;
  std::set<std::string> axes_;
  std::map<std::string, int64_t> costs_;
  int64_t best_ = std::numeric_limits<int64_t>::max();
};

// Gives whole dimensions the rules of the target.
ShardSpec Alike(ShardSpec spec, const ShardSpec& target) {
  for (size_t dim = 0; dim < spec.dims.size(); ++dim) {
    if (spec.dims[dim].axes.empty()) {
      spec.dims[dim].rule = target.dims[dim].rule;
    }
  }
  return spec;
}

TEST(PlanRedistributionTest, NoSequenceOfUpToFourStepsIsCheaper) {
  for (const int64_t latency : {0, 20, 20'000}) {
    const PlanOptions options = {.latency_bytes = latency};
    const topology::Mesh mesh = MeshOf("tp2,dp3");
    RandomSpecs random(static_cast<uint64_t>(latency) + 1);
    for (int repeat = 0; repeat < 60; ++repeat) {
      Dims shape = random.Shape();
      if (shape.size() > 2) shape.pop_back();
      const ShardSpec from = random.Spec(mesh, shape);
      const ShardSpec to = random.Spec(mesh, shape);
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const RedistributionPlan plan,
          PlanRedistribution(mesh, shape, DType::kF32, from, to, options));
      EXPECT_TRUE(plan.cheapest);
      EXPECT_EQ(plan.cost,
                EverySequence(mesh, shape, to, options).Best(Alike(from, to)))
          << from << " to " << to << " of " << DimsToString(shape) << "\n"
          << plan.ToString();
    }
  }
}

// Without partial sums each rank must receive the bytes it lacks: a lower bound
// for every plan, which plans reach if shards are even.
TEST(PlanRedistributionTest, EvenShardsReceiveNoByteThatTheyDoNotLack) {
  const topology::Mesh mesh = MeshOf("tp2,dp2,cp2");
  RandomSpecs random(17);
  const Dims shape = {16, 8};
  int at_the_bound = 0;
  constexpr int kRepeats = 200;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    ShardSpec from = random.Spec(mesh, shape);
    ShardSpec to = random.Spec(mesh, shape);
    from.partial.clear();
    to.partial.clear();
    for (DimSharding& dim : from.dims) dim.rule = PartitionRule::CeilChunks();
    for (DimSharding& dim : to.dims) dim.rule = PartitionRule::CeilChunks();
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RedistributionPlan plan,
        PlanRedistribution(mesh, shape, DType::kF32, from, to,
                           {.latency_bytes = 1}));
    int64_t most_lacking = 0;
    int64_t most_received = 0;
    for (int64_t r = 0; r < 8; ++r) {
      const topology::Rank rank(r);
      const Shard old_shard = *ShardOf(mesh, from, shape, rank);
      const Shard new_shard = *ShardOf(mesh, to, shape, rank);
      const int64_t lacking =
          new_shard.element_count() -
          Intersection(old_shard, new_shard).element_count();
      const int64_t received = plan.BytesOf(mesh, rank)->received;
      EXPECT_GE(received, lacking * 4);
      most_lacking = std::max(most_lacking, lacking * 4);
      most_received = std::max(most_received, received);
    }
    if (most_received == most_lacking) ++at_the_bound;
  }
  EXPECT_GE(at_the_bound, kRepeats * 9 / 10);
}

TEST(PlanRedistributionTest, WhatIsSentIsReceived) {
  const topology::Mesh mesh = MeshOf("tp2,dp3,cp2");
  RandomSpecs random(23);
  for (int repeat = 0; repeat < 100; ++repeat) {
    const Dims shape = random.Shape();
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RedistributionPlan plan,
        PlanRedistribution(mesh, shape, DType::kBF16, random.Spec(mesh, shape),
                           random.Spec(mesh, shape)));
    int64_t balance = 0;
    for (int64_t r = 0; r < mesh.world_size(); ++r) {
      const StepBytes bytes = *plan.BytesOf(mesh, topology::Rank(r));
      balance += bytes.sent - bytes.received;
    }
    EXPECT_EQ(balance, 0) << plan.ToString();
  }
}

class PlanOfAMatrixTest : public ::testing::Test {
 protected:
  RedistributionPlan Plan(const ShardSpec& from, const ShardSpec& to) const {
    return *PlanRedistribution(mesh_, {{1024, 1024}}, DType::kF32, from, to);
  }
  StepBytes BytesOf(const RedistributionPlan& plan) const {
    return *plan.BytesOf(mesh_, topology::Rank(0));
  }

  const topology::Mesh mesh_ = MeshOf("tp4,dp2");
  const ShardSpec whole_ = ShardSpec::Replicated(2);
  const ShardSpec rows_ = {.dims = {{{"tp"}}, {}}};
  const ShardSpec columns_ = {.dims = {{}, {{"tp"}}}};
  const ShardSpec sums_ = {.dims = {{}, {}}, .partial = {"tp"}};
  const int64_t bytes_ = 4 << 20;
};

TEST_F(PlanOfAMatrixTest, TheCollectivesOfTheFieldAreFound) {
  const auto kinds = [&](const ShardSpec& from, const ShardSpec& to) {
    return KindsOf(Plan(from, to));
  };
  EXPECT_THAT(kinds(rows_, rows_), ElementsAre());
  EXPECT_THAT(kinds(whole_, rows_), ElementsAre(StepKind::kSlice));
  EXPECT_THAT(kinds(whole_, sums_), ElementsAre(StepKind::kZeroPad));
  EXPECT_THAT(kinds(rows_, sums_), ElementsAre(StepKind::kZeroPad));
  EXPECT_THAT(kinds(rows_, whole_), ElementsAre(StepKind::kAllGather));
  EXPECT_THAT(kinds(rows_, columns_), ElementsAre(StepKind::kAllToAll));
  EXPECT_THAT(kinds(sums_, columns_), ElementsAre(StepKind::kReduceScatter));
  EXPECT_THAT(kinds(sums_, whole_), ElementsAre(StepKind::kAllReduce));
}

TEST_F(PlanOfAMatrixTest, BytesAreThoseOfTheTable) {
  EXPECT_EQ(BytesOf(Plan(rows_, whole_)),
            (StepBytes{bytes_ * 3 / 4, bytes_ * 3 / 4, bytes_}));
  EXPECT_EQ(BytesOf(Plan(rows_, columns_)),
            (StepBytes{bytes_ * 3 / 16, bytes_ * 3 / 16, bytes_ / 4}));
  EXPECT_EQ(BytesOf(Plan(sums_, columns_)),
            (StepBytes{bytes_ * 3 / 4, bytes_ * 3 / 4, bytes_}));
  EXPECT_EQ(BytesOf(Plan(sums_, whole_)),
            (StepBytes{bytes_ * 3 / 2, bytes_ * 3 / 2, bytes_}));
  EXPECT_EQ(BytesOf(Plan(whole_, rows_)), StepBytes{});
}

// Elements that another axis removes need not be gathered.
TEST_F(PlanOfAMatrixTest, OnlyTheColumnsThatARankKeepsReachIt) {
  const RedistributionPlan plan = Plan(rows_, {.dims = {{}, {{"dp"}}}});
  EXPECT_EQ(plan.ToString(), "all_to_all over tp: [tp, -] -> [-, dp]");
  EXPECT_EQ(BytesOf(plan).received, bytes_ * 3 / 8);
}

TEST_F(PlanOfAMatrixTest, LatencyDecidesWhatIsSmall) {
  // Over both axes at once, or one after the other.
  const ShardSpec from = {.dims = {{}, {}}, .partial = {"tp", "dp"}};
  EXPECT_THAT(KindsOf(Plan(from, whole_)), ElementsAre(StepKind::kAllReduce));
}

TEST_F(PlanOfAMatrixTest, ASearchThatEndsEarlySaysSo) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RedistributionPlan plan,
      PlanRedistribution(mesh_, {{1024, 1024}}, DType::kF32, rows_,
                         {.dims = {{}, {{"dp"}}}}, {.most_specs = 1}));
  EXPECT_FALSE(plan.cheapest);
  EXPECT_FALSE(plan.steps.empty());
}

TEST_F(PlanOfAMatrixTest, QuestionsThatCannotBeAreRefused) {
  const auto refusal = [&](DType dtype, const ShardSpec& from,
                           const ShardSpec& to, auto says) {
    EXPECT_THAT(PlanRedistribution(mesh_, {{8, 8}}, dtype, from, to),
                StatusIs(absl::StatusCode::kInvalidArgument, says));
  };
  refusal(DType::kF8E4M3, sums_, whole_,
          AllOf(HasSubstr("partial sums along \"tp\" of fp8_e4m3"),
                HasSubstr("convert")));
  refusal(static_cast<DType>(99), rows_, whole_, HasSubstr("dtype number 99"));
  refusal(DType::kF32, ShardSpec::Replicated(1), whole_,
          HasSubstr("has 1 dimensions"));
  refusal(DType::kF32, whole_, {.dims = {{{"xx"}}, {}}}, HasSubstr("xx"));
  EXPECT_THAT(Plan(rows_, columns_).BytesOf(mesh_, topology::Rank(8)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("8")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
