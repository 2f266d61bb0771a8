// A checkpoint of any sharding loads into any other bit for bit, and training
// continues as if uninterrupted.
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/testing/state.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using testing::AllOk;
using testing::BitCollector;
using testing::NewDirectory;
using testing::OnRanks;
using testing::RankGroups;
using testing::ReadValues;
using testing::ToyModel;
using testing::TrainSteps;
using Values = std::vector<std::vector<double>>;

constexpr LayoutKind kLayouts[] = {LayoutKind::kChunks, LayoutKind::kRoundRobin,
                                   LayoutKind::kBalanced};
constexpr int64_t kRanks[] = {1, 2, 3, 4, 8};

// The sharding of a state.
struct Sharding {
  int stage = 3;
  int64_t ranks = 1;
  LayoutKind layout = LayoutKind::kChunks;
};

ShardedStateOptions OptionsOf(const Sharding& sharding) {
  ShardedStateOptions options;
  options.stage = sharding.stage;
  options.layout = sharding.layout;
  options.persistence_threshold = sharding.ranks % 2 == 0 ? 25 : 0;
  options.adamw = {.learning_rate = 0.01, .weight_decay = 0.1};
  options.bucket_bytes = 300;
  return options;
}

absl::StatusOr<std::unique_ptr<ShardedState>> NewState(
    const Sharding& sharding, const RankGroups& groups) {
  return ShardedState::Create(ToyModel(DType::kF32), OptionsOf(sharding),
                              groups.of_state());
}

// The bits after training from the first values to step `end`, and saving.
struct Saved {
  std::string path;
  testing::StateBits bits;
};
Saved TrainAndSave(const Sharding& sharding, int64_t parts, int64_t end) {
  const std::string directory = NewDirectory("reshard");
  BitCollector collector;
  absl::Mutex mutex;
  Saved saved;
  EXPECT_THAT(
      AllOk(OnRanks(
          sharding.ranks, 1,
          [&](const RankGroups& groups) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(auto state, NewState(sharding, groups));
            TESSERA_RETURN_IF_ERROR(testing::FillFirst(*state));
            TESSERA_RETURN_IF_ERROR(TrainSteps(*state, groups, parts, 0, end));
            TESSERA_RETURN_IF_ERROR(collector.Add(*state));
            TESSERA_ASSIGN_OR_RETURN(
                const std::string path,
                SaveCheckpoint(groups.of_checkpoint(),
                               {.directory = directory, .block_elements = 17},
                               *state, {{"position", "42"}}));
            absl::MutexLock lock(&mutex);
            saved.path = path;
            return absl::OkStatus();
          })),
      IsOk());
  saved.bits = collector.bits();
  return saved;
}

testing::StateBits LoadBits(const std::string& path, const Sharding& sharding) {
  BitCollector collector;
  EXPECT_THAT(
      AllOk(OnRanks(sharding.ranks, 1,
                    [&](const RankGroups& groups) -> absl::Status {
                      TESSERA_ASSIGN_OR_RETURN(auto state,
                                               NewState(sharding, groups));
                      TESSERA_ASSIGN_OR_RETURN(
                          const LoadedCheckpoint loaded,
                          LoadCheckpoint(path, groups.of_checkpoint(), *state));
                      if (loaded.step != state->steps() ||
                          loaded.metadata.at("position") != "42") {
                        return absl::UnavailableError("wrong step or metadata");
                      }
                      return collector.Add(*state);
                    })),
      IsOk());
  return collector.bits();
}

// Trains to step `end`, from `path` if not empty; returns rank 0's values.
Values TrainOn(const Sharding& sharding, int64_t parts, const std::string& path,
               int64_t end) {
  Values values;
  EXPECT_THAT(AllOk(OnRanks(
                  sharding.ranks, 1,
                  [&](const RankGroups& groups) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(auto state,
                                             NewState(sharding, groups));
                    int64_t begin = 0;
                    if (path.empty()) {
                      TESSERA_RETURN_IF_ERROR(testing::FillFirst(*state));
                    } else {
                      TESSERA_ASSIGN_OR_RETURN(
                          const LoadedCheckpoint loaded,
                          LoadCheckpoint(path, groups.of_checkpoint(), *state));
                      begin = loaded.step;
                    }
                    TESSERA_RETURN_IF_ERROR(
                        TrainSteps(*state, groups, parts, begin, end));
                    TESSERA_ASSIGN_OR_RETURN(Values mine, ReadValues(*state));
                    if (groups.rank == 0) values = std::move(mine);
                    return absl::OkStatus();
                  })),
              IsOk());
  return values;
}

class ReshardTest : public ::testing::TestWithParam<std::tuple<int, int64_t>> {
};

TEST_P(ReshardTest, EveryShardingLoadsTheSameBits) {
  const auto [stage, ranks] = GetParam();
  const Sharding from = {stage, ranks, kLayouts[(stage + ranks) % 3]};
  const Saved saved = TrainAndSave(from, 24, 4);
  ASSERT_FALSE(saved.bits.empty());
  TESSERA_EXPECT_OK(VerifyCheckpoint(saved.path));
  int count = 0;
  for (int to_stage = 0; to_stage < 4; ++to_stage) {
    for (const int64_t to_ranks : kRanks) {
      const Sharding to = {to_stage, to_ranks, kLayouts[count++ % 3]};
      ASSERT_EQ(LoadBits(saved.path, to), saved.bits)
          << "stage " << to_stage << ", " << to_ranks << " ranks";
    }
  }
}

// With the same number of ranks, sums have the same parts in the same order at
// every stage and layout, so results agree bit for bit.
TEST_P(ReshardTest, TrainingResumesBitForBitOnSameRankCount) {
  const auto [stage, ranks] = GetParam();
  const Sharding from = {stage, ranks, kLayouts[(stage + ranks) % 3]};
  const Sharding to = {(stage + 1) % 4, ranks, kLayouts[(stage + 1) % 3]};
  const Values expected = TrainOn(to, ranks, "", 20);
  EXPECT_EQ(TrainOn(to, ranks, TrainAndSave(from, ranks, 10).path, 20),
            expected);
}

TEST_P(ReshardTest, TrainingResumesOnOtherRankCount) {
  const auto [stage, ranks] = GetParam();
  const Sharding from = {stage, ranks, kLayouts[(stage + ranks) % 3]};
  const Sharding to = {3 - stage, ranks == 1 ? 3 : ranks / 2};
  const Values expected = TrainOn(from, 24, "", 20);
  const Values actual = TrainOn(to, 24, TrainAndSave(from, 24, 10).path, 20);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t p = 0; p < actual.size(); ++p) {
    ASSERT_EQ(actual[p].size(), expected[p].size());
    for (size_t e = 0; e < actual[p].size(); ++e) {
      ASSERT_NEAR(actual[p][e], expected[p][e],
                  1e-6 * (1 + std::abs(expected[p][e])));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReshardTest,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3),
                                            ::testing::ValuesIn(kRanks)));

}  // namespace
}  // namespace tessera::zero3
