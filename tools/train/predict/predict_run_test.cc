#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include "base/byte_size.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/predict/print_prediction.h"
#include "tools/train/predict/run_prediction.h"

namespace tessera::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr MachineRoom kRoomy = {
    .bytes = int64_t{1} << 40, .limit = "machine", .process = 10 << 20};

TEST(PredictRunTest, TheDefaultRunIsPredicted) {
  const Settings settings;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction run,
                               PredictRun(settings, model, {.room = kRoomy}));
  ASSERT_EQ(run.ranks.size(), 8u);
  EXPECT_EQ(run.ranks_like_each, 1);
  EXPECT_EQ(run.micro_batches, 8);
  EXPECT_TRUE(run.fits());
  EXPECT_THAT(run.advice, testing::IsEmpty());
  // 1F1B on two ranks: one of nine slots is a bubble (arXiv 2104.04473, section
  // 2.2); the head makes the last stage longer.
  EXPECT_NEAR(run.bubble, 1.0 / 9, 0.04);
  int64_t needed = 0, parameters = 0;
  for (const RankPrediction& rank : run.ranks) {
    needed += run.ResidentOf(rank);
    if (rank.place.dp == 0) parameters += rank.parameters;
    // The optimizer's state is in host memory: two moments of its shard.
    EXPECT_EQ(rank.state.optimizer, 0);
    EXPECT_EQ(rank.weights.elements, rank.parameters);
    EXPECT_EQ(rank.weights.trainable_elements, rank.parameters);
    EXPECT_EQ(rank.state.host, 8 * ((rank.parameters + 1) / 2));
  }
  EXPECT_EQ(run.needed, needed);
  // Norms are replicated on both tensor ranks.
  EXPECT_EQ(parameters, model.ParameterCount() + (2 * 4 + 1) * model.hidden);
}

TEST(PredictRunTest, GrowingBatchNeedsMemoryOfWholeBatch) {
  Settings settings;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction whole,
                               PredictRun(settings, model, {.room = kRoomy}));
  settings.batch_warmup = "2:1000";
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction growing,
                               PredictRun(settings, model, {.room = kRoomy}));
  EXPECT_EQ(growing.needed, whole.needed);
  EXPECT_EQ(growing.micro_batches, whole.micro_batches);
}

TEST(PredictRunTest, TheWorkOfAllStagesIsTheModels) {
  Settings settings;
  settings.recompute = "full";
  settings.parallel.mesh = {.pp = 2, .cp = 2, .tp = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig("llama-10m"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction run,
                               PredictRun(settings, model, {.room = kRoomy}));
  const double tokens = static_cast<double>(settings.batch * settings.length);
  const double forward = model.ForwardFlopsPerToken(settings.length) * tokens;
  EXPECT_NEAR(run.work.model, 3 * forward, 1);
  // All products except the last one of each layer.
  const double down = 2.0 * tokens * static_cast<double>(model.layers) *
                      static_cast<double>(model.hidden * model.intermediate);
  EXPECT_NEAR(run.work.recomputed / (forward - down), 1, 1e-9);
}

TEST(PredictRunTest, ThreadsShareAProcess) {
  Settings settings;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction apart,
                               PredictRun(settings, model, {.room = kRoomy}));
  settings.engine = "in_process";
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction run,
                               PredictRun(settings, model, {.room = kRoomy}));
  // Each process exposes the data it sends in shared memory.
  int64_t windows = 0;
  for (const RankPrediction& rank : apart.ranks) {
    EXPECT_GT(rank.windows, 1 << 20);
    windows += rank.windows;
  }
  EXPECT_EQ(apart.needed - run.needed, 7 * kRoomy.process + windows);
  EXPECT_EQ(run.ranks.front().windows, 0);
}

TEST(PredictRunTest, FewerProcessorsThanRanksNeedScratchForMessages) {
  Settings settings;
  settings.parallel.mesh = {.dp = 8};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  MachineRoom crowded = kRoomy;
  crowded.processors = 2;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction apart,
                               PredictRun(settings, model, {.room = kRoomy}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction run,
                               PredictRun(settings, model, {.room = crowded}));
  EXPECT_GT(run.ranks.front().windows, apart.ranks.front().windows);
}

TEST(PredictRunTest, CountsCopiesInMemory) {
  Settings settings;
  settings.parallel.mesh = {.dp = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction without,
                               PredictRun(settings, model, {.room = kRoomy}));
  settings.snapshot_every = 3;
  settings.max_restarts = 1;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction with,
                               PredictRun(settings, model, {.room = kRoomy}));
  const RankPrediction& rank = with.ranks.front();
  // Its half of the weights and moments.
  EXPECT_GE(rank.state.copy, 12 * (model.ParameterCount() / 2));
  EXPECT_EQ(with.PeakOf(rank),
            without.PeakOf(without.ranks.front()) + 4 * rank.state.copy);
}

// The final checkpoint is written without a copy; during other checkpoints the
// next step runs while a copy is written.
TEST(PredictRunTest, CheckpointsInTheMiddleComeOnTopOfAStep) {
  Settings settings;
  settings.parallel.mesh = {.dp = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction end,
                               PredictRun(settings, model, {.room = kRoomy}));
  const RankPrediction& rank = end.ranks.front();
  ASSERT_GT(rank.state.snapshot, 0);
  EXPECT_EQ(end.PeakOf(rank), rank.peak_bytes());
  settings.checkpoint_every = 10;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction middle,
                               PredictRun(settings, model, {.room = kRoomy}));
  EXPECT_EQ(middle.PeakOf(middle.ranks.front()),
            rank.peak_bytes() + rank.state.snapshot);
  settings.checkpoint_every = settings.steps;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction last,
                               PredictRun(settings, model, {.room = kRoomy}));
  EXPECT_EQ(last.PeakOf(last.ranks.front()), rank.peak_bytes());
}

TEST(PredictRunTest, PredictsLargestOfManyRanks) {
  Settings settings;
  settings.parallel.mesh = {.dp = 64, .pp = 2, .tp = 2};
  settings.batch = 256;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig("llama-50m"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction run,
                               PredictRun(settings, model, {.room = kRoomy}));
  EXPECT_EQ(run.ranks.size(), 2u);
  EXPECT_EQ(run.ranks_like_each, 128);
  EXPECT_EQ(run.needed, 128 * (run.ResidentOf(run.ranks[0]) +
                               run.ResidentOf(run.ranks[1])));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RunPrediction here,
      PredictRun(settings, model, {.room = kRoomy, .ranks_here = 8}));
  EXPECT_EQ(here.needed, 8 * std::max(here.ResidentOf(here.ranks[0]),
                                      here.ResidentOf(here.ranks[1])));
}

Settings Large() {
  Settings settings;
  settings.parallel.mesh = {.dp = 2};
  settings.zero = 1;
  settings.offload = "none";
  settings.batch = 16;
  settings.parallel.micro_batch = 4;
  settings.length = 512;
  return settings;
}

TEST(PredictRunTest, AdvisesIfRunDoesNotFit) {
  const Settings settings = Large();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig("llama-50m"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction roomy,
                               PredictRun(settings, model, {.room = kRoomy}));
  // Slightly too little memory, far too little, and hopelessly little.
  for (const double share : {0.99, 0.6, 0.001}) {
    const MachineRoom room = {.bytes = static_cast<int64_t>(
                                  share * static_cast<double>(roomy.needed)),
                              .limit = "machine",
                              .process = kRoomy.process};
    TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction run,
                                 PredictRun(settings, model, {.room = room}));
    EXPECT_FALSE(run.fits());
    ASSERT_FALSE(run.advice.empty()) << share;
    for (const MemoryAdvice& advice : run.advice) {
      EXPECT_LT(advice.needed, run.needed) << advice.flag;
      EXPECT_EQ(advice.fits, advice.needed <= room.bytes) << advice.flag;
    }
    EXPECT_EQ(run.advice.back().fits || run.advice.front().fits, share > 0.01)
        << share;
    std::ostringstream text;
    PrintPredictionText(run, text);
    EXPECT_THAT(text.str(), HasSubstr("IT DOES NOT FIT"));
    EXPECT_THAT(text.str(), HasSubstr(run.advice.front().flag));
  }
  // The advice predicts the same memory as a run that follows it.
  MachineRoom room = kRoomy;
  room.bytes = roomy.needed - 1;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction run,
                               PredictRun(settings, model, {.room = room}));
  Settings better = settings;
  better.parallel.micro_batch = 1;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction after,
                               PredictRun(better, model, {.room = room}));
  bool found = false;
  for (const MemoryAdvice& advice : run.advice) {
    if (advice.flag != "--micro_batch=1") continue;
    found = true;
    EXPECT_EQ(advice.needed, after.needed);
  }
  EXPECT_TRUE(found);
}

TEST(PredictRunTest, QueriesThisMachine) {
  const Settings settings;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction run,
                               PredictRun(settings, model));
  EXPECT_GT(run.room.bytes, 0);
  EXPECT_GT(run.room.process, 1 << 20);
  EXPECT_FALSE(run.room.limit.empty());
}

TEST(PredictRunTest, OffloadFollowsFlags) {
  Settings settings;
  settings.offload = "all";
  StateHomes homes = HomesOf(settings);
  EXPECT_EQ(homes.parameters, StateHome::kHost);
  EXPECT_EQ(homes.gradients, StateHome::kHost);
  EXPECT_EQ(homes.optimizer, StateHome::kHost);
  settings.offload_dir = "there";
  settings.zero = 1;
  settings.compression = "lossless";
  homes = HomesOf(settings);
  EXPECT_EQ(homes.parameters, StateHome::kMemory);
  EXPECT_EQ(homes.gradients, StateHome::kMemory);
  EXPECT_EQ(homes.optimizer, StateHome::kFiles);
  EXPECT_TRUE(homes.compressed);
  EXPECT_EQ(homes.activations, StateHome::kMemory);
  settings.offload = "activations";
  homes = HomesOf(settings);
  EXPECT_EQ(homes.optimizer, StateHome::kMemory);
  EXPECT_EQ(homes.activations, StateHome::kFiles);
  EXPECT_TRUE(homes.has(StateHome::kFiles));
  settings.offload = "none";
  EXPECT_FALSE(HomesOf(settings).has(StateHome::kFiles));
}

TEST(PredictRunTest, HostBudgetSpillsToFilesOrIsRejected) {
  Settings settings;
  settings.offload = "all";
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction whole,
                               PredictRun(settings, model));
  settings.host_budget = ByteSize(1'000'000);
  EXPECT_THAT(PredictRun(settings, model),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--host_budget=1MB: is too small"),
                             HasSubstr("of the budget of 1000000"),
                             HasSubstr("--offload_dir=DIR"))));
  settings.offload_dir = "there";
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction spilled,
                               PredictRun(settings, model));
  for (size_t i = 0; i < spilled.ranks.size(); ++i) {
    const StateMemory& memory = spilled.ranks[i].state;
    EXPECT_LE(memory.host, 1'000'000);
    EXPECT_GT(memory.host, 500'000);
    EXPECT_GE(memory.host + memory.files, whole.ranks[i].state.host);
  }
  std::ostringstream out;
  PrintPredictionText(spilled, out);
  EXPECT_THAT(out.str(), HasSubstr("host budget of a rank: 1MB, for 1MB of"));
  settings.pin_memory = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction pinned,
                               PredictRun(settings, model));
  EXPECT_EQ(pinned.ranks[0].state.host, 1'000'000);
}

TEST(PredictRunTest, TextAndJsonAgree) {
  const Settings settings;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunPrediction run,
                               PredictRun(settings, model, {.room = kRoomy}));
  const auto json = nlohmann::json::parse(PredictionAsJson(run));
  EXPECT_EQ(json["mesh"], "dp2,pp2,cp1,tp2");
  EXPECT_EQ(json["world_size"], 8);
  EXPECT_EQ(json["ranks"].size(), 8u);
  EXPECT_EQ(json["memory"]["needed"], run.needed);
  EXPECT_EQ(json["memory"]["fits"], true);
  const auto& first = json["ranks"][0];
  EXPECT_EQ(first["memory"]["resident"], run.ResidentOf(run.ranks[0]));
  int64_t tp = 0, expected = 0;
  for (const auto& one : first["traffic"]) {
    if (one["axis"] == "tp") tp += one["bytes"].get<int64_t>();
  }
  for (const auto& [key, traffic] : run.ranks[0].traffic.all()) {
    if (key.first == TrafficAxis::kTp) expected += traffic.bytes;
  }
  EXPECT_GT(tp, 0);
  EXPECT_EQ(tp, expected);
  std::ostringstream text;
  PrintPredictionText(run, text);
  for (const char* part :
       {"mesh dp2,pp2,cp1,tp2, order tp-cp-dp-pp: 8 ranks",
        "1f1b of 2 stages and 8 micro-batches",
        "gathers weights 1 layer ahead, reduces gradients at each micro-batch",
        "activations", "all_reduce", "it fits"}) {
    EXPECT_THAT(text.str(), HasSubstr(part));
  }
}

TEST(PredictRunTest, RejectsInvalidSettingsAndMeshes) {
  Settings settings;
  settings.batch = 3;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               model_files::PresetConfig(settings.model));
  EXPECT_THAT(
      PredictRun(settings, model, {.room = kRoomy}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--batch=3")));
  settings = Settings();
  settings.parallel.mesh = {.tp = 3};
  EXPECT_THAT(PredictRun(settings, model, {.room = kRoomy}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

class GivenLimits final : public offload::MemorySource {
 public:
  absl::StatusOr<offload::MemoryReading> Read() override {
    offload::MemoryReading reading;
    reading.limits = limits;
    reading.resident = 7;
    return reading;
  }
  std::vector<offload::MemoryLimit> limits;
};

TEST(MachineRoomTest, TheTightestLimitOfAllProcessesCounts) {
  GivenLimits source;
  EXPECT_THAT(ReadMachineRoom(source), StatusIs(absl::StatusCode::kNotFound));
  source.limits = {{.source = "machine", .used = 30, .limit = 100},
                   {.source = "cgroup /job", .used = 10, .limit = 50},
                   {.source = "RLIMIT_AS", .used = 10, .limit = 11}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const MachineRoom room, ReadMachineRoom(source));
  EXPECT_EQ(room.bytes, 40);
  EXPECT_EQ(room.limit, "cgroup /job");
  EXPECT_EQ(room.process, 7);
}

}  // namespace
}  // namespace tessera::train
