// QK-clip: the largest scores and the scaled weights of a step equal those of
// an independent model in float64, and every mesh has the losses of one rank.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/text/samples.h"
#include "tools/train/parity/testing/one_rank.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/reference_llama.h"
#include "tools/train/parity/testing/train_case.h"
#include "tools/train/step/qk_clip.h"
#include "tools/train/step/train_rank.h"
#include "tools/train/testing/small_text.h"

namespace tessera::train {
namespace {

using model_files::ModelConfig;
using zero3::LayoutKind;

// Small enough that some heads are clipped in every step.
constexpr double kThreshold = 0.02;

// The weights before and after a step, and its record.
struct TrainedStep {
  ReferenceWeights before, after;
  StepRecord record;
};

absl::StatusOr<ReferenceWeights> WeightsOf(TrainRank& rank) {
  ReferenceWeights weights = ReferenceZeros(rank.options().model);
  for (auto* const parameter : rank.model().parameters()) {
    TESSERA_RETURN_IF_ERROR(
        ReadReference(parameter->name(), parameter->value(), weights));
  }
  return weights;
}

text::Samples SamplesFor(const RunOptions& options) {
  return *text::Samples::Create(testing::SmallText(),
                                {.sequence = options.length, .seed = 5});
}

absl::StatusOr<TrainedStep> StepOnOneRank(const RunOptions& options) {
  const text::Samples samples = SamplesFor(options);
  TrainedStep result;
  const auto run = [&](collectives::Communicator& world) -> absl::Status {
    tensor_parallel::CpuOps ops({.threads = 1});
    TESSERA_ASSIGN_OR_RETURN(auto rank,
                             TrainRank::Create(world, options, samples, ops));
    TESSERA_ASSIGN_OR_RETURN(result.before, WeightsOf(*rank));
    TESSERA_ASSIGN_OR_RETURN(result.record, rank->Step());
    TESSERA_RETURN_IF_ERROR(rank->model().AwaitGathers());
    TESSERA_ASSIGN_OR_RETURN(result.after, WeightsOf(*rank));
    return absl::OkStatus();
  };
  for (const absl::Status& status : collectives::RunRanks(1, run)) {
    TESSERA_RETURN_IF_ERROR(status);
  }
  return result;
}

// The largest scores of the first step by layer and head.
std::vector<double> ScoresOf(const RunOptions& options,
                             const ReferenceWeights& weights) {
  const text::Samples samples = SamplesFor(options);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < options.batch; ++i) {
    std::vector<text::TokenId> sample(static_cast<size_t>(options.length + 1));
    EXPECT_THAT(samples.ReadTraining(i, sample), IsOk());
    tokens.insert(tokens.end(), sample.begin(), sample.end());
  }
  return RunReference(options.model, weights,
                      {.tokens = tokens,
                       .sequences = static_cast<size_t>(options.batch),
                       .length = static_cast<size_t>(options.length)})
      .max_scores;
}

// Multiplies rows [begin, end) of a matrix of that number of rows.
void ScaleRows(int64_t rows, int64_t begin, int64_t end, double factor,
               std::vector<double>& matrix) {
  const int64_t width = static_cast<int64_t>(matrix.size()) / rows;
  for (int64_t i = begin * width; i < end * width; ++i) {
    matrix[static_cast<size_t>(i)] *= factor;
  }
}

// Kimi K2, section 2.1, algorithm 1.
void ClipHead(const ModelConfig& model, int64_t head, double factor,
              ReferenceLayer& layer) {
  const double root = std::sqrt(factor);
  const int64_t d = model.head_size, rows = model.heads * d, at = head * d;
  if (model.IsLatent()) {
    const int64_t nope = model.latent.nope, kv = nope + model.latent.value;
    ScaleRows(rows, at, at + nope, root, layer.query);
    ScaleRows(rows, at + nope, at + d, factor, layer.query);
    ScaleRows(model.heads * kv, head * kv, head * kv + nope, root, layer.kv_up);
    return;
  }
  const bool shares_keys = model.kv_heads < model.heads;
  for (auto* const query : {&layer.query, &layer.query_bias}) {
    if (query->empty()) continue;
    ScaleRows(rows, at, at + d, shares_keys ? factor : root, *query);
  }
  if (shares_keys) return;
  for (auto* const key : {&layer.key, &layer.key_bias}) {
    if (!key->empty()) ScaleRows(rows, at, at + d, root, *key);
  }
}

struct ReferenceCase {
  std::string architecture;
  int64_t heads, kv_heads;
};

class QkClipReferenceTest : public ::testing::TestWithParam<ReferenceCase> {
 protected:
  RunOptions Options() const {
    ParityCase run = {.architecture = GetParam().architecture,
                      .optimizer = "muon",
                      .kv_heads = GetParam().kv_heads,
                      .layers = 2,
                      .dtype = DType::kF64,
                      .steps = 1};
    RunOptions options = RunOptionsOf(run);
    options.learning_rate.warmup_steps = 0;
    options.model.initializer_range = 0.5;
    if (!options.model.IsLatent()) options.model.heads = GetParam().heads;
    return options;
  }
};

TEST_P(QkClipReferenceTest, WeightsAfterAStepAreTheClippedOnes) {
  RunOptions options = Options();
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainedStep plain, StepOnOneRank(options));
  EXPECT_FALSE(plain.record.max_attention_score.has_value());
  const std::vector<double> scores = ScoresOf(options, plain.before);
  std::vector<double> sorted = scores;
  std::sort(sorted.begin(), sorted.end());
  // Half of the heads are clipped.
  options.qk_clip = sorted[(sorted.size() - 1) / 2];
  ASSERT_GT(options.qk_clip, 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(TrainedStep clipped, StepOnOneRank(options));
  ASSERT_TRUE(clipped.record.max_attention_score.has_value());
  EXPECT_NEAR(*clipped.record.max_attention_score / sorted.back(), 1, 1e-12);
  EXPECT_EQ(clipped.record.loss, plain.record.loss);

  ReferenceWeights expected = plain.after;
  int64_t count = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] <= options.qk_clip * (1 + 1e-12)) continue;
    ++count;
    const auto heads = static_cast<size_t>(options.model.heads);
    ClipHead(options.model, static_cast<int64_t>(i % heads),
             options.qk_clip / scores[i], expected.layers[i / heads]);
  }
  EXPECT_EQ(count, static_cast<int64_t>(scores.size()) / 2);
  const auto wanted = TensorsOf(expected), found = TensorsOf(clipped.after),
             unclipped = TensorsOf(const_cast<ReferenceWeights&>(plain.after));
  int64_t changed = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_LT(RelativeDifference(*found[i].values, *wanted[i].values), 1e-12)
        << wanted[i].name;
    if (*found[i].values != *unclipped[i].values) ++changed;
  }
  EXPECT_GE(changed, 2);
}

// The factors move the scores of the clipped heads of the first layer to the
// threshold, and no others.
TEST_P(QkClipReferenceTest, FactorsScaleTheScoresOfAHead) {
  RunOptions options = Options();
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainedStep plain, StepOnOneRank(options));
  const std::vector<double> scores = ScoresOf(options, plain.before);
  const int64_t head = options.model.heads - 1;
  constexpr double kFactor = 0.3;
  ReferenceWeights scaled = plain.before;
  ReferenceLayer& layer = scaled.layers[0];
  const ModelConfig& model = options.model;
  for (const HeadScale& scale : HeadScalesOf(model, head, kFactor)) {
    const int64_t begin = scale.rows.begin, end = scale.rows.end;
    if (scale.projection == "kv_up") {
      ScaleRows(model.heads * (model.latent.nope + model.latent.value), begin,
                end, scale.factor, layer.kv_up);
    } else if (begin < model.QueryRows()) {
      ScaleRows(model.QueryRows(), begin, end, scale.factor, layer.query);
      if (!layer.query_bias.empty()) {
        ScaleRows(model.QueryRows(), begin, end, scale.factor,
                  layer.query_bias);
      }
    } else {
      const int64_t first = begin - model.QueryRows();
      const int64_t last = end - model.QueryRows();
      ScaleRows(model.KvRows(), first, last, scale.factor, layer.key);
      if (!layer.key_bias.empty()) {
        ScaleRows(model.KvRows(), first, last, scale.factor, layer.key_bias);
      }
    }
  }
  const std::vector<double> after = ScoresOf(options, scaled);
  for (int64_t i = 0; i < model.heads; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_NEAR(after[at] / scores[at], i == head ? kFactor : 1, 1e-12) << i;
  }
}

// Odd numbers of heads, biases, grouped queries, windows, latent attention with
// and without a latent vector of queries.
INSTANTIATE_TEST_SUITE_P(Architectures, QkClipReferenceTest,
                         ::testing::Values(ReferenceCase{"llama", 3, 3},
                                           ReferenceCase{"llama", 6, 2},
                                           ReferenceCase{"llama", 5, 1},
                                           ReferenceCase{"llama3.1", 5, 5},
                                           ReferenceCase{"mistral", 6, 2},
                                           ReferenceCase{"gpt_oss", 6, 2},
                                           ReferenceCase{"deepseek2", 6, 6},
                                           ReferenceCase{"deepseek3", 6, 6}),
                         [](const auto& info) {
                           std::string name =
                               info.param.architecture + "_" +
                               std::to_string(info.param.heads) + "_" +
                               std::to_string(info.param.kv_heads);
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

ParityCase ClipCase(const std::string& optimizer = "muon") {
  return {.optimizer = optimizer,
          .qk_clip = kThreshold,
          .dtype = DType::kF64,
          .steps = 6};
}

std::vector<StepRecord> TrainPlain(const ParityCase& run) {
  auto records = TrainCase(PlainCase(run));
  EXPECT_THAT(records.status(), IsOk());
  return records.ok() ? *std::move(records) : std::vector<StepRecord>();
}

void ExpectRecords(const ParityCase& run,
                   const std::vector<StepRecord>& expected,
                   double tolerance = 1e-10) {
  SCOPED_TRACE(::testing::Message() << run);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
  EXPECT_LT(DifferenceOf(actual, expected).loss, tolerance);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_GT(*expected[i].max_attention_score, run.qk_clip);
    EXPECT_NEAR(
        *actual[i].max_attention_score / *expected[i].max_attention_score, 1,
        10 * tolerance);
  }
}

TEST(QkClipParityTest, MeshesMatchLossesOfOneRank) {
  for (const int64_t kv_heads : {1, 2, 6}) {
    ParityCase run = ClipCase();
    run.kv_heads = kv_heads;
    const std::vector<StepRecord> expected = TrainPlain(run);
    std::vector<MeshSizes> meshes = {{.dp = 8},
                                     {.pp = 2, .tp = 2},
                                     {.cp = 4},
                                     {.dp = 2, .tp = 2},
                                     {.dp = 2, .cp = 2, .tp = 2},
                                     {.dp = 4, .tp = 2, .dp_replicate = 2}};
    // With more ranks than heads some have none.
    if (kv_heads == 1) meshes.push_back({.tp = 8});
    for (const MeshSizes& mesh : meshes) {
      run.mesh = mesh;
      run.stage = (run.stage + 1) % 4;
      run.sequence_parallel = !run.sequence_parallel;
      ExpectRecords(run, expected);
    }
  }
}

TEST(QkClipParityTest, EveryStageAndLayoutMatchesLossesOfOneRank) {
  ParityCase run = ClipCase();
  const std::vector<StepRecord> expected = TrainPlain(run);
  run.mesh = {.dp = 4, .tp = 2};
  for (run.stage = 0; run.stage <= 3; ++run.stage) {
    for (const LayoutKind layout :
         {LayoutKind::kChunks, LayoutKind::kRoundRobin,
          LayoutKind::kBalanced}) {
      run.layout = layout;
      run.persistence_threshold = run.stage == 3 ? 500 : 0;
      ExpectRecords(run, expected);
    }
  }
}

TEST(QkClipParityTest, ArchitecturesMatchLossesOfOneRank) {
  for (const std::string architecture : {"llama3.1", "mistral", "mixtral",
                                         "gpt_oss", "deepseek2", "deepseek3"}) {
    ParityCase run = ClipCase();
    run.architecture = architecture;
    run.documents = architecture == "llama3.1";
    const std::vector<StepRecord> expected = TrainPlain(run);
    std::vector<MeshSizes> meshes = {{.dp = 2, .pp = 2, .tp = 2},
                                     {.cp = 2, .tp = 2}};
    if (IsMixture(architecture)) {
      meshes.push_back({.dp = 2, .cp = 2, .tp = 2, .ep = 4});
    }
    for (const MeshSizes& mesh : meshes) {
      run.mesh = mesh;
      run.stage = run.stage == 3 ? 1 : 3;
      run.context_attention = run.stage == 3
                                  ? tensor_parallel::ContextAlgorithm::kUlysses
                                  : tensor_parallel::ContextAlgorithm::kRing;
      ExpectRecords(run, expected);
    }
  }
}

TEST(QkClipParityTest, OptimizersTiersAndRecomputationMatchLossesOfOneRank) {
  for (const std::string optimizer :
       {"adafactor", "adamw", "lion", "muon", "sgd"}) {
    ParityCase run = ClipCase(optimizer);
    run.clip = true;
    const std::vector<StepRecord> expected = TrainPlain(run);
    run.mesh = {.dp = 2, .tp = 2};
    run.stage = 3;
    run.recompute = tensor_parallel::Recompute::kFull;
    for (const std::string tier : {"none", "host", "file"}) {
      run.tier = tier;
      run.offload = tier == "none" ? "none" : "all";
      ExpectRecords(run, expected, 1e-9);
    }
  }
}

TEST(QkClipParityTest, TwoWayPipelinesMatchLossesOfOneRank) {
  ParityCase run = ClipCase();
  run.layers = 4;
  run.tied = true;
  const std::vector<StepRecord> expected = TrainPlain(run);
  run.mesh = {.dp = 2, .pp = 2, .tp = 2};
  run.schedule = "dualpipe";
  run.stage = 2;
  ExpectRecords(run, expected);
  run.schedule = "dualpipev";
  run.chunks = 2;
  ExpectRecords(run, expected);
}

TEST(QkClipParityTest, OtherTypesMatchLossesOfOneRank) {
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::kF32, 1e-5}, std::pair{DType::kBF16, 2e-2},
        std::pair{DType::kF16, 5e-3}}) {
    ParityCase run = ClipCase();
    run.dtype = dtype;
    const std::vector<StepRecord> expected = TrainPlain(run);
    run.mesh = {.dp = 2, .cp = 2, .tp = 2};
    run.stage = 3;
    ExpectRecords(run, expected, tolerance);
  }
}

// A missing wait would be an error.
TEST(QkClipParityTest, DevicesMatchCpuBitForBit) {
  for (const std::string optimizer : {"adamw", "muon"}) {
    for (const std::string offload : {"none", "optimizer"}) {
      ParityCase run = ClipCase(optimizer);
      run.dtype = DType::kBF16;
      run.mesh = {.dp = 2, .tp = 2};
      run.stage = 3;
      run.steps = 4;
      run.offload = offload;
      run.tier = offload == "none" ? "none" : "host";
      if (optimizer == "adamw" && offload != "none") {
        run.speculative_bytes = 1 << 20;
      }
      SCOPED_TRACE(::testing::Message() << run);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
      for (run.device_seed = 1; run.device_seed <= 2; ++run.device_seed) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
        EXPECT_EQ(DifferenceOf(actual, expected).loss, 0);
        EXPECT_EQ(actual.back().max_attention_score,
                  expected.back().max_attention_score);
      }
    }
  }
}

TEST(QkClipParityTest, GraphsMatchCpuBitForBit) {
  ParityCase run = ClipCase("adamw");
  run.stage = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
  run.device_seed = 1;
  run.graphs = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
  EXPECT_EQ(DifferenceOf(actual, expected).loss, 0);
  EXPECT_EQ(actual.back().max_attention_score,
            expected.back().max_attention_score);
}

TEST(QkClipParityTest, ClippingChangesLossesAndLimitsScores) {
  ParityCase run = ClipCase();
  run.qk_clip = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto free, TrainCase(run));
  run.qk_clip = 1e9;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto high, TrainCase(run));
  EXPECT_EQ(DifferenceOf(high, free).loss, 0);
  run.qk_clip = kThreshold;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto low, TrainCase(run));
  EXPECT_GT(DifferenceOf(low, free).loss, 1e-6);
  EXPECT_LT(*low.back().max_attention_score,
            *high.back().max_attention_score / 2);
}

}  // namespace
}  // namespace tessera::train
