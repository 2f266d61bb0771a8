// Tests the outputs of a run: metrics, checkpoints that other runs resume from,
// traces.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/train/loop/worker.h"
#include "tools/train/report/run_trace.h"
#include "tools/train/report/step_activity.h"
#include "tools/train/testing/run_job.h"

namespace tessera::train {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

std::string NewDirectory(std::string_view name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  return path;
}

// Waits for a checkpoint that is written in the background.
void AwaitDirectory(const std::string& path) {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (!std::filesystem::exists(path) && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(5));
  }
}

// Six steps on four ranks, with a checkpoint every two steps.
Settings SixSteps(std::string_view name) {
  Settings settings = SmallSettings();
  settings.parallel.mesh = {.dp = 2, .pp = 2};
  settings.zero = 3;
  settings.steps = 6;
  settings.checkpoint_every = 2;
  settings.keep_checkpoints = 0;
  settings.run_dir = NewDirectory(name);
  settings.metrics = settings.run_dir + "/metrics.jsonl";
  return settings;
}

// Stops the run after five steps and counts them.
JobRun StopBehindStepFive(const Settings& settings, int64_t& steps) {
  return RunJob(settings, [&](int64_t rank, WorkerSinks& own) {
    own.before_step = [&settings](int64_t step) {
      if (step < 5) return absl::OkStatus();
      AwaitDirectory(settings.run_dir + "/checkpoints/step-00000004");
      return absl::CancelledError("stop here");
    };
    if (rank == 0) own.on_step = [&steps] { ++steps; };
  });
}

void ExpectMetrics(const std::string& path, const std::vector<double>& losses) {
  const std::string text = *ReadFile(path, 1 << 20);
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), losses.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json line = Json::parse(lines[i]);
    EXPECT_EQ(line["step"], i);
    EXPECT_EQ(line["loss"].get<double>(), losses[i]);
    EXPECT_EQ(line["ranks"], 4);
  }
}

TEST(WorkerOutputsTest, ResumedRunMatchesUninterruptedRun) {
  Settings settings = SixSteps("whole");
  const JobRun whole = RunJob(settings);
  ASSERT_THAT(whole.statuses, Each(IsOk()));
  EXPECT_THAT(whole.result.checkpoint,
              HasSubstr(settings.run_dir + "/checkpoints/step-"));
  ASSERT_TRUE(std::filesystem::exists(whole.result.checkpoint));
  const std::vector<double> expected = whole.losses();
  ExpectMetrics(settings.metrics, expected);

  settings = SixSteps("stopped");
  settings.tensorboard = settings.run_dir + "/events";
  settings.html = settings.run_dir + "/run.html";
  int64_t steps = 0;
  EXPECT_THAT(StopBehindStepFive(settings, steps).statuses, Each(Not(IsOk())));
  EXPECT_EQ(steps, 5);
  settings.resume = "latest";
  const JobRun resumed = RunJob(settings);
  ASSERT_THAT(resumed.statuses, Each(IsOk()));
  EXPECT_EQ(resumed.result.first_step, 4);
  EXPECT_EQ(resumed.losses(),
            std::vector<double>(expected.begin() + 4, expected.end()));
  ExpectMetrics(settings.metrics, expected);
  const std::filesystem::directory_iterator events(settings.tensorboard);
  EXPECT_EQ(std::distance(begin(events), end(events)), 2);

  // The page has a tooltip for each step of both attempts.
  const std::string page = *ReadFile(settings.html, 1 << 24);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_THAT(page,
                HasSubstr(absl::StrCat("<title>step ", i + 1, ": training ")));
  }
  EXPECT_THAT(page, HasSubstr("6 of 6, ended"));
  EXPECT_THAT(page, HasSubstr("data-name=\"rank 1\""));

  settings.parallel.mesh = {.tp = 2};
  settings.tensorboard = "";
  settings.html = "";
  settings.resume = settings.run_dir + "/checkpoints/step-00000004";
  settings.metrics = "";
  const JobRun elsewhere = RunJob(settings);
  ASSERT_THAT(elsewhere.statuses, Each(IsOk()));
  ASSERT_EQ(elsewhere.losses().size(), 2u);
  EXPECT_NEAR(elsewhere.losses()[1], expected[5], 1e-5 * expected[5]);
}

TEST(WorkerOutputsTest, ReportsValidationWithoutChangingLosses) {
  Settings settings = SixSteps("validated");
  settings.steps = 5;
  settings.validation_fraction = 0.2;
  settings.eval_batches = 2;
  const JobRun without = RunJob(settings);
  ASSERT_THAT(without.statuses, Each(IsOk()));
  settings = SixSteps("validated");
  settings.steps = 5;
  settings.validation_fraction = 0.2;
  settings.eval_batches = 2;
  settings.eval_every = 2;
  const JobRun run = RunJob(settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_EQ(run.losses(), without.losses());
  const std::string text = *ReadFile(settings.metrics, 1 << 20);
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 5u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json line = Json::parse(lines[i]);
    const auto& loss = run.result.steps[i].record.eval_loss;
    EXPECT_EQ(without.result.steps[i].record.eval_loss, std::nullopt);
    // After every second step and the last.
    ASSERT_EQ(loss.has_value(), i == 1 || i == 3 || i == 4);
    ASSERT_EQ(line.contains("eval_loss"), loss.has_value());
    if (!loss) continue;
    EXPECT_EQ(line["eval_loss"].get<double>(), *loss);
    EXPECT_EQ(line["eval_perplexity"].get<double>(), std::exp(*loss));
  }
  // It cannot continue with other samples held out.
  settings.resume = "latest";
  settings.steps = 6;
  settings.validation_fraction = 0.1;
  EXPECT_THAT(RunJob(settings).statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("number of validation samples"))));
}

TEST(WorkerOutputsTest, TheTestFollowsTheLastStepOnEveryMesh) {
  Settings settings = SixSteps("tested");
  settings.steps = 3;
  settings.test_fraction = 0.2;
  const JobRun run = RunJob(settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(run.result.steps[i].record.test_loss.has_value(), i == 2);
  }
  const double loss = *run.result.steps[2].record.test_loss;
  EXPECT_NE(loss, run.result.steps[2].record.loss);
  settings = SixSteps("tested elsewhere");
  settings.steps = 3;
  settings.test_fraction = 0.2;
  settings.parallel.mesh = {};
  const JobRun alone = RunJob(settings);
  ASSERT_THAT(alone.statuses, Each(IsOk()));
  EXPECT_NEAR(*alone.result.steps[2].record.test_loss, loss, 1e-5 * loss);
  // Other samples are not trained on.
  settings = SixSteps("untested");
  settings.steps = 3;
  EXPECT_NE(RunJob(settings).losses(), run.losses());
}

// The learning rate is so large after the first steps that losses rise.
TEST(WorkerOutputsTest, TheBestValidatedCheckpointStaysAndIsResumed) {
  Settings settings = SixSteps("best");
  settings.validation_fraction = 0.2;
  settings.eval_batches = 2;
  settings.eval_every = 1;
  settings.checkpoint_every = 0;
  settings.keep_checkpoints = 1;
  settings.keep_best = true;
  settings.resume = "best";
  EXPECT_THAT(
      RunJob(settings).statuses,
      Each(StatusIs(absl::StatusCode::kNotFound, HasSubstr("--resume=best"))));
  settings.resume = "";
  settings.learning_rate = settings.min_learning_rate = 0.3;
  const JobRun run = RunJob(settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  size_t best = 0;
  for (size_t step = 0; step < 6; ++step) {
    const auto& steps = run.result.steps;
    ASSERT_TRUE(steps[step].record.eval_loss.has_value());
    if (*steps[step].record.eval_loss < *steps[best].record.eval_loss) {
      best = step;
    }
  }
  ASSERT_LT(best, 5u);
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(settings.run_dir + "/checkpoints")) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre(
                  absl::StrCat("step-0000000", best + 1), "step-00000006"));

  // The steps after it repeat, and do not replace it.
  settings.resume = "best";
  settings.metrics = "";
  const JobRun again = RunJob(settings);
  ASSERT_THAT(again.statuses, Each(IsOk()));
  EXPECT_EQ(again.result.first_step, static_cast<int64_t>(best) + 1);
  const std::vector<double> losses = run.losses();
  EXPECT_EQ(again.losses(),
            std::vector<double>(losses.begin() + best + 1, losses.end()));
  EXPECT_TRUE(std::filesystem::exists(
      absl::StrCat(settings.run_dir, "/checkpoints/step-0000000", best + 1)));
}

// A parsed trace, in microseconds.
struct Traced {
  using Track = std::pair<int, int>;  // Rank and thread.
  std::map<Track, std::vector<std::pair<double, double>>> slices;
  // The summed durations by step, rank and thread.
  std::map<int, std::map<int, std::map<int, double>>> sums;
  int ranks = 0;
  int forwards = 0;
};

void AddEvent(const Json& event, Traced& traced) {
  if (event["name"] == "process_name") ++traced.ranks;
  if (event["ph"] == "M") return;
  ASSERT_EQ(event["ph"], "X");
  const int rank = event["pid"], thread = event["tid"];
  const double begin = event["ts"], duration = event["dur"];
  EXPECT_GE(begin, 0);
  traced.slices[{rank, thread}].emplace_back(begin, begin + duration);
  // Overlaps with the rank's own work.
  if (event["cat"] == "checkpoint" || event["cat"] == "state") return;
  traced.sums[event["args"]["step"]][rank][thread] += duration;
  if (event["cat"] != "F" || thread != 0) return;
  ++traced.forwards;
  // dp is inner to pp, and the first pipeline rank has the embedding and two
  // layers.
  EXPECT_EQ(event["args"]["stage"].get<int>() / 3, rank / 2);
  EXPECT_LT(event["args"]["microbatch"], 4);
}

Traced ReadTrace(const std::string& path) {
  Traced traced;
  const Json events = Json::parse(*ReadFile(path, 1 << 24))["traceEvents"];
  for (const Json& event : events) AddEvent(event, traced);
  return traced;
}

// The mean over ranks, by thread.
std::vector<double> MeanShares(
    const std::map<int, std::map<int, double>>& ranks) {
  std::vector<double> mean(kAllDoings.size(), 0.0);
  for (const auto& [rank, by_thread] : ranks) {
    double whole = 0;
    for (const auto& [thread, sum] : by_thread) whole += sum;
    for (const auto& [thread, sum] : by_thread) {
      mean[static_cast<size_t>(thread)] +=
          sum / whole / static_cast<double>(ranks.size());
    }
  }
  return mean;
}

TEST(WorkerOutputsTest, TraceMatchesShares) {
  Settings settings = SixSteps("traced");
  settings.offload = "all";
  settings.trace = settings.run_dir + "/trace.json";
  const JobRun run = RunJob(settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  Traced traced = ReadTrace(settings.trace);
  EXPECT_EQ(traced.ranks, 4);
  EXPECT_GE(traced.forwards, 3 * 4 * 4);
  EXPECT_EQ(traced.slices.count({0, 5}), 1u);  // Checkpoints.
  for (auto& [track, slices] : traced.slices) {
    std::sort(slices.begin(), slices.end());
    for (size_t i = 1; i < slices.size(); ++i) {
      EXPECT_LE(slices[i - 1].second, slices[i].first + 1e-3);
    }
  }
  ASSERT_EQ(traced.sums.size(), kTracedSteps);
  for (const auto& [step, ranks] : traced.sums) {
    ASSERT_EQ(ranks.size(), 4u);
    const std::vector<double> mean = MeanShares(ranks);
    const TimeShares& shares =
        run.result.steps[static_cast<size_t>(step)].shares;
    EXPECT_NEAR(mean[0] + mean[1], shares.compute, 1e-6);
    EXPECT_NEAR(mean[1], shares.optimizer, 1e-6);
    EXPECT_NEAR(mean[2], shares.communication, 1e-6);
    EXPECT_NEAR(mean[3], shares.bubble, 1e-6);
    EXPECT_NEAR(mean[4], shares.offload, 1e-6);
  }
}

}  // namespace
}  // namespace tessera::train
