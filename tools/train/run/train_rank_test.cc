// That a run learns; ../parity compares every mesh with one rank.
#include "tools/train/run/train_rank.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/in_process/in_process.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/cpu/cpu_ops.h"
#include "tools/train/testing/small_text.h"

namespace tessera::train {
namespace {

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
