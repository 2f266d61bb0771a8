// Runs of DPO: their losses are those of TRL, and they resume with the
// references of their first step.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/loop/reference_file.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/testing/run_job.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

std::string Ids(int64_t count, int64_t first, int64_t step) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back((first + step * i) % 250);
  return absl::StrCat("[", absl::StrJoin(ids, ", "), "]");
}

// Eight pairs.
std::string PairsFile(int64_t shift = 0) {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/pairs", shift, ".jsonl");
  std::ofstream file(path);
  for (int64_t k = 0; k < 8; ++k) {
    file << "{\"prompt_ids\": " << Ids(2 + k % 3, 7 * k + 1 + shift, 3)
         << ", \"chosen_ids\": " << Ids(3 + k % 4, 11 * k + 2, 5)
         << ", \"rejected_ids\": " << Ids(2 + k % 5, 13 * k + 4, 7) << "}\n";
  }
  return path;
}

Settings DpoSettings() {
  Settings settings = SmallSettings();
  settings.objective = "dpo";
  settings.data = {PairsFile()};
  settings.batch = 16;
  settings.parallel.micro_batch = 4;
  settings.steps = 20;
  settings.learning_rate = 2e-3;
  settings.min_learning_rate = -1;
  settings.lr_schedule = "constant";
  settings.weight_decay = 0;
  settings.clip_norm = 0;
  return settings;
}

JobRun Train(const Settings& settings) {
  const TrainingData data = *OpenTrainingData(settings);
  return RunJob(settings, nullptr, SmallModel(), &data);
}

std::string NewDirectory(const std::string& name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

// TRL 1.16.0, DPOTrainer with beta 0.1, from the same weights, with torch's
// AdamW in f32 on the CPU; all pairs in each batch.
constexpr double kLossesOfTrl[] = {
    0.69314718, 0.57981938, 0.51045650, 0.46008551, 0.41966137,
    0.38612092, 0.36110538, 0.33762473, 0.31482202, 0.29540190,
    0.27923021, 0.26461729, 0.25123301, 0.23915994, 0.22783683,
    0.21679804, 0.20664577, 0.19762976, 0.18914165, 0.18091479};

TEST(DpoTest, LossesAreThoseOfTrl) {
  for (const MeshSizes& mesh : {MeshSizes{}, MeshSizes{.dp = 2, .tp = 2},
                                MeshSizes{.pp = 2, .cp = 2}}) {
    Settings settings = DpoSettings();
    settings.parallel.mesh = mesh;
    settings.zero = mesh.dp == 2 ? 3 : 0;
    const JobRun run = Train(settings);
    for (const absl::Status& status : run.statuses) TESSERA_ASSERT_OK(status);
    const std::vector<double> losses = run.losses();
    ASSERT_EQ(losses.size(), std::size(kLossesOfTrl));
    double worst = 0;
    for (size_t i = 0; i < losses.size(); ++i) {
      worst = std::max(worst, std::abs(losses[i] - kLossesOfTrl[i]));
    }
    EXPECT_LT(worst, 1e-4);
    std::cout << mesh.ToString() << ": at most " << worst << " from TRL\n";
    EXPECT_GT(*run.result.steps.back().record.reward_accuracy, 0.9);
  }
}

TEST(DpoTest, ResumesWithTheReferencesOfItsFirstStep) {
  Settings settings = DpoSettings();
  settings.steps = 8;
  settings.validation_fraction = 0.25;
  settings.eval_every = 4;
  settings.eval_batches = 1;
  settings.batch = 4;
  settings.run_dir = NewDirectory("run");
  settings.checkpoint_every = 4;
  settings.keep_checkpoints = 0;
  const JobRun whole = Train(settings);
  TESSERA_ASSERT_OK(whole.statuses[0]);
  EXPECT_TRUE(whole.result.steps[3].record.eval_loss.has_value());
  Settings rest = settings;
  rest.resume = settings.run_dir + "/checkpoints/step-00000004";
  rest.run_dir = NewDirectory("rest");
  rest.parallel.mesh = {.dp = 1, .tp = 2};
  const JobRun resumed = Train(rest);
  TESSERA_ASSERT_OK(resumed.statuses[0]);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(resumed.losses()[i], whole.losses()[i + 4], 1e-5);
  }
  EXPECT_EQ(*ReadFile(rest.run_dir + "/references.bin", 1 << 20),
            *ReadFile(settings.run_dir + "/references.bin", 1 << 20));
  // Without them, or with damaged ones, the reference is unknown.
  const std::string file = settings.run_dir + "/references.bin";
  rest.run_dir = NewDirectory("damaged");
  std::string bytes = *ReadFile(file, 1 << 20);
  bytes.back() ^= 1;
  TESSERA_ASSERT_OK(WriteFile(file, bytes));
  EXPECT_THAT(Train(rest).statuses[0],
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is damaged")));
  std::filesystem::remove(file);
  EXPECT_THAT(Train(rest).statuses[0],
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("the log-probabilities of the run's "
                                 "reference")));
}

TEST(DpoTest, ReferencesBelongToAModelAndData) {
  const Settings settings = DpoSettings();
  const TrainingData data = *OpenTrainingData(settings);
  const RunIdentity identity = IdentityOf(settings, SmallModel(), data);
  const std::string path = NewDirectory("file") + "/references.bin";
  const std::vector<double> numbers = {-1.5, -2};
  TESSERA_ASSERT_OK(WriteReferences(path, identity, numbers));
  EXPECT_THAT(ReadReferences(path, identity), IsOkAndHolds(numbers));
  Settings others = settings;
  others.data = {PairsFile(/*shift=*/1)};
  const TrainingData other = *OpenTrainingData(others);
  EXPECT_THAT(
      ReadReferences(path, IdentityOf(settings, SmallModel(), other)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("other data")));
  RunIdentity deeper = identity;
  deeper.model.layers = 5;
  EXPECT_THAT(
      ReadReferences(path, deeper),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("other model")));
}

}  // namespace
}  // namespace tessera::train
