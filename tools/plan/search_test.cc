#include "tools/plan/search.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/plan/pricer.h"
#include "tools/plan/traffic.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/settings/check_settings.h"
#include "topology/cluster/cluster_file.h"

namespace tessera::plan {
namespace {

using testing::HasSubstr;
using train::ReduceChoice;

PlanRequest SmallRequest(const std::string& cluster, int64_t ranks) {
  PlanRequest request = {.model_name = "small",
                         .model = {.vocabulary = 264,
                                   .hidden = 64,
                                   .intermediate = 160,
                                   .layers = 5,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_size = 16},
                         .cluster = *topology::ParseCluster(cluster)};
  request.ranks = ranks;
  request.memory = int64_t{1} << 40;
  request.batch = 12;
  request.length = 24;
  request.dtype = DType::kF32;
  request.flops = 1e9;
  request.efficiency = 0.5;
  return request;
}

PlanRequest SmallMixture(const std::string& cluster, int64_t ranks) {
  PlanRequest request = SmallRequest(cluster, ranks);
  request.model.architecture = model_files::Architecture::kDots1;
  request.model.layers = 3;
  request.model.mixture = {.experts = 4,
                           .per_token = 2,
                           .intermediate = 64,
                           .shared_intermediate = 64,
                           .dense_layers = 1};
  request.batch = 4;
  return request;
}

// Evaluates every candidate, without shortcuts.
std::vector<Plan> AllPlans(const PlanRequest& request) {
  std::vector<Plan> plans;
  Refusals refused;
  Pricer pricer(request);
  for (const Candidate& candidate : EnumerateCandidates(request, refused)) {
    const auto step = pricer.Time(candidate);
    const auto memory = pricer.Memory(candidate);
    if (!step.ok() || !memory.ok()) continue;
    plans.push_back({candidate, *step, *memory});
  }
  return plans;
}

TEST(FindPlansTest, FirstPlanIsFastestThatFits) {
  for (const auto& [cluster, ranks] :
       std::vector<std::pair<std::string, int>>{{"hosts=2,cpus=4", 8},
                                                {"hosts=3,gpus=2", 6},
                                                {"hosts=1,gpus=4", 4}}) {
    PlanRequest request = SmallRequest(cluster, ranks);
    const std::vector<Plan> all = AllPlans(request);
    ASSERT_GT(all.size(), 50u);
    for (const int64_t memory : {int64_t{1} << 30, int64_t{1'400'000},
                                 int64_t{900'000}, int64_t{600'000}}) {
      request.memory = memory;
      std::optional<double> least;
      for (const Plan& plan : all) {
        if (plan.memory > memory) continue;
        if (!least || plan.step.total() < *least) least = plan.step.total();
      }
      const auto report = FindPlans(request);
      if (!least) {
        EXPECT_THAT(report, StatusIs(absl::StatusCode::kResourceExhausted));
        continue;
      }
      TESSERA_ASSERT_OK(report.status());
      EXPECT_EQ(report->plans.front().step.total(), *least)
          << cluster << " " << memory;
      EXPECT_LE(report->plans.front().memory, memory);
    }
  }
}

TEST(FindPlansTest, TheBestOfEachMeshComeInTheirOrder) {
  PlanRequest request = SmallRequest("hosts=2,cpus=4", 8);
  request.top = 4;
  TESSERA_ASSERT_OK_AND_ASSIGN(const PlanReport report, FindPlans(request));
  std::map<std::string, double> best;
  for (const Plan& plan : AllPlans(request)) {
    const auto found =
        best.try_emplace(MeshNameOf(plan.candidate), plan.step.total()).first;
    found->second = std::min(found->second, plan.step.total());
  }
  std::vector<double> seconds;
  for (const auto& [mesh, least] : best) seconds.push_back(least);
  std::sort(seconds.begin(), seconds.end());
  ASSERT_EQ(report.plans.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(report.plans[i].step.total(), seconds[i]) << i;
  }
}

void ExpectBounds(const PlanRequest& request) {
  Refusals refused;
  Pricer pricer(request);
  for (const Candidate& candidate : EnumerateCandidates(request, refused)) {
    const auto step = pricer.Time(candidate);
    if (!step.ok()) continue;
    const std::string name = CommandOf(request, candidate);
    EXPECT_LE(*pricer.LeastSeconds(candidate), step->total()) << name;
    EXPECT_LE(pricer.LeastTime(candidate)->total(), step->total()) << name;
    EXPECT_LE(*pricer.LeastMemory(candidate), *pricer.Memory(candidate))
        << name;
  }
}

TEST(FindPlansTest, BoundsAreBounds) {
  ExpectBounds(SmallRequest("hosts=2,cpus=4", 8));
  ExpectBounds(SmallMixture("hosts=2,cpus=2", 4));
}

TEST(FindPlansTest, DividesExpertsIfFaster) {
  PlanRequest request = SmallMixture("hosts=1,gpus=4", 4);
  std::map<int64_t, int64_t> candidates;
  Refusals refused;
  for (const Candidate& one : EnumerateCandidates(request, refused)) {
    EXPECT_EQ(one.mesh.dp * one.mesh.cp % one.mesh.ep, 0);
    ++candidates[one.mesh.ep];
  }
  EXPECT_THAT(candidates,
              ::testing::ElementsAre(::testing::Pair(1, ::testing::Gt(0)),
                                     ::testing::Pair(2, ::testing::Gt(0)),
                                     ::testing::Pair(4, ::testing::Gt(0))));
  // Most weights belong to experts, which expert parallelism neither sends nor
  // replicates.
  request.model.mixture.intermediate = 4096;
  request.model.mixture.shared_intermediate = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const PlanReport report, FindPlans(request));
  EXPECT_GT(report.plans.front().candidate.mesh.ep, 1);
  EXPECT_THAT(CommandOf(request, report.plans.front().candidate),
              HasSubstr(",ep"));
}

// The data seconds of the busiest pipeline rank, from a dry run of all
// micro-batches of a step.
double CountedDataSeconds(const PlanRequest& request,
                          const Candidate& candidate) {
  const auto plan =
      train::PipelinePlan::Create(RunOptionsOf(request, candidate));
  EXPECT_THAT(plan, IsOk());
  AxisLinks links(request.cluster, request.ranks);
  double most = 0;
  for (int64_t pp = 0; pp < candidate.mesh.pp; ++pp) {
    const auto rank = train::PredictRank(*plan, {.pp = pp}, {});
    EXPECT_THAT(rank, IsOk());
    most = std::max(most,
                    links.SecondsAlong(candidate.mesh, train::TrafficAxis::kDp,
                                       rank->traffic));
  }
  return most;
}

// Eight ranks with more micro-batches than fill their pipelines.
std::vector<Candidate> ManyMicroBatches() {
  std::vector<Candidate> candidates;
  for (const auto& [zero, reduce] :
       std::vector<std::pair<int64_t, ReduceChoice>>{
           {1, ReduceChoice::kAuto},
           {2, ReduceChoice::kLastMicroBatch},
           {2, ReduceChoice::kEachMicroBatch},
           {3, ReduceChoice::kLastMicroBatch},
           {3, ReduceChoice::kEachMicroBatch}}) {
    candidates.push_back({.mesh = {.dp = 8}, .zero = zero, .reduce = reduce});
    for (const auto& [schedule, chunks] :
         std::vector<std::pair<std::string, int64_t>>{{"1f1b", 1},
                                                      {"interleaved_1f1b", 2},
                                                      {"zb_h1", 1},
                                                      {"zb_v", 2},
                                                      {"v_half", 2},
                                                      {"v_min", 2}}) {
      candidates.push_back({.mesh = {.dp = 4, .pp = 2},
                            .schedule = schedule,
                            .chunks = chunks,
                            .zero = zero,
                            .reduce = reduce});
    }
    candidates.push_back({.mesh = {.dp = 2, .pp = 4},
                          .schedule = "zb_h1",
                          .zero = zero,
                          .reduce = reduce});
    // Recomputation does not change how often weights are gathered.
    candidates.push_back({.mesh = {.dp = 4, .pp = 2},
                          .schedule = "1f1b",
                          .zero = zero,
                          .reduce = reduce,
                          .recompute = tensor_parallel::Recompute::kFull,
                          .micro_batch = 2});
    candidates.push_back(
        {.mesh = {.dp = 4, .cp = 2}, .zero = zero, .reduce = reduce});
  }
  return candidates;
}

TEST(PricerTest, DataTrafficCountsAllMicroBatches) {
  PlanRequest request = SmallRequest("hosts=2,cpus=4", 8);
  request.flops = 1e30;  // No computation to overlap with.
  request.batch = 96;
  Pricer pricer(request);
  for (const Candidate& candidate : ManyMicroBatches()) {
    // Data ranks' messages may overlap with those of context ranks.
    if (candidate.mesh.cp > 1) continue;
    ASSERT_GT(candidate.micro_batches(request.batch), 2 * candidate.mesh.pp);
    const double counted = CountedDataSeconds(request, candidate);
    TESSERA_ASSERT_OK_AND_ASSIGN(const StepSeconds step,
                                 pricer.Time(candidate));
    EXPECT_NEAR(step.data, counted, 1e-6 * counted)
        << CommandOf(request, candidate);
  }
}

TEST(PricerTest, LaterMicroBatchTrafficOverlapsComputation) {
  PlanRequest request = SmallRequest("hosts=2,cpus=4", 8);
  request.flops = 1e3;
  request.batch = 96;
  Pricer pricer(request);
  for (const Candidate& candidate : ManyMicroBatches()) {
    if (candidate.mesh.pp > 1) continue;
    PlanRequest single = request;
    single.batch = candidate.mesh.dp * candidate.micro_batch;
    const double counted = CountedDataSeconds(single, candidate);
    TESSERA_ASSERT_OK_AND_ASSIGN(const StepSeconds step,
                                 pricer.Time(candidate));
    EXPECT_NEAR(step.data, counted, 1e-6 * counted)
        << CommandOf(request, candidate);
  }
}

TEST(FindPlansTest, MoreMemoryIsNeverSlower) {
  PlanRequest request = SmallRequest("hosts=2,cpus=4", 8);
  double last = 1e300;
  for (int64_t memory = 300'000; memory < 4'000'000; memory += 250'000) {
    request.memory = memory;
    const auto report = FindPlans(request);
    if (!report.ok()) {
      EXPECT_EQ(last, 1e300) << memory;
      continue;
    }
    EXPECT_LE(report->plans.front().step.total(), last) << memory;
    last = report->plans.front().step.total();
  }
  EXPECT_LT(last, 1e300);
}

TEST(FindPlansTest, TrainerAcceptsEveryPlan) {
  for (const int64_t ranks : {1, 2, 4, 6, 8}) {
    PlanRequest request = SmallRequest("hosts=2,cpus=4", ranks);
    request.top = 100;
    TESSERA_ASSERT_OK_AND_ASSIGN(const PlanReport report, FindPlans(request));
    for (const Plan& plan : report.plans) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const train::Settings settings,
          train::ParseSettings(SettingsOf(request, plan.candidate).dump()));
      EXPECT_THAT(train::CheckSettings(settings), IsOk())
          << CommandOf(request, plan.candidate);
      EXPECT_EQ(settings.parallel.mesh.ToString(), MeshNameOf(plan.candidate));
      EXPECT_EQ(settings.zero, plan.candidate.zero);
      EXPECT_EQ(settings.parallel.micro_batch, plan.candidate.micro_batch);
      EXPECT_EQ(settings.sequence_parallel, plan.candidate.sequence_parallel());
      EXPECT_EQ(plan.candidate.mesh.world_size(), ranks);
    }
  }
}

PlanRequest SevenBillion(const std::string& cluster) {
  PlanRequest request = {.model_name = "llama-7b",
                         .model = *model_files::PresetConfig("llama-7b"),
                         .cluster = *topology::ParseCluster(cluster)};
  request.ranks = request.cluster.num_devices();
  request.memory = int64_t{80'000'000'000};
  request.batch = 2048;
  request.length = 2048;
  request.dtype = DType::kBF16;
  request.flops = 989e12;
  request.efficiency = 0.5;
  return request;
}

// The published setup for 7e9 parameters on a host with eight 80 GB devices
// shards the state over data ranks and does little else (OLMo, arXiv
// 2402.00838, section 3.1).
TEST(FindPlansTest, SevenBillionParametersOnEightDevices) {
  const PlanRequest request = SevenBillion("hosts=1,gpus=8");
  TESSERA_ASSERT_OK_AND_ASSIGN(const PlanReport report, FindPlans(request));
  const Plan& best = report.plans.front();
  EXPECT_EQ(best.candidate.mesh.dp, 8);
  EXPECT_GT(best.candidate.zero, 0);
  EXPECT_EQ(best.candidate.recompute, tensor_parallel::Recompute::kNone);
  EXPECT_LE(best.memory, request.memory);
  // The devices are nearly always busy.
  const double least = request.model.TrainingFlopsPerToken(2048) * 2048 * 2048 /
                       (request.flops * request.efficiency * 8);
  EXPECT_LT(best.step.total(), 1.25 * least);
}

TEST(FindPlansTest, ThousandRanksNeedFewDryRuns) {
  PlanRequest request = SevenBillion("hosts=128,gpus=8");
  request.model = *model_files::PresetConfig("llama-70b");
  request.length = 4096;
  TESSERA_ASSERT_OK_AND_ASSIGN(const PlanReport report, FindPlans(request));
  EXPECT_GT(report.candidates, 50'000);
  EXPECT_LT(report.dry_runs, 3000);
  EXPECT_EQ(report.plans.size(), 5u);
  EXPECT_EQ(report.plans.front().candidate.mesh.world_size(), 1024);
  EXPECT_LE(report.plans.front().candidate.mesh.tp, 8);
}

TEST(FindPlansTest, RejectsInfeasibleRequests) {
  PlanRequest request = SmallRequest("hosts=2,cpus=4", 8);
  request.memory = 1000;
  EXPECT_THAT(FindPlans(request), StatusIs(absl::StatusCode::kResourceExhausted,
                                           HasSubstr("--mesh=")));
  // 7 divides neither heads, layers, length nor batch.
  request = SmallRequest("hosts=7,cpus=1", 7);
  request.length = 8;
  EXPECT_THAT(FindPlans(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("no mesh of 7 ranks")));
}

}  // namespace
}  // namespace tessera::plan
