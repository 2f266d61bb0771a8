// The strongest check: any mesh has the losses of one rank.
#include "tools/train/run/train_rank.h"

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/in_process/in_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/cpu/cpu_ops.h"
#include "tools/text/corpus/corpus.h"
#include "tools/text/tokenizer/byte_tokenizer.h"

namespace tessera::train {
namespace {

std::shared_ptr<const text::Corpus> Text() {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += "the " + std::to_string(i * i % 97) + " foxes jump over dog " +
            std::to_string(i) + ".\n";
  }
  const std::string texts[] = {text};
  return *text::Corpus::FromTexts(texts, text::ByteTokenizer());
}

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
  options.steps = 4;
  options.learning_rate = {.peak = 0.01, .least = 0.001, .total_steps = 4};
  options.state.stage = 0;
  options.state.clip_norm = 1;
  return options;
}

std::vector<StepRecord> Train(const RunOptions& options) {
  const int64_t ranks = options.mesh.world_size();
  auto engines = collectives::CreateInProcessEngines(ranks);
  const auto samples =
      text::Samples::Create(Text(), {.sequence = options.length, .seed = 5});
  std::vector<std::vector<StepRecord>> records(static_cast<size_t>(ranks));
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      results[r] = [&]() -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(auto world, collectives::Communicator::Create(
                                                 std::move((*engines)[r])));
        tensor_parallel::CpuOps ops({.threads = 1});
        TESSERA_ASSIGN_OR_RETURN(
            auto rank, TrainRank::Create(*world, options, *samples, ops));
        for (int64_t step = 0; step < options.steps; ++step) {
          TESSERA_ASSIGN_OR_RETURN(records[r].emplace_back(), rank->Step());
        }
        return absl::OkStatus();
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) EXPECT_THAT(result, IsOk());
  for (const auto& of_rank : records) {
    if (of_rank.size() != records[0].size()) return {};
    for (size_t s = 0; s < of_rank.size(); ++s) {
      EXPECT_EQ(of_rank[s].loss, records[0][s].loss);
    }
  }
  return records[0];
}

void ExpectSame(const std::vector<StepRecord>& actual,
                const std::vector<StepRecord>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t s = 0; s < actual.size(); ++s) {
    EXPECT_NEAR(actual[s].loss, expected[s].loss,
                tolerance * std::abs(expected[s].loss))
        << "step " << s;
    EXPECT_NEAR(actual[s].gradient_norm, expected[s].gradient_norm,
                10 * tolerance * expected[s].gradient_norm)
        << "step " << s;
  }
}

TEST(TrainRankTest, LearnsOnOneRank) {
  RunOptions options = Options();
  options.steps = 12;
  options.learning_rate.total_steps = 12;
  const auto records = Train(options);
  ASSERT_EQ(records.size(), 12u);
  EXPECT_NEAR(records[0].loss, std::log(264), 0.5);
  EXPECT_LT(records.back().loss, records[0].loss - 1);
}

TEST(TrainRankTest, EveryMeshHasTheLossesOfOneRank) {
  const std::vector<StepRecord> expected = Train(Options());
  for (const MeshSizes mesh :
       {MeshSizes{.dp = 2}, MeshSizes{.pp = 2}, MeshSizes{.cp = 2},
        MeshSizes{.tp = 2}, MeshSizes{.dp = 2, .tp = 2},
        MeshSizes{.pp = 2, .tp = 2}, MeshSizes{.cp = 2, .tp = 2},
        MeshSizes{.dp = 2, .cp = 2}, MeshSizes{.tp = 4}, MeshSizes{.pp = 4},
        MeshSizes{.dp = 2, .pp = 2, .tp = 2},
        MeshSizes{.dp = 2, .pp = 2, .cp = 2}}) {
    RunOptions options = Options();
    options.mesh = mesh;
    SCOPED_TRACE(::testing::Message() << "dp" << mesh.dp << ",pp" << mesh.pp
                                      << ",cp" << mesh.cp << ",tp" << mesh.tp);
    ExpectSame(Train(options), expected, 1e-5);
    options.sequence_parallel = true;
    ExpectSame(Train(options), expected, 1e-5);
  }
}

TEST(TrainRankTest, EveryZeroStageHasTheLossesOfOneRank) {
  const std::vector<StepRecord> expected = Train(Options());
  for (int stage : {0, 1, 2, 3}) {
    for (const MeshSizes mesh : {MeshSizes{}, MeshSizes{.dp = 4},
                                 MeshSizes{.dp = 2, .pp = 2, .tp = 2}}) {
      RunOptions options = Options();
      options.mesh = mesh;
      options.state.stage = stage;
      ExpectSame(Train(options), expected, 1e-5);
    }
  }
}

TEST(TrainRankTest, EveryScheduleHasTheLossesOfOneRank) {
  const std::vector<StepRecord> expected = Train(Options());
  for (const auto& [name, chunks] :
       std::vector<std::pair<std::string, int>>{{"gpipe", 1},
                                                {"sequential", 1},
                                                {"interleaved_1f1b", 2},
                                                {"looped_bfs", 2},
                                                {"round_robin", 2},
                                                {"zb_h1", 1},
                                                {"zb_h2", 1},
                                                {"zb_v", 2},
                                                {"v_half", 2},
                                                {"v_min", 2}}) {
    RunOptions options = Options();
    options.mesh = {.pp = 2};
    options.schedule = name;
    options.chunks = chunks;
    SCOPED_TRACE(name);
    ExpectSame(Train(options), expected, 1e-5);
    options.state.stage = 3;
    options.mesh.dp = 2;
    ExpectSame(Train(options), expected, 1e-5);
  }
}

TEST(TrainRankTest, RecomputingChangesNoBit) {
  RunOptions options = Options();
  options.mesh = {.pp = 2, .tp = 2};
  const std::vector<StepRecord> expected = Train(options);
  for (const auto recompute : {tensor_parallel::Recompute::kSelective,
                               tensor_parallel::Recompute::kFull}) {
    options.recompute = recompute;
    ExpectSame(Train(options), expected, 0);
  }
}

TEST(TrainRankTest, TiedEmbeddingsHaveTheLossesOfOneRank) {
  RunOptions options = Options();
  options.model.tied_embeddings = true;
  const std::vector<StepRecord> expected = Train(options);
  options.mesh = {.pp = 2, .tp = 2};
  ExpectSame(Train(options), expected, 1e-5);
}

}  // namespace
}  // namespace tessera::train
