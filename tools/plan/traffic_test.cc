// Compares the formula with a dry run of a whole rank.

#include "tools/plan/traffic.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/schedule.h"
#include "tools/train/predict/predict_rank.h"

namespace tessera::plan {

namespace {

using collectives::OperationTotals;
using collectives::OpKind;
using tensor_parallel::Recompute;
using train::MeshSizes;
using train::RankTraffic;
using train::TrafficAxis;

train::RunOptions SmallRun() {
  train::RunOptions options;
  options.model = {.vocabulary = 264,
                   .hidden = 24,
                   .intermediate = 40,
                   .layers = 4,
                   .heads = 4,
                   .kv_heads = 4,
                   .head_size = 6};
  options.batch = 8;
  options.length = 21;
  return options;
}

OperationTotals Of(const RankTraffic& traffic, TrafficAxis axis, OpKind kind) {
  const auto found = traffic.all().find({axis, kind});
  return found == traffic.all().end() ? OperationTotals() : found->second;
}

void ExpectAsCounted(const train::RunOptions& options) {
  SCOPED_TRACE(absl::StrCat("pp", options.mesh.pp, ",cp", options.mesh.cp,
                            ",tp", options.mesh.tp, " ", options.schedule,
                            " sequence ", options.sequence_parallel,
                            " recompute ", options.recompute));
  TESSERA_ASSERT_OK_AND_ASSIGN(const train::PipelinePlan plan,
                               train::PipelinePlan::Create(options));
  for (int64_t pp = 0; pp < options.mesh.pp; ++pp) {
    const train::RankPlace place = {
        .pp = pp, .cp = options.mesh.cp - 1, .tp = options.mesh.tp - 1};
    TESSERA_ASSERT_OK_AND_ASSIGN(const train::RankPrediction rank,
                                 train::PredictRank(plan, place, {}));
    RankTraffic passes(options.mesh);
    for (const train::StageSpan& span : plan.StagesOf(pp)) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const train::StageShapes shapes,
          train::StageShapes::Of(options, place, span));
      for (const pipeline::Action& action :
           plan.schedule().ranks[static_cast<size_t>(pp)]) {
        if (action.stage != span.stage || !pipeline::Computes(action.kind)) {
          continue;
        }
        AddPasses(shapes, action.kind, 1, passes);
      }
    }
    for (const TrafficAxis axis :
         {TrafficAxis::kTp, TrafficAxis::kCp, TrafficAxis::kEp}) {
      for (const OpKind kind :
           {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter,
            OpKind::kAllToAll, OpKind::kSend, OpKind::kReceive}) {
        // Gradients of norms and routers are summed once per step.
        if (kind == OpKind::kAllReduce &&
            (options.sequence_parallel ||
             options.model.IsMixture(options.model.layers - 1))) {
          continue;
        }
        const OperationTotals counted = Of(rank.traffic, axis, kind);
        const OperationTotals by_formula = Of(passes, axis, kind);
        EXPECT_EQ(by_formula.bytes, counted.bytes) << kind;
        EXPECT_EQ(by_formula.count, counted.count) << kind;
        EXPECT_EQ(by_formula.largest_bytes, counted.largest_bytes) << kind;
      }
    }
  }
}

TEST(PassTrafficTest, MatchesDryRun) {
  for (const MeshSizes mesh :
       {MeshSizes{.tp = 4}, MeshSizes{.cp = 3}, MeshSizes{.cp = 2, .tp = 2},
        MeshSizes{.pp = 2, .cp = 2, .tp = 2}}) {
    for (const std::string schedule : {"1f1b", "zb_h1"}) {
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        train::RunOptions options = SmallRun();
        options.mesh = mesh;
        options.schedule = schedule;
        options.recompute = recompute;
        ExpectAsCounted(options);
        options.sequence_parallel = mesh.tp > 1;
        if (options.sequence_parallel) ExpectAsCounted(options);
      }
    }
  }
}

TEST(PassTrafficTest, MatchesDryRunForLatentAttention) {
  for (const int64_t query_rank : {0, 7}) {
    for (const std::string schedule : {"1f1b", "zb_h1"}) {
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        train::RunOptions options = SmallRun();
        options.model.architecture = model_files::Architecture::kDeepSeekV2;
        options.model.latent = {.query_rank = query_rank,
                                .kv_rank = 5,
                                .nope = 2,
                                .rope = 4,
                                .value = 5};
        // No layer has experts.
        options.model.mixture = {.experts = 2,
                                 .per_token = 1,
                                 .intermediate = 3,
                                 .dense_layers = 4,
                                 .normalise = false};
        options.mesh = {.cp = 2, .tp = 2};
        options.schedule = schedule;
        options.recompute = recompute;
        ExpectAsCounted(options);
        options.sequence_parallel = true;
        ExpectAsCounted(options);
      }
    }
  }
}

TEST(PassTrafficTest, MatchesDryRunForMixtures) {
  train::RunOptions options = SmallRun();
  options.length = 24;  // Experts get equal numbers of rows.
  for (const bool is_shared : {false, true}) {
    options.model.mixture = {.experts = 8,
                             .per_token = 2,
                             .intermediate = 12,
                             .shared_intermediate = is_shared ? 12 : 0,
                             .dense_layers = is_shared ? 1 : 0};
    options.model.architecture = is_shared
                                     ? model_files::Architecture::kDots1
                                     : model_files::Architecture::kMixtral;
    for (const MeshSizes mesh :
         {MeshSizes{.dp = 4, .ep = 4}, MeshSizes{.dp = 2, .tp = 2, .ep = 2},
          MeshSizes{.pp = 2, .cp = 2, .tp = 2, .ep = 2},
          MeshSizes{.dp = 2, .tp = 2}}) {
      for (const std::string schedule : {"1f1b", "zb_h1"}) {
        for (const Recompute recompute :
             {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          options.mesh = mesh;
          options.schedule = schedule;
          options.recompute = recompute;
          options.sequence_parallel = mesh.tp > 1;
          ExpectAsCounted(options);
        }
      }
    }
  }
}

}  // namespace

}  // namespace tessera::plan
