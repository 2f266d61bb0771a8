// Compares predictions with the runtime's own accounting.
#include "tools/train/predict/predict_rank.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"
#include "tools/train/predict/message_table.h"
#include "tools/train/predict/rank_traffic.h"
#include "tools/train/testing/measured_run.h"
#include "tools/train/testing/mesh_run.h"
#include "topology/mesh.h"

namespace tessera::train {
namespace {

using collectives::OpKind;
using offload::Purpose;
using tensor_parallel::Recompute;
using topology::MeshAxis;

// A dry run that touches its memory ends the test.
constexpr MemoryAccess kTrapped = MemoryAccess::kTrapped;

RunOptions SmallRun() {
  RunOptions options;
  options.model = {.vocabulary = 264,
                   .hidden = 24,
                   .intermediate = 40,
                   .layers = 4,
                   .heads = 6,
                   .kv_heads = 2,
                   .head_size = 4};
  options.batch = 8;
  options.length = 21;
  options.steps = 4;
  options.state.stage = 0;
  options.state.clip_norm = 1;
  return options;
}

// The ranks of the world along an axis through `place`.
CollectiveCount::Group GroupOf(TrafficAxis axis, const RankPlace& place,
                               const MeshSizes& mesh) {
  CollectiveCount::Group group;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const RankPlace other = RankPlace::Of(rank, mesh);
    const bool tp = other.tp == place.tp, cp = other.cp == place.cp;
    const bool dp = other.dp == place.dp, pp = other.pp == place.pp;
    const int64_t shards = mesh.dp_shard();
    const bool replica = other.dp / shards == place.dp / shards;
    const bool shard = other.dp % shards == place.dp % shards;
    // cp varies faster than dp.
    const int64_t data = other.cp + mesh.cp * other.dp;
    const int64_t own = place.cp + mesh.cp * place.dp;
    const bool ep = data / mesh.ep == own / mesh.ep;
    const bool edp = data % mesh.ep == own % mesh.ep;
    const bool is_member = axis == TrafficAxis::kTp   ? cp && dp && pp
                           : axis == TrafficAxis::kCp ? tp && dp && pp
                           : axis == TrafficAxis::kPp ? tp && cp && dp
                           : axis == TrafficAxis::kDp ? tp && pp && replica
                           : axis == TrafficAxis::kReplicate
                               ? tp && pp && cp && shard
                           : axis == TrafficAxis::kData        ? tp && pp
                           : axis == TrafficAxis::kEp          ? tp && pp && ep
                           : axis == TrafficAxis::kEdp         ? tp && pp && edp
                           : axis == TrafficAxis::kExpertModel ? ep
                                                               : cp && dp;
    if (is_member) group.push_back(rank);
  }
  return group;
}

// Groups of ranks that share key and value heads, or hold tied tables, are part
// of an axis and count as that axis.
CollectiveCount::Table WithoutSubsets(
    const CollectiveCount::Table& measured,
    const std::vector<CollectiveCount::Group>& axes) {
  CollectiveCount::Table table;
  for (const auto& [key, bytes] : measured) {
    if (key.first.size() < 2) continue;
    CollectiveCount::Group group = key.first;
    bool is_axis = false;
    for (const auto& axis : axes) is_axis |= axis == group;
    for (const auto& axis : axes) {
      if (is_axis || !std::includes(axis.begin(), axis.end(), group.begin(),
                                    group.end())) {
        continue;
      }
      group = axis;
      break;
    }
    table[{group, key.second}] += bytes;
  }
  return table;
}

void ExpectTraffic(const RankPrediction& rank, const MeshSizes& mesh,
                   const MeasuredRank& measured) {
  std::vector<CollectiveCount::Group> axes;
  for (const TrafficAxis axis : kTrafficAxes) {
    axes.push_back(GroupOf(axis, rank.place, mesh));
  }
  // By the communicators' statistics.
  for (const MessageComparison& one :
       CompareMessages(rank.traffic, {.messages = measured.messages})) {
    EXPECT_EQ(one.predicted.totals.count, one.measured.count)
        << one.predicted.operation << " along " << one.predicted.axis;
    EXPECT_EQ(one.predicted.totals.bytes, one.measured.bytes)
        << one.predicted.operation << " along " << one.predicted.axis;
  }
  // By an engine that counts all of the rank's collectives.
  CollectiveCount::Table predicted;
  for (const auto& [key, traffic] : rank.traffic.all()) {
    if (!collectives::IsCollective(key.second)) continue;
    predicted[{GroupOf(key.first, rank.place, mesh), key.second}] +=
        traffic.bytes;
  }
  const auto table = WithoutSubsets(measured.collectives, axes);
  for (const auto& [key, bytes] : table) {
    EXPECT_EQ(predicted[key], bytes)
        << key.second << " of " << ::testing::PrintToString(key.first);
  }
  for (const auto& [key, bytes] : predicted) {
    EXPECT_EQ(table.count(key), 1u)
        << key.second << " of " << ::testing::PrintToString(key.first);
  }
}

void ExpectState(const StateMemory& predicted, const offload::Usage& usage) {
  EXPECT_EQ(predicted.parameters, usage.of(Purpose::kParameters).peak);
  EXPECT_EQ(predicted.gradients, usage.of(Purpose::kGradients).peak);
  EXPECT_EQ(predicted.optimizer, usage.of(Purpose::kOptimizer).peak);
  EXPECT_EQ(predicted.buffers, usage.of(Purpose::kBuffers).peak);
}

using Prepare = std::function<absl::Status(int64_t rank, RunOptions&)>;

void ExpectAsMeasured(const RunOptions& options, const StateHomes& homes = {},
                      const Prepare& prepare = nullptr) {
  const MeshSizes& mesh = options.mesh;
  SCOPED_TRACE(absl::StrCat("dp", mesh.dp, ",pp", mesh.pp, ",cp", mesh.cp,
                            ",tp", mesh.tp, " zero ", options.state.stage,
                            " recompute ", options.recompute, " ",
                            options.schedule));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto measured,
                               MeasureRun(options, prepare));
  TESSERA_ASSERT_OK_AND_ASSIGN(const PipelinePlan plan,
                               PipelinePlan::Create(options));
  for (int64_t r = 0; r < mesh.world_size(); ++r) {
    const RankPlace place = RankPlace::Of(r, mesh);
    SCOPED_TRACE(r);
    TESSERA_ASSERT_OK_AND_ASSIGN(const RankPrediction rank,
                                 PredictRank(plan, place, homes, kTrapped));
    const MeasuredRank& real = measured[static_cast<size_t>(r)];
    ExpectState(rank.state, real.state);
    EXPECT_EQ(rank.activations.pools + rank.activations.boundaries,
              real.activations);
    ExpectTraffic(rank, mesh, real);
  }
}

TEST(RankPlaceTest, PlacesAndGroupsMatchMesh) {
  for (const MeshSizes& sizes :
       {MeshSizes{}, MeshSizes{.dp = 2, .pp = 3, .cp = 2, .tp = 2},
        MeshSizes{.dp = 6, .pp = 2, .cp = 2, .tp = 3, .dp_replicate = 3},
        MeshSizes{
            .dp = 4,
  .pp = 2,
  .cp = 3,
  .tp = 2,
  .dp_replicate = 2,
  .order = {MeshAxis::kPp, MeshAxis::kDp, MeshAxis::kTp, MeshAxis::kCp}}}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const topology::Mesh mesh, sizes.MakeMesh());
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const RankPlace place = RankPlace::Of(rank, sizes);
      for (const auto& [axis, index] :
           std::map<std::string, int64_t>{{"tp", place.tp},
                                          {"cp", place.cp},
                                          {"dp", place.dp},
                                          {"pp", place.pp}}) {
        EXPECT_THAT(mesh.CoordinateOf(topology::Rank(rank), axis),
                    IsOkAndHolds(index));
      }
      EXPECT_EQ(place.RankIn(sizes), rank);
    }
    const bool is_hybrid = sizes.dp_replicate > 1;
    for (const auto& [axis, axes] : std::map<TrafficAxis, std::string>{
             {TrafficAxis::kTp, "tp"},
             {TrafficAxis::kCp, "cp"},
             {TrafficAxis::kPp, "pp"},
             {TrafficAxis::kDp, is_hybrid ? "cp,dp_shard" : "cp,dp"},
             {TrafficAxis::kData, "cp,dp"},
             {TrafficAxis::kModel, "tp,pp"}}) {
      const auto groups = mesh.GroupsAlong(axes);
      EXPECT_EQ(RanksAlong(axis, sizes), groups->size());
      for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
        EXPECT_THAT(
            groups->IndexOf(topology::Rank(rank)),
            IsOkAndHolds(RankAlong(axis, sizes, RankPlace::Of(rank, sizes))));
      }
    }
    if (is_hybrid) {
      EXPECT_EQ(RanksAlong(TrafficAxis::kReplicate, sizes),
                mesh.GroupsAlong("dp_replicate")->size());
    }
  }
}

TEST(PredictRankTest, EveryMeshMatchesMeasurement) {
  for (const MeshSizes mesh :
       {MeshSizes{}, MeshSizes{.dp = 2}, MeshSizes{.pp = 2}, MeshSizes{.cp = 2},
        MeshSizes{.tp = 2}, MeshSizes{.tp = 4}, MeshSizes{.cp = 2, .tp = 2},
        MeshSizes{.dp = 2, .pp = 2, .tp = 2},
        MeshSizes{.dp = 2, .pp = 2, .cp = 2}}) {
    RunOptions options = SmallRun();
    options.mesh = mesh;
    for (const bool sequence_parallel : {false, true}) {
      options.sequence_parallel = sequence_parallel;
      options.state.stage = sequence_parallel ? 3 : 1;
      ExpectAsMeasured(options);
    }
  }
}

// A prediction assumes a balanced load of the experts. In these runs every
// token selects all experts, which is balanced.
TEST(PredictRankTest, MixturesOfExpertsMatchMeasurement) {
  for (const MeshSizes mesh :
       {MeshSizes{}, MeshSizes{.dp = 2, .ep = 2}, MeshSizes{.cp = 2, .ep = 2},
        MeshSizes{.dp = 2, .cp = 2, .ep = 4}, MeshSizes{.dp = 4, .ep = 2},
        MeshSizes{.dp = 2, .pp = 2, .tp = 2, .ep = 2}}) {
    for (const bool sequence_parallel : {false, true}) {
      RunOptions options = SmallRun();
      options.length = 16;  // As many tokens on every rank.
      options.model.architecture = model_files::Architecture::kDots1;
      options.model.mixture = {.experts = 4,
                               .per_token = 4,
                               .intermediate = 6,
                               .shared_intermediate = 6,
                               .dense_layers = 1,
                               .balance = 0.1};
      options.mesh = mesh;
      options.sequence_parallel = sequence_parallel;
      options.state.stage = sequence_parallel ? 3 : 1;
      options.recompute =
          sequence_parallel ? Recompute::kFull : Recompute::kNone;
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, OneMomentOfLionMatchesMeasurement) {
  RunOptions options = SmallRun();
  options.mesh = {.dp = 2, .tp = 2};
  options.state.optimizer = zero3::OptimizerKind::kLion;
  for (const int stage : {0, 3}) {
    options.state.stage = stage;
    ExpectAsMeasured(options);
  }
}

TEST(PredictRankTest, MatricesOfMuonMatchMeasurement) {
  for (const MeshSizes mesh :
       {MeshSizes{}, MeshSizes{.dp = 3}, MeshSizes{.tp = 4},
        MeshSizes{.dp = 2, .pp = 2, .tp = 2}, MeshSizes{.dp = 2, .cp = 2}}) {
    for (const int stage : {0, 1, 3}) {
      RunOptions options = SmallRun();
      options.batch = 12;
      options.mesh = mesh;
      options.state.stage = stage;
      options.state.optimizer = zero3::OptimizerKind::kMuon;
      options.dtype = stage == 1 ? DType::kBF16 : DType::kF32;
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, ScoresOfClippedAttentionMatchMeasurement) {
  for (const MeshSizes mesh :
       {MeshSizes{}, MeshSizes{.dp = 2, .pp = 2, .tp = 2},
        MeshSizes{.dp = 2, .cp = 2}}) {
    RunOptions options = SmallRun();
    options.mesh = mesh;
    options.state.stage = mesh.dp > 1 ? 3 : 0;
    options.qk_clip = 100;
    ExpectAsMeasured(options);
  }
}

TEST(PredictRankTest, MomentsOfAdafactorMatchMeasurement) {
  for (const MeshSizes mesh : {MeshSizes{}, MeshSizes{.dp = 3},
                               MeshSizes{.dp = 2, .pp = 2, .tp = 2}}) {
    for (const int stage : {0, 1, 3}) {
      RunOptions options = SmallRun();
      options.batch = 12;
      options.mesh = mesh;
      options.state.stage = stage;
      options.state.optimizer = zero3::OptimizerKind::kAdafactor;
      options.dtype = stage == 1 ? DType::kBF16 : DType::kF32;
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, StatisticsOfShampooMatchMeasurement) {
  for (const MeshSizes mesh :
       {MeshSizes{}, MeshSizes{.dp = 3}, MeshSizes{.tp = 4},
        MeshSizes{.dp = 2, .pp = 2, .tp = 2}}) {
    for (const int stage : {0, 1, 3}) {
      RunOptions options = SmallRun();
      options.batch = 12;
      options.mesh = mesh;
      options.state.stage = stage;
      options.state.optimizer = zero3::OptimizerKind::kShampoo;
      options.state.shampoo = {.block = 5, .every = 2};
      options.dtype = stage == 1 ? DType::kBF16 : DType::kF32;
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, AdaptersMatchMeasurement) {
  for (const MeshSizes mesh :
       {MeshSizes{}, MeshSizes{.dp = 3}, MeshSizes{.tp = 4},
        MeshSizes{.dp = 2, .pp = 2, .tp = 2}, MeshSizes{.dp = 2, .cp = 2}}) {
    for (const int stage : {0, 1, 3}) {
      RunOptions options = SmallRun();
      options.batch = 12;
      options.mesh = mesh;
      options.state.stage = stage;
      options.lora = {.rank = 3, .alpha = 6};
      options.dtype = stage == 1 ? DType::kBF16 : DType::kF32;
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, AdaptersOfLatentAttentionMatchMeasurement) {
  for (const bool has_query_latent : {false, true}) {
    for (const MeshSizes mesh :
         {MeshSizes{}, MeshSizes{.dp = 2, .tp = 2}, MeshSizes{.pp = 2, .tp = 4},
          MeshSizes{.dp = 2, .cp = 2}}) {
      RunOptions options = testing::SmallDeepSeek(has_query_latent);
      options.mesh = mesh;
      options.sequence_parallel = has_query_latent;
      options.state.stage = 3;
      options.lora = {.rank = 3, .alpha = 6};
      ExpectAsMeasured(options);
    }
  }
}

// The predicted parameters of all ranks.
int64_t ParameterBytes(const RunOptions& options) {
  const auto plan = PipelinePlan::Create(options);
  EXPECT_THAT(plan.status(), IsOk());
  int64_t bytes = 0;
  for (int64_t r = 0; plan.ok() && r < options.mesh.world_size(); ++r) {
    const auto rank =
        PredictRank(*plan, RankPlace::Of(r, options.mesh), {}, kTrapped);
    EXPECT_THAT(rank.status(), IsOk());
    if (rank.ok()) bytes += rank->state.parameters;
  }
  return bytes;
}

TEST(PredictRankTest, QuantizedBasesMatchMeasurement) {
  for (const std::string codec : {"nf4", "nf4_double"}) {
    for (const MeshSizes mesh :
         {MeshSizes{}, MeshSizes{.dp = 2}, MeshSizes{.dp = 2, .tp = 2}}) {
      RunOptions options = SmallRun();
      options.model.hidden = 128;
      options.model.intermediate = 384;
      options.batch = 4;
      options.mesh = mesh;
      options.state.stage = 3;
      options.lora = {.rank = 3, .alpha = 6};
      options.dtype = DType::kBF16;
      options.base_codec = codec;
      ExpectAsMeasured(options);
      // Both have all other parameters in full.
      const int64_t quantized = ParameterBytes(options);
      options.base_codec = "";
      const int64_t full = ParameterBytes(options);
      const model_files::ModelConfig& model = options.model;
      const int64_t attention =
          2 * (model.heads + model.kv_heads) * model.head_size * model.hidden;
      const auto weights = static_cast<double>(
          model.layers * (attention + 3 * model.hidden * model.intermediate));
      // 16 bits a weight become 4.5 or 4.13, and the headers of blocks.
      EXPECT_GT(static_cast<double>(full - quantized),
                (codec == "nf4" ? 1.42 : 1.46) * weights);
    }
  }
}

TEST(PredictRankTest, EveryStageMatchesMeasurement) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const MeshSizes mesh :
         {MeshSizes{}, MeshSizes{.dp = 3}, MeshSizes{.dp = 2, .pp = 2},
          MeshSizes{.dp = 6, .dp_replicate = 2}}) {
      RunOptions options = SmallRun();
      options.batch = 12;
      options.mesh = mesh;
      options.state.stage = stage;
      options.state.bucket_bytes = 20'000;
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, EveryScheduleMatchesMeasurement) {
  for (const auto& [name, chunks] :
       std::vector<std::pair<std::string, int>>{{"gpipe", 1},
                                                {"sequential", 1},
                                                {"1f1b", 1},
                                                {"interleaved_1f1b", 2},
                                                {"looped_bfs", 2},
                                                {"zb_h1", 1},
                                                {"zb_h2", 1},
                                                {"zb_v", 2},
                                                {"v_half", 2},
                                                {"v_min", 2}}) {
    RunOptions options = SmallRun();
    options.mesh = {.dp = 2, .pp = 2, .tp = 2};
    options.batch = 12;
    options.schedule = name;
    options.chunks = chunks;
    options.state.stage = 3;
    options.sequence_parallel = chunks == 1;
    ExpectAsMeasured(options);
  }
}

TEST(PredictRankTest, EveryWayToRecomputeMatchesMeasurement) {
  for (const Recompute recompute :
       {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const std::string schedule : {"1f1b", "zb_h1"}) {
      for (const bool sequence_parallel : {false, true}) {
        RunOptions options = SmallRun();
        options.recompute = recompute;
        options.sequence_parallel = sequence_parallel;
        options.schedule = schedule;
        options.micro_batch = 2;
        options.mesh = {.pp = 2, .cp = 2, .tp = 2};
        ExpectAsMeasured(options);
      }
    }
  }
}

TEST(PredictRankTest, ChunksOfTokensMatchMeasurement) {
  for (const int64_t chunks : {1, 3}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      RunOptions options = SmallRun();
      options.mesh = {.pp = 2, .tp = 2};
      options.sequence_parallel = true;
      options.overlap_chunks = chunks;
      options.recompute = recompute;
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, AllToAllAttentionMatchesMeasurement) {
  for (const MeshSizes mesh : {MeshSizes{.cp = 2}, MeshSizes{.cp = 3},
                               MeshSizes{.dp = 2, .cp = 2, .tp = 2}}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      RunOptions options = SmallRun();
      options.mesh = mesh;
      options.context_attention = tensor_parallel::ContextAlgorithm::kUlysses;
      options.recompute = recompute;
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, DropoutMatchesMeasurement) {
  for (const std::string schedule : {"1f1b", "zb_h1"}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      RunOptions options = SmallRun();
      options.dropout = 0.1;
      options.schedule = schedule;
      options.recompute = recompute;
      options.mesh = {.pp = 2, .cp = 2, .tp = 2};
      options.sequence_parallel = true;
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, TiedTablesAndNarrowWeightsMatchMeasurement) {
  for (const int64_t pp : {1, 2}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      RunOptions options = SmallRun();
      options.model.tied_embeddings = true;
      options.dtype = dtype;
      options.mesh = {.dp = 2, .pp = pp, .tp = 2};
      options.state.stage = 3;
      options.state.moments = offload::MomentFormat::Blockwise8(64);
      ExpectAsMeasured(options);
    }
  }
}

TEST(PredictRankTest, ProductsInFp8MatchMeasurement) {
  for (const bool sequence_parallel : {false, true}) {
    RunOptions options = SmallRun();
    options.dtype = DType::kBF16;
    options.fp8 = true;
    options.mesh = {.dp = 2, .pp = 2, .tp = 2};
    options.sequence_parallel = sequence_parallel;
    ExpectAsMeasured(options);
    const MeshSizes mesh = options.mesh;
    options = testing::SmallDeepSeek(sequence_parallel);
    options.dtype = DType::kBF16;
    options.fp8 = true;
    options.mesh = mesh;
    options.sequence_parallel = sequence_parallel;
    ExpectAsMeasured(options);
  }
}

TEST(CheckFp8SizesTest, NamesSizesOfLatentAttention) {
  RunOptions options = testing::SmallDeepSeek(/*has_query_latent=*/true);
  model_files::ModelConfig& model = options.model;
  model.hidden = 64;
  model.intermediate = 96;
  model.heads = model.kv_heads = 4;
  model.latent = {
      .query_rank = 32, .kv_rank = 16, .nope = 16, .rope = 16, .value = 16};
  model.head_size = 32;
  options.length = 64;
  options.mesh.tp = 2;
  TESSERA_EXPECT_OK(CheckFp8Sizes(options));
  const auto expect_refused = [&](const std::string& text) {
    EXPECT_THAT(CheckFp8Sizes(options),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         ::testing::HasSubstr(text)));
  };
  model.latent.query_rank = 24;
  expect_refused("a rank has 56 elements of the latent vectors");
  model.latent.kv_rank = 24;
  expect_refused("a rank has 24 elements of that of queries");
  model.latent.query_rank = 0;
  model.latent.kv_rank = 20;
  expect_refused("a rank has 36 elements of the latent vectors");
  model.latent.kv_rank = 16;
  model.latent.value = 15;
  expect_refused("columns of the output projection");
  model.latent.value = 16;
  options.mesh.tp = 3;
  TESSERA_EXPECT_OK(CheckFp8Sizes(options));
}

// Operands in fp8 are the layers' working memory.
TEST(PredictRankTest, OperandsInFp8Count) {
  RunOptions options = SmallRun();
  options.dtype = DType::kBF16;
  TESSERA_ASSERT_OK_AND_ASSIGN(const PipelinePlan plan,
                               PipelinePlan::Create(options));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RankPrediction without,
                               PredictRank(plan, {}, {}));
  options.fp8 = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RankPrediction with,
                               PredictRank(plan.With(options), {}, {}));
  const int64_t weight = 2 * 40 * 24;  // The largest, gate and up; of a byte.
  EXPECT_GE(with.activations.layers, without.activations.layers + weight);
  EXPECT_GE(with.held, without.held + weight);
}

TEST(CheckFp8SizesTest, NamesSizeNotMultipleOf16) {
  RunOptions options = SmallRun();
  options.model.hidden = 64;
  options.model.intermediate = 96;
  options.model.heads = 4;
  options.model.head_size = 16;
  options.length = 64;
  TESSERA_EXPECT_OK(CheckFp8Sizes(options));
  const auto expect_refused = [&](const std::string& text) {
    EXPECT_THAT(
        CheckFp8Sizes(options),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 ::testing::AllOf(::testing::HasSubstr(text),
                                  ::testing::HasSubstr("--dtype=bf16"))));
  };
  options.model.intermediate = 100;
  expect_refused("there are 100 intermediate units");
  options.model.intermediate = 96;
  options.mesh.tp = 2;
  TESSERA_EXPECT_OK(CheckFp8Sizes(options));
  options.mesh.tp = 4;
  expect_refused("a rank has 24 intermediate units");
  options.mesh.tp = 2;
  options.mesh.cp = 8;
  expect_refused("a rank has 8 tokens of a micro-batch");
  options.micro_batch = 2;
  TESSERA_EXPECT_OK(CheckFp8Sizes(options));
  options.sequence_parallel = true;
  expect_refused("a rank has 8 tokens that are multiplied at a time");
  options.mesh.cp = 1;
  TESSERA_EXPECT_OK(CheckFp8Sizes(options));
  options.overlap_chunks = 4;
  TESSERA_EXPECT_OK(CheckFp8Sizes(options));
  options.overlap_chunks = 3;
  expect_refused("tokens that are multiplied at a time");
}

// Two stages of one rank use the same table: the rank sums their gradients.
TEST(PredictRankTest, TiedTablesOfTwoWayPipelinesMatchMeasurement) {
  RunOptions options = SmallRun();
  options.model.tied_embeddings = true;
  options.mesh = {.dp = 2, .pp = 2};
  options.schedule = "dualpipe";
  options.state.stage = 2;
  ExpectAsMeasured(options);
}

TEST(PredictRankTest, EveryPlaceOfGathersAndReductionsMatchesMeasurement) {
  for (const int64_t most : {0, 26'000, 60'000}) {
    for (const int64_t ahead : {0, 1, 3}) {
      for (const ReduceChoice reduce :
           {ReduceChoice::kEachMicroBatch, ReduceChoice::kLastMicroBatch}) {
        RunOptions options = SmallRun();
        options.mesh = {.dp = 2, .pp = 2};
        options.state.stage = ahead == 0 ? 2 : 3;
        options.state.persistence_threshold = 100;
        options.gather_ahead = ahead;
        options.max_gathered_bytes = most;
        options.reduce = reduce;
        ExpectAsMeasured(options);
      }
    }
  }
}

// ZeRO++: each of its three options alone, and all together.
struct FewerBytes {
  bool weights = false;
  int64_t hpz = 0;
  bool gradients = false;
};

RunOptions FewerBytesRun(const FewerBytes& fewer, const MeshSizes& mesh) {
  RunOptions options = SmallRun();
  options.mesh = mesh;
  options.state.stage = 3;
  options.state.quantized_weights = fewer.weights;
  options.state.hpz_partition_size = fewer.hpz;
  options.state.quantized_gradients = fewer.gradients;
  return options;
}

TEST(PredictRankTest, EveryWayToSendFewerBytesMatchesMeasurement) {
  for (const FewerBytes fewer : {FewerBytes{.weights = true},
                                 {.hpz = 2},
                                 {.gradients = true},
                                 {.weights = true, .hpz = 2, .gradients = true},
                                 {.weights = true, .gradients = true}}) {
    for (const MeshSizes mesh :
         {MeshSizes{.dp = 2}, MeshSizes{.dp = 4}, MeshSizes{.dp = 2, .tp = 2},
          MeshSizes{.dp = 2, .pp = 2}}) {
      SCOPED_TRACE(absl::StrCat("quantized weights ", fewer.weights, " hpz ",
                                fewer.hpz, " quantized gradients ",
                                fewer.gradients));
      RunOptions options = FewerBytesRun(fewer, mesh);
      ExpectAsMeasured(options);
      // Ranks with shards of different sizes, and a reduction for each
      // micro-batch.
      options.state.layout = zero3::LayoutKind::kBalanced;
      options.reduce = ReduceChoice::kEachMicroBatch;
      ExpectAsMeasured(options);
    }
  }
}

// Compares the traffic with the formulas of zero3/state, so that an error that
// a dry run and a run have in common is found.
TEST(PredictRankTest, QuantisedMessagesMatchFormulas) {
  const MeshSizes mesh = {.dp = 2};
  const auto bytes_of = [&](const FewerBytes& fewer, OpKind kind) {
    const auto plan = PipelinePlan::Create(FewerBytesRun(fewer, mesh));
    const auto rank = PredictRank(*plan, {}, {});
    const auto& all = rank->traffic.all();
    const auto found = all.find({TrafficAxis::kDp, kind});
    return found == all.end() ? 0 : found->second.bytes;
  };
  const int64_t gathers = bytes_of({}, OpKind::kAllGather);
  const int64_t reduced = bytes_of({}, OpKind::kReduceScatter);
  ASSERT_GT(gathers, 0);
  ASSERT_GT(reduced, 0);
  // f32 takes 1 byte per element plus a 4-byte scale per 128 elements, or fewer
  // at the end of a parameter's shard.
  const auto share = [](int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
  };
  const int64_t few = bytes_of({.weights = true}, OpKind::kAllGather);
  EXPECT_GE(share(few, gathers), 132.0 / 512);
  EXPECT_LE(share(few, gathers), 0.28);
  const int64_t exchanged = bytes_of({.gradients = true}, OpKind::kAllToAll);
  EXPECT_GE(share(exchanged, reduced), 132.0 / 512);
  EXPECT_LE(share(exchanged, reduced), 0.28);
  EXPECT_EQ(bytes_of({.gradients = true}, OpKind::kReduceScatter), 0);
  // The secondary copy is gathered in its own type, over as many ranks here.
  EXPECT_EQ(bytes_of({.hpz = 2}, OpKind::kAllGather), gathers);
}

// Boundaries of 32 KiB and more are sent asynchronously: when their memory is
// released depends on timing.
TEST(PredictRankTest, CountsStartedTensorsUntilCompletion) {
  RunOptions options = SmallRun();
  options.model.hidden = 96;
  options.length = 96;
  options.mesh = {.pp = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto measured, MeasureRun(options));
  TESSERA_ASSERT_OK_AND_ASSIGN(const PipelinePlan plan,
                               PipelinePlan::Create(options));
  const int64_t boundary = options.length * options.model.hidden * 4;
  ASSERT_GE(boundary, 32 << 10);
  for (int64_t r = 0; r < 2; ++r) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const RankPrediction rank,
                                 PredictRank(plan, {.pp = r}, {}, kTrapped));
    const int64_t real = measured[static_cast<size_t>(r)].activations;
    const int64_t most = rank.activations.pools + rank.activations.boundaries;
    EXPECT_LE(real, most);
    EXPECT_GE(real, most - 2 * boundary);
  }
}

struct Tiered {
  StateHomes homes;
  bool in_files = false;
  bool compressed = false;
  MeshSizes mesh = {.dp = 2, .pp = 2};
  std::string schedule = "1f1b";
  Recompute recompute = Recompute::kNone;
};

void ExpectTieredAsMeasured(const Tiered& tiered) {
  std::vector<std::shared_ptr<offload::Accounting>> accounts;
  std::vector<std::shared_ptr<offload::MemoryTier>> tiers;
  RunOptions options = SmallRun();
  options.mesh = tiered.mesh;
  options.schedule = tiered.schedule;
  options.recompute = tiered.recompute;
  options.state.stage = 3;
  options.state.bucket_bytes = 9000;
  for (int64_t r = 0; r < options.mesh.world_size(); ++r) {
    accounts.push_back(
        std::make_shared<offload::Accounting>("tier", offload::kUnlimited));
    if (tiered.in_files) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          tiers.emplace_back(),
          offload::FileTier::Create(accounts.back(),
                                    {.path = ::testing::TempDir()}));
    } else {
      tiers.push_back(std::make_shared<offload::HostTier>(accounts.back()));
    }
    if (!tiered.compressed) continue;
    TESSERA_ASSERT_OK_AND_ASSIGN(auto codec,
                                 offload::CreateCodec("lossless_lz4"));
    tiers.back() = std::make_shared<offload::CompressedTier>(std::move(codec),
                                                             tiers.back());
  }
  const auto give = [&](StateHome home, size_t rank) {
    return home == StateHome::kMemory ? nullptr : tiers[rank].get();
  };
  ExpectAsMeasured(options, tiered.homes, [&](int64_t rank, RunOptions& own) {
    const auto r = static_cast<size_t>(rank);
    own.state.parameter_tier = give(tiered.homes.parameters, r);
    own.state.gradient_tier = give(tiered.homes.gradients, r);
    own.state.optimizer_tier = give(tiered.homes.optimizer, r);
    own.activation_tier = give(tiered.homes.activations, r);
    own.state.key_prefix = "";
    return absl::OkStatus();
  });
  if (tiered.compressed) return;
  TESSERA_ASSERT_OK_AND_ASSIGN(const PipelinePlan plan,
                               PipelinePlan::Create(options));
  for (int64_t r = 0; r < options.mesh.world_size(); ++r) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RankPrediction rank,
        PredictRank(plan, RankPlace::Of(r, options.mesh), tiered.homes));
    EXPECT_EQ(rank.state.host + rank.state.files,
              accounts[static_cast<size_t>(r)]->usage().peak);
  }
}

TEST(PredictRankTest, StateInTiersMatchesMeasurement) {
  for (const StateHome home : {StateHome::kHost, StateHome::kFiles}) {
    const bool in_files = home == StateHome::kFiles;
    ExpectTieredAsMeasured({{.optimizer = home}, in_files});
    ExpectTieredAsMeasured({{.parameters = home}, in_files});
    ExpectTieredAsMeasured(
        {{.parameters = home, .gradients = home, .optimizer = home}, in_files});
  }
  ExpectTieredAsMeasured(
      {{.optimizer = StateHome::kHost, .compressed = true}, false, true});
}

TEST(PredictRankTest, ActivationsInTiersMatchMeasurement) {
  for (const StateHome home : {StateHome::kHost, StateHome::kFiles}) {
    const bool in_files = home == StateHome::kFiles;
    for (const std::string schedule : {"1f1b", "gpipe", "zb_h1"}) {
      SCOPED_TRACE(schedule);
      ExpectTieredAsMeasured({.homes = {.optimizer = home, .activations = home},
                              .in_files = in_files,
                              .schedule = schedule});
    }
    for (const Recompute recompute :
         {Recompute::kSelective, Recompute::kFull}) {
      ExpectTieredAsMeasured({.homes = {.activations = home},
                              .in_files = in_files,
                              .mesh = {.tp = 2},
                              .recompute = recompute});
    }
  }
  ExpectTieredAsMeasured(
      {.homes = {.activations = StateHome::kHost, .compressed = true},
       .compressed = true,
       .mesh = {.pp = 2}});
}

// Memory holds four of the eight layers: one that computes, two that are being
// read, and one that is being written for the first time.
TEST(PredictRankTest, ActivationsInFilesTakeTheMemoryOfFourLayers) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    RunOptions options = SmallRun();
    options.model.layers = 8;
    options.recompute = recompute;
    TESSERA_ASSERT_OK_AND_ASSIGN(const PipelinePlan plan,
                                 PipelinePlan::Create(options));
    TESSERA_ASSERT_OK_AND_ASSIGN(const RankPrediction here,
                                 PredictRank(plan, {}, {}, kTrapped));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RankPrediction away,
        PredictRank(plan, {}, {.activations = StateHome::kFiles}, kTrapped));
    const auto of_activations = [](const RankPrediction& rank) {
      return rank.activations.pools + rank.activations.boundaries +
             rank.state.buffers;
    };
    EXPECT_EQ(here.state.buffers, 0);
    EXPECT_GT(away.state.files, 0);
    EXPECT_LT(away.activations.pools + away.activations.boundaries,
              here.activations.pools + here.activations.boundaries);
    if (recompute == Recompute::kNone) {
      EXPECT_LT(of_activations(away), 0.6 * of_activations(here));
      EXPECT_LT(away.held, here.held);
    }
  }
}

// The device's account has everything but the tensors between stages.
TEST(PredictRankTest, DeviceLimitHoldsStateAndActivations) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    RunOptions options = SmallRun();
    options.recompute = recompute;
    TESSERA_ASSERT_OK_AND_ASSIGN(const PipelinePlan plan,
                                 PipelinePlan::Create(options));
    TESSERA_ASSERT_OK_AND_ASSIGN(const RankPrediction rank,
                                 PredictRank(plan, {}, {}));
    options.device_budget = rank.device;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto measured, MeasureRun(options));
    const int64_t peak = measured[0].state.peak;
    EXPECT_LT(peak, rank.device);
    EXPECT_GE(peak, rank.device - rank.activations.boundaries - 64);
    EXPECT_EQ(measured[0].state.of(Purpose::kActivations).peak,
              rank.activations.pools + rank.activations.layers -
                  rank.activations.boundaries);
    options.device_budget = peak;
    EXPECT_THAT(MeasureRun(options), IsOk());
    options.device_budget = peak - 1;
    EXPECT_THAT(MeasureRun(options),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
}

// The ranks of a pipeline whose stages have different numbers of layers.
TEST(PredictRankTest, EverySplitOfLayersMatchesMeasurement) {
  RunOptions options = SmallRun();
  options.mesh.pp = 2;
  for (const std::vector<int64_t>& layers :
       {std::vector<int64_t>{1, 3}, {4, 0}, {0, 4}}) {
    options.layers_per_stage = layers;
    SCOPED_TRACE(::testing::PrintToString(layers));
    ExpectAsMeasured(options);
  }
  options.layers_per_stage = {4};
  EXPECT_THAT(PipelinePlan::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("2 stages, and 1 numbers")));
}

TEST(PredictRankTest, RejectsInvalidOptions) {
  RunOptions options = SmallRun();
  options.batch = 7;
  options.mesh.dp = 2;
  EXPECT_THAT(PipelinePlan::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument));
  options = SmallRun();
  options.schedule = "2f2b";
  EXPECT_THAT(PipelinePlan::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("unknown generator")));
  options = SmallRun();
  options.mesh.tp = 5;
  TESSERA_ASSERT_OK_AND_ASSIGN(const PipelinePlan plan,
                               PipelinePlan::Create(options));
  EXPECT_THAT(PredictRank(plan, {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::train
