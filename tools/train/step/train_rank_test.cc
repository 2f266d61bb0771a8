// Tests that a run learns; ../parity compares every mesh with one rank.
#include "tools/train/step/train_rank.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/host_tier.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/text/corpus.h"
#include "tools/text/samples.h"
#include "tools/text/testing/token_files.h"
#include "tools/text/tokenizer.h"
#include "tools/train/testing/small_text.h"
#include "zero3/state/testing/tiers.h"

namespace tessera::train {
namespace {

using offload::Purpose;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 12;

RunOptions Options() {
  RunOptions options;
  options.model = {.vocabulary = 264,
                   .hidden = 24,
                   .intermediate = 40,
                   .layers = 4,
                   .heads = 6,
                   .kv_heads = 2,
                   .head_size = 4};
  options.model.initializer_range = 0.1;
  options.batch = 8;
  options.length = 21;
  options.steps = kSteps;
  options.learning_rate = {.peak = 0.01, .least = 0.001, .total_steps = kSteps};
  options.state.stage = 0;
  options.state.clip_norm = 1;
  return options;
}

struct TrainedRank {
  std::vector<StepRecord> records;
  std::vector<double> evaluations;
  int64_t activation_bytes = 0;
  zero3::ShardTraffic traffic;
};

// Runs three steps on every rank; `tier_of` returns a rank's tier for
// activations, or null. Validates on that many batches after every step.
using TierOf = std::function<offload::MemoryTier*(size_t rank)>;
std::vector<absl::Status> Train(const RunOptions& options,
                                const TierOf& tier_of,
                                std::vector<TrainedRank>& ranks,
                                int64_t eval_batches = 0) {
  const auto samples = text::Samples::Create(
      testing::SmallText(),
      {.sequence = options.length, .validation_fraction = 0.2, .seed = 5});
  ranks.assign(static_cast<size_t>(options.mesh.world_size()), {});
  return collectives::RunRanks(
      options.mesh.world_size(),
      [&](collectives::Communicator& world) -> absl::Status {
        const auto r = static_cast<size_t>(world.rank().value());
        RunOptions own = options;
        if (tier_of) own.activation_tier = tier_of(r);
        tensor_parallel::CpuOps ops({.threads = 1});
        TESSERA_ASSIGN_OR_RETURN(auto rank,
                                 TrainRank::Create(world, own, *samples, ops));
        for (int step = 0; step < 3; ++step) {
          TESSERA_ASSIGN_OR_RETURN(ranks[r].records.emplace_back(),
                                   rank->Step());
          if (eval_batches == 0) continue;
          TESSERA_ASSIGN_OR_RETURN(ranks[r].evaluations.emplace_back(),
                                   rank->Evaluate(eval_batches));
        }
        ranks[r].activation_bytes = rank->activation_bytes();
        ranks[r].traffic = rank->offload_traffic();
        return absl::OkStatus();
      });
}

RunOptions OddOptions(const MeshSizes& mesh, std::string schedule,
                      tensor_parallel::Recompute recompute) {
  RunOptions options = Options();
  options.mesh = mesh;
  options.schedule = std::move(schedule);
  options.recompute = recompute;
  options.length = 13;
  options.steps = 3;
  options.state.stage = mesh.dp > 1 ? 3 : 0;
  options.sequence_parallel = mesh.tp > 1;
  return options;
}

std::unique_ptr<offload::MemoryTier> MakeTier(bool in_place) {
  if (!in_place) return std::make_unique<zero3::testing::FarTier>();
  return std::make_unique<offload::HostTier>(
      std::make_shared<offload::Accounting>("host", offload::kUnlimited));
}

// Expects losses and norms equal bit for bit.
void ExpectOffloaded(const TrainedRank& away, const TrainedRank& here,
                     const offload::MemoryTier& tier, bool in_place) {
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(away.records[step].loss, here.records[step].loss);
    EXPECT_EQ(away.records[step].gradient_norm,
              here.records[step].gradient_norm);
  }
  EXPECT_GT(tier.usage()[0].usage.of(Purpose::kActivations).peak, 0);
  EXPECT_EQ(tier.usage()[0].usage.current, 0);
  if (in_place) {
    EXPECT_EQ(away.traffic.bytes_read, 0);
  }
}

TEST(TrainRankTest, ActivationsInATierChangeNoBit) {
  using tensor_parallel::Recompute;
  struct Case {
    MeshSizes mesh;
    const char* schedule;
    Recompute recompute = Recompute::kNone;
    // False if the last stage needs most for the backward of its only layer,
    // whose activations are then all in memory; blocks have 64 bytes.
    bool last_stage_saves = true;
  };
  for (const Case& run :
       {Case{{}, "1f1b"}, Case{{}, "gpipe", Recompute::kSelective},
        Case{{.dp = 2}, "1f1b"}, Case{{.dp = 2}, "1f1b", Recompute::kFull},
        Case{{.pp = 2}, "zb_h1"}, Case{{.pp = 2}, "gpipe"},
        Case{{.pp = 2}, "1f1b", Recompute::kFull}, Case{{.pp = 2}, "dualpipe"},
        Case{{.tp = 2}, "1f1b"},
        Case{{.pp = 2, .tp = 2}, "zb_h1", Recompute::kSelective, false},
        Case{{.cp = 2}, "1f1b"}}) {
    const RunOptions options =
        OddOptions(run.mesh, run.schedule, run.recompute);
    std::vector<TrainedRank> here, away;
    ASSERT_THAT(Train(options, nullptr, here), Each(IsOk()));
    for (const bool in_place : {true, false}) {
      SCOPED_TRACE(absl::StrCat(run.schedule, " dp", run.mesh.dp, " pp",
                                run.mesh.pp, " tp", run.mesh.tp, " ",
                                run.recompute, in_place));
      std::vector<std::unique_ptr<offload::MemoryTier>> tiers;
      for (size_t r = 0; r < here.size(); ++r) {
        tiers.push_back(MakeTier(in_place));
      }
      ASSERT_THAT(
          Train(
              options, [&](size_t rank) { return tiers[rank].get(); }, away),
          Each(IsOk()));
      for (size_t r = 0; r < here.size(); ++r) {
        ExpectOffloaded(away[r], here[r], *tiers[r], in_place);
        const bool saves = run.last_stage_saves || r < here.size() / 2;
        EXPECT_LT(away[r].activation_bytes,
                  here[r].activation_bytes + (saves ? 0 : 128));
      }
    }
  }
}

// Every rank reports it soon.
TEST(TrainRankTest, TierErrorNamesLayerAndMicroBatch) {
  for (const MeshSizes mesh : {MeshSizes{.dp = 2}, MeshSizes{.pp = 2}}) {
    zero3::testing::FarTier good, full;
    full.is_full = true;
    std::vector<TrainedRank> ranks;
    const auto statuses = Train(
        OddOptions(mesh, "1f1b", tensor_parallel::Recompute::kNone),
        [&](size_t rank) { return rank == 0 ? &full : &good; }, ranks);
    EXPECT_THAT(
        statuses[0],
        StatusIs(absl::StatusCode::kResourceExhausted,
                 AllOf(HasSubstr("layer 0, micro-batch 0: offloading its "
                                 "activations"),
                       HasSubstr("far: no room for"))));
    EXPECT_FALSE(statuses[1].ok());
  }
}

TEST(TrainRankTest, RejectsLossyTierForActivations) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto codec, offload::CreateCodec("int8"));
  offload::CompressedTier rounds(
      std::move(codec),
      std::make_shared<offload::HostTier>(
          std::make_shared<offload::Accounting>("host", offload::kUnlimited)));
  std::vector<TrainedRank> ranks;
  EXPECT_THAT(Train(
                  Options(), [&](size_t) { return &rounds; }, ranks),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("rounds activations of f32"))));
}

// The losses and memory of the steps are the same with and without validation.
TEST(TrainRankTest, ValidatesSameSamplesOnEveryMesh) {
  using tensor_parallel::Recompute;
  struct Case {
    MeshSizes mesh;
    const char* schedule = "1f1b";
    bool offloads = false;
  };
  std::vector<TrainedRank> alone;
  ASSERT_THAT(
      Train(OddOptions({}, "1f1b", Recompute::kNone), nullptr, alone, 2),
      Each(IsOk()));
  ASSERT_EQ(alone[0].evaluations.size(), 3u);
  EXPECT_NE(alone[0].evaluations[0], alone[0].records[0].loss);
  EXPECT_LT(alone[0].evaluations[2], alone[0].evaluations[0]);
  for (const Case& run :
       {Case{{}}, Case{{}, "gpipe", true}, Case{{.dp = 2}},
        Case{{.dp = 2}, "1f1b", true}, Case{{.pp = 2}},
        Case{{.pp = 2}, "zb_h1", true}, Case{{.pp = 2}, "dualpipe"},
        Case{{.tp = 2}}, Case{{.cp = 2}}, Case{{.dp = 2, .pp = 2}, "gpipe"}}) {
    SCOPED_TRACE(absl::StrCat(run.schedule, " dp", run.mesh.dp, " pp",
                              run.mesh.pp, " tp", run.mesh.tp));
    RunOptions options = OddOptions(run.mesh, run.schedule, Recompute::kNone);
    const auto size = static_cast<size_t>(options.mesh.world_size());
    std::vector<TrainedRank> with, without;
    for (const int64_t batches : {2, 0}) {
      std::vector<std::unique_ptr<offload::MemoryTier>> tiers;
      for (size_t r = 0; r < size; ++r) tiers.push_back(MakeTier(false));
      const TierOf tier_of = [&](size_t rank) { return tiers[rank].get(); };
      ASSERT_THAT(Train(options, run.offloads ? tier_of : nullptr,
                        batches > 0 ? with : without, batches),
                  Each(IsOk()));
    }
    for (size_t r = 0; r < size; ++r) {
      EXPECT_EQ(with[r].activation_bytes, without[r].activation_bytes);
      for (size_t step = 0; step < 3; ++step) {
        EXPECT_EQ(with[r].records[step].loss, without[r].records[step].loss);
        EXPECT_EQ(with[r].records[step].gradient_norm,
                  without[r].records[step].gradient_norm);
        EXPECT_NEAR(with[r].evaluations[step], alone[0].evaluations[step],
                    1e-5 * alone[0].evaluations[step]);
      }
    }
  }
}

// At stage 3, with weights in a tier that is not used in place.
TEST(TrainRankTest, ValidatesWithWeightsInATier) {
  RunOptions options =
      OddOptions({.dp = 2}, "1f1b", tensor_parallel::Recompute::kSelective);
  std::vector<TrainedRank> here, away, unread;
  ASSERT_THAT(Train(options, nullptr, here, 2), Each(IsOk()));
  zero3::testing::FarTier weights, others;
  options.state.parameter_tier = &weights;
  ASSERT_THAT(Train(options, nullptr, away, 2), Each(IsOk()));
  options.state.parameter_tier = &others;
  ASSERT_THAT(Train(options, nullptr, unread, 0), Each(IsOk()));
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(away[0].evaluations[step], here[0].evaluations[step]);
    EXPECT_EQ(away[0].records[step].loss, here[0].records[step].loss);
    EXPECT_EQ(away[0].records[step].loss, unread[0].records[step].loss);
  }
}

TEST(TrainRankTest, ValidationNeedsItsSamples) {
  std::vector<TrainedRank> ranks;
  EXPECT_THAT(
      Train(Options(), nullptr, ranks, 1000000),
      Each(StatusIs(absl::StatusCode::kOutOfRange,
                    AllOf(HasSubstr("validation"), HasSubstr("there are")))));
}

// Batches of 2, 4 and 8 sequences.
TEST(TrainRankTest, GrowingBatchesMatchOnEveryMesh) {
  using tensor_parallel::Recompute;
  struct Case {
    MeshSizes mesh;
    const char* schedule = "1f1b";
    bool offloads = false;
    bool evaluates = false;
  };
  const auto growing = [](const Case& run) {
    RunOptions options = OddOptions(run.mesh, run.schedule, Recompute::kNone);
    options.first_batch = 2;
    options.batch_warmup_steps = 2;
    return options;
  };
  std::vector<TrainedRank> alone, constant;
  ASSERT_THAT(Train(growing({}), nullptr, alone), Each(IsOk()));
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(alone[0].records[step].tokens, 13 * (int64_t{2} << step));
  }
  RunOptions small = OddOptions({}, "1f1b", Recompute::kNone);
  small.batch = 2;
  ASSERT_THAT(Train(small, nullptr, constant), Each(IsOk()));
  EXPECT_EQ(alone[0].records[0].loss, constant[0].records[0].loss);
  EXPECT_NE(alone[0].records[1].loss, constant[0].records[1].loss);
  for (const Case& run :
       {Case{{}, "gpipe", true}, Case{{.dp = 2}}, Case{{.dp = 2}, "1f1b", true},
        Case{{.pp = 2}}, Case{{.pp = 2}, "zb_h1", true, true},
        Case{{.tp = 2}, "1f1b", false, true}, Case{{.cp = 2}},
        Case{{.dp = 2, .pp = 2, .tp = 2}, "1f1b", false, true}}) {
    SCOPED_TRACE(absl::StrCat(run.schedule, " dp", run.mesh.dp, " pp",
                              run.mesh.pp, " tp", run.mesh.tp, run.offloads));
    const RunOptions options = growing(run);
    std::vector<std::unique_ptr<offload::MemoryTier>> tiers;
    for (int64_t r = 0; r < options.mesh.world_size(); ++r) {
      tiers.push_back(MakeTier(false));
    }
    const TierOf tier_of = [&](size_t rank) { return tiers[rank].get(); };
    std::vector<TrainedRank> ranks;
    ASSERT_THAT(Train(options, run.offloads ? tier_of : nullptr, ranks,
                      run.evaluates ? 2 : 0),
                Each(IsOk()));
    for (size_t step = 0; step < 3; ++step) {
      const StepRecord& expected = alone[0].records[step];
      EXPECT_EQ(ranks[0].records[step].tokens, expected.tokens);
      EXPECT_NEAR(ranks[0].records[step].loss, expected.loss,
                  1e-5 * expected.loss);
      EXPECT_NEAR(ranks[0].records[step].gradient_norm, expected.gradient_norm,
                  1e-5 * expected.gradient_norm);
    }
  }
}

TEST(TrainRankTest, GraphsRequireConstantBatch) {
  RunOptions options = Options();
  options.first_batch = 2;
  options.batch_warmup_steps = 2;
  options.graphs = GraphChoice::kOn;
  std::vector<TrainedRank> ranks;
  EXPECT_THAT(Train(options, nullptr, ranks),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("a batch that grows changes them"))));
}

// Trains and validates on one rank.
absl::StatusOr<TrainedRank> TrainOn(std::shared_ptr<const text::Corpus> corpus,
                                    const RunOptions& options,
                                    int64_t eval_batches,
                                    bool mask_prompts = true) {
  TESSERA_ASSIGN_OR_RETURN(
      const text::Samples samples,
      text::Samples::Create(std::move(corpus), {.sequence = options.length,
                                                .validation_fraction = 0.2,
                                                .seed = 5,
                                                .mask_prompts = mask_prompts}));
  TrainedRank trained;
  const std::vector<absl::Status> results = collectives::RunRanks(
      1, [&](collectives::Communicator& world) -> absl::Status {
        tensor_parallel::CpuOps ops({.threads = 1});
        TESSERA_ASSIGN_OR_RETURN(
            auto rank, TrainRank::Create(world, options, samples, ops));
        // The weights are those of the first step.
        if (eval_batches > 0) {
          TESSERA_ASSIGN_OR_RETURN(trained.evaluations.emplace_back(),
                                   rank->Evaluate(eval_batches));
        }
        for (int step = 0; step < 3; ++step) {
          TESSERA_ASSIGN_OR_RETURN(trained.records.emplace_back(),
                                   rank->Step());
        }
        return absl::OkStatus();
      });
  TESSERA_RETURN_IF_ERROR(results[0]);
  return trained;
}

// The loss of many batches of one sample is that of one batch of many: samples
// count by their targets. Samples of one token give the loss of each token.
TEST(TrainRankTest, LossesOfPromptsAreMeansOverTargets) {
  for (const int64_t length : {1, 13}) {
    RunOptions options = Options();
    options.length = length;
    options.dtype = DType::kF64;
    TESSERA_ASSERT_OK_AND_ASSIGN(const TrainedRank whole,
                                 TrainOn(testing::SmallPairs(), options, 5));
    RunOptions single = options;
    single.batch = 1;
    TESSERA_ASSERT_OK_AND_ASSIGN(const TrainedRank parts,
                                 TrainOn(testing::SmallPairs(), single, 40));
    EXPECT_NEAR(parts.evaluations[0], whole.evaluations[0],
                1e-12 * whole.evaluations[0]);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const TrainedRank unmasked,
        TrainOn(testing::SmallPairs(), options, 5, /*mask_prompts=*/false));
    EXPECT_GT(std::abs(unmasked.evaluations[0] - whole.evaluations[0]), 1e-6);
    EXPECT_NE(unmasked.records[0].loss, whole.records[0].loss);
  }
}

// One prompt nearly as long as the corpus.
TEST(TrainRankTest, ABatchWithoutTargetsHasNoLossAndNoGradients) {
  const std::string prompt(2000, 'p');
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto corpus,
      text::Corpus::FromDocuments({{{prompt, "c"}}}, text::ByteTokenizer()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainedRank trained,
                               TrainOn(corpus, Options(), 1));
  EXPECT_EQ(trained.evaluations[0], 0);
  for (const StepRecord& record : trained.records) {
    EXPECT_EQ(record.loss, 0);
    EXPECT_EQ(record.gradient_norm, 0);
    EXPECT_FALSE(record.skipped);
  }
}

// Masks that mask nothing, such as empty prompts, change no bit.
TEST(TrainRankTest, WithoutMasksNoBitChanges) {
  const RunOptions options = Options();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const TrainedRank masked,
      TrainOn(testing::SmallPairs(), options, 2, /*mask_prompts=*/false));
  std::vector<text::TokenId> ids(
      static_cast<size_t>(testing::SmallPairs()->token_count()));
  TESSERA_ASSERT_OK(testing::SmallPairs()->Read(0, ids));
  const std::string path = absl::StrCat(::testing::TempDir(), "/same.u16");
  TESSERA_ASSERT_OK(text::WriteTokenFile(path, ids));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto corpus, text::Corpus::Open({{path}}, text::ByteTokenizer()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainedRank plain,
                               TrainOn(corpus, options, 2));
  EXPECT_EQ(masked.evaluations, plain.evaluations);
  for (size_t step = 0; step < plain.records.size(); ++step) {
    EXPECT_EQ(masked.records[step].loss, plain.records[step].loss);
    EXPECT_EQ(masked.records[step].gradient_norm,
              plain.records[step].gradient_norm);
  }
}

TEST(TrainRankTest, LearnsOnOneRank) {
  const RunOptions options = Options();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const text::Samples samples,
      text::Samples::Create(testing::SmallText(),
                            {.sequence = options.length, .seed = 5}));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto engines,
                               collectives::CreateInProcessEngines(1));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto world, collectives::Communicator::Create(std::move(engines[0])));
  tensor_parallel::CpuOps ops({.threads = 1});
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto rank, TrainRank::Create(*world, options, samples, ops));
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const StepRecord record, rank->Step());
    losses.push_back(record.loss);
  }
  EXPECT_NEAR(losses.front(), std::log(264), 0.5);
  EXPECT_LT(losses.back(), losses.front() - 1);
}

}  // namespace
}  // namespace tessera::train
