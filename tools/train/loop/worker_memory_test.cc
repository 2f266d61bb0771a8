// Runs that change their strategy while running, because ranks exceed
// --memory_limit. The memory readings are simulated; the reactions are real.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/byte_size.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/accounting.h"
#include "tools/train/testing/run_job.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kLimit = 100'000'000;

std::string NewDirectory(std::string_view name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  return path;
}

// 4.9 million parameters: enough that moving state to files saves more memory
// than the buffers for it take.
model_files::ModelConfig LargerModel() {
  model_files::ModelConfig model = SmallModel();
  model.hidden = 256;
  model.intermediate = 768;
  model.layers = 6;
  model.head_size = 64;
  model.initializer_range = 0.02;
  return model;
}

class WorkerMemoryTest : public ::testing::Test {
 protected:
  WorkerMemoryTest() : temporary_(NewDirectory("temporary")) {
    setenv("TMPDIR", temporary_.c_str(), 1);
    settings_.parallel.mesh = {.dp = 2};
    settings_.steps = 6;
    settings_.parallel.memory_limit = ByteSize(kLimit);
  }
  ~WorkerMemoryTest() override {
    unsetenv("TMPDIR");
    EXPECT_TRUE(std::filesystem::is_empty(temporary_));
  }

  void TakeLargerModel() {
    model_ = LargerModel();
    settings_.batch = 2;
    settings_.length = 8;
    settings_.learning_rate = 1e-3;
    settings_.min_learning_rate = 1e-4;
  }

  // `used[i]` is the last rank's memory in step i; other ranks use little.
  JobRun RunWith(int64_t last_rank, const std::vector<int64_t>& used) const {
    const auto change = [&](int64_t rank, WorkerSinks& own) {
      const auto now = std::make_shared<int64_t>(0);
      own.before_step = [now, rank, this](int64_t step) {
        *now = step;
        if (rank == 0 && before_step_) before_step_(step);
        return absl::OkStatus();
      };
      const auto read = [now, &used, is_last = rank == last_rank] {
        const int64_t bytes =
            is_last ? used[static_cast<size_t>(*now)] : kLimit / 10;
        return ResidentMemory{bytes, bytes};
      };
      own.memory = MemoryWatch::System{.read = read,
                                       .restart_peak = [] { return true; },
                                       .return_free_memory = [] {},
                                       .now_ns = [] { return int64_t{0}; }};
    };
    return RunJob(settings_, change, model_);
  }

  std::vector<double> LossesWithoutLimit() const {
    Settings settings = settings_;
    settings.parallel.memory_limit = {};
    settings.run_dir = "";
    settings.checkpoint_every = 0;
    const JobRun run = RunJob(settings, nullptr, model_);
    EXPECT_THAT(run.statuses, Each(IsOk()));
    return run.losses();
  }

  static void ExpectSameLosses(const std::vector<double>& losses,
                               const std::vector<double>& expected) {
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(losses[step], expected[step], 1e-5 * expected[step]) << step;
    }
  }

  // Rank 0's messages about strategies.
  static std::vector<std::string> Notices(const JobRun& run) {
    std::vector<std::string> notices;
    for (const std::string_view line : absl::StrSplit(run.table, '\n')) {
      if (absl::StrContains(line, "memory: after")) notices.emplace_back(line);
    }
    return notices;
  }

  const std::string temporary_;
  std::function<void(int64_t step)> before_step_ = nullptr;  // For rank 0.
  Settings settings_ = SmallSettings();
  model_files::ModelConfig model_ = SmallModel();
};

constexpr int64_t kMuch = 10 * kLimit;
constexpr int64_t kLittle = kLimit / 2;

TEST_F(WorkerMemoryTest, AllRanksFollowRankShortOfMemory) {
  for (const char* mesh : {"dp2", "pp2,tp2", "dp2,cp2"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(settings_.parallel.mesh,
                                 topology::MeshSizes::Parse(mesh));
    SCOPED_TRACE(mesh);
    const int64_t last = absl::StrContains(mesh, ",") ? 3 : 1;
    const JobRun run =
        RunWith(last, {kLittle, kMuch, kLittle, kLittle, kLittle, kLittle});
    ASSERT_THAT(run.statuses, Each(IsOk()));
    ExpectSameLosses(run.losses(), LossesWithoutLimit());
    ASSERT_EQ(run.result.strategy_changes.size(), 1u);
    const StrategyChange& change = run.result.strategy_changes[0];
    EXPECT_EQ(change.steps, 2);
    EXPECT_EQ(change.used, kMuch);
    EXPECT_THAT(change.flags, HasSubstr("--recompute=full"));
    EXPECT_EQ(absl::StrContains(change.flags, "--zero=3"),
              absl::StrContains(mesh, "dp2"));
    EXPECT_THAT(Notices(run),
                ElementsAre(absl::StrCat("train: memory: after 2 steps: "
                                         "953.7MiB of --memory_limit=100MB"
                                         ": strategy ",
                                         change.strategy, ": ", change.flags)));
  }
}

TEST_F(WorkerMemoryTest, ClimbsUntilEnough) {
  TakeLargerModel();
  settings_.recompute = "full";  // Saves only about the 1 % required of a rung.
  settings_.run_dir = NewDirectory("climbing");
  settings_.checkpoint_every = 2;
  settings_.keep_checkpoints = 0;
  const JobRun run =
      RunWith(1, {kLimit * 985 / 1000, kLittle, kMuch, kMuch, kMuch, kMuch});
  ASSERT_THAT(run.statuses, Each(IsOk()));
  ExpectSameLosses(run.losses(), LossesWithoutLimit());
  const std::vector<StrategyChange>& changes = run.result.strategy_changes;
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].steps, 1);
  EXPECT_EQ(changes[0].strategy, "aggressive");
  EXPECT_THAT(changes[0].flags, HasSubstr("--zero=3"));
  EXPECT_THAT(changes[0].flags, Not(HasSubstr("--offload")));
  EXPECT_EQ(changes[1].steps, 3);
  EXPECT_EQ(changes[1].strategy, "extreme");
  EXPECT_THAT(changes[1].flags,
              HasSubstr("--offload_dir=" + settings_.run_dir + "/offload"));
  // Only once, although three more steps exceed the limit.
  const std::vector<std::string> notices = Notices(run);
  ASSERT_EQ(notices.size(), 3u);
  EXPECT_THAT(notices[2],
              HasSubstr("after 4 steps: 953.7MiB of "
                        "--memory_limit=100MB: no strategy needs less memory; "
                        "continues"));
  // The state is in memory at first and in files at the end.
  const auto optimizer = static_cast<size_t>(offload::Purpose::kOptimizer);
  for (const RankResult& rank : run.result.ranks) {
    EXPECT_GT(rank.memory.device[optimizer], 0);
    EXPECT_GT(rank.memory.file[optimizer], 0);
  }
  // Changing the strategy writes ordinary checkpoints; the last one is the
  // run's.
  for (const char* name : {"1", "2", "3", "4", "6"}) {
    EXPECT_TRUE(std::filesystem::exists(
        absl::StrCat(settings_.run_dir, "/checkpoints/step-0000000", name)))
        << name;
  }
  EXPECT_THAT(run.result.checkpoint, HasSubstr("step-00000006"));
  EXPECT_FALSE(std::filesystem::exists(settings_.run_dir + "/offload"));
}

TEST_F(WorkerMemoryTest, TriesCompressionBeforeFiles) {
  TakeLargerModel();
  settings_.zero = 3;
  settings_.recompute = "full";
  settings_.offload = "all";
  settings_.reduce = "each";
  settings_.gather_ahead = 0;
  const JobRun run =
      RunWith(1, {kMuch, kMuch, kLittle, kLittle, kLittle, kLittle});
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_EQ(run.losses(), LossesWithoutLimit());
  ASSERT_EQ(run.result.strategy_changes.size(), 2u);
  EXPECT_EQ(run.result.strategy_changes[0].strategy, "aggressive");
  EXPECT_EQ(run.result.strategy_changes[0].flags, "--compression=lossless");
  EXPECT_EQ(run.result.strategy_changes[1].strategy, "extreme");
  EXPECT_EQ(run.result.strategy_changes[1].flags,
            absl::StrCat("--offload_dir=", temporary_));
}

// Every layout, with part of the state in host memory and the rest in files.
TEST_F(WorkerMemoryTest, SpilledStateHasTheSameLosses) {
  settings_.parallel.memory_limit = {};
  settings_.offload = "none";
  const std::vector<double> expected = LossesWithoutLimit();
  settings_.zero = 3;
  settings_.offload_dir = NewDirectory("spilled");
  settings_.host_budget = ByteSize(40'000);
  settings_.pin_memory = true;
  for (const char* layout : {"chunks", "round_robin", "balanced"}) {
    settings_.layout = layout;
    for (const char* offload : {"grads", "all,activations"}) {
      settings_.offload = offload;
      SCOPED_TRACE(absl::StrCat(layout, " ", offload));
      const JobRun run = RunJob(settings_, nullptr, model_);
      ASSERT_THAT(run.statuses, Each(IsOk()));
      ExpectSameLosses(run.losses(), expected);
      for (const RankResult& rank : run.result.ranks) {
        const auto gradients =
            static_cast<size_t>(offload::Purpose::kGradients);
        EXPECT_LE(rank.memory.host[gradients], 40'000);
        EXPECT_GT(rank.memory.file[gradients], 0);
      }
    }
  }
}

TEST_F(WorkerMemoryTest, FullHostBudgetNamesBudgetAndNeed) {
  settings_.parallel.memory_limit = {};
  settings_.offload = "optimizer";
  settings_.host_budget = ByteSize(40'000);
  EXPECT_THAT(RunJob(settings_, nullptr, model_).statuses,
              Each(StatusIs(absl::StatusCode::kResourceExhausted,
                            HasSubstr("of the budget of 40000 bytes"))));
}

// At 70 % of the limit, a conservative run moves nothing.
TEST_F(WorkerMemoryTest, StrategyMovesBlocksToFiles) {
  const std::vector<double> expected = LossesWithoutLimit();
  settings_.offload = "optimizer";
  settings_.offload_dir = NewDirectory("moved");
  settings_.host_budget = ByteSize(100'000'000);
  const std::vector<int64_t> used(6, kLimit * 7 / 10);
  const auto optimizer = static_cast<size_t>(offload::Purpose::kOptimizer);
  for (const auto& [strategy, moves] :
       {std::pair{"conservative", false}, {"aggressive", true}}) {
    settings_.offload_strategy = strategy;
    const JobRun run = RunWith(0, used);
    ASSERT_THAT(run.statuses, Each(IsOk()));
    ExpectSameLosses(run.losses(), expected);
    const RankMemory& memory = run.result.ranks[0].memory;
    EXPECT_GT(memory.host[optimizer], 0);
    EXPECT_EQ(memory.file[optimizer] > 0, moves) << strategy;
    EXPECT_EQ(run.result.ranks[1].memory.file[optimizer], 0);
  }
}

TEST_F(WorkerMemoryTest, ChangesNothingBelowLimit) {
  const int64_t most = kLimit - kLimit / 50;
  const JobRun run = RunWith(1, std::vector<int64_t>(6, most));
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_EQ(run.losses(), LossesWithoutLimit());
  EXPECT_THAT(run.result.strategy_changes, IsEmpty());
  EXPECT_THAT(Notices(run), IsEmpty());
}

// There is no step left to train.
TEST_F(WorkerMemoryTest, ChangesNothingAfterLastStep) {
  const JobRun run =
      RunWith(1, {kLittle, kLittle, kLittle, kLittle, kLittle, kMuch});
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(run.result.strategy_changes, IsEmpty());
}

TEST_F(WorkerMemoryTest, ContinuesIfStrategyCannotChange) {
  TakeLargerModel();
  const std::vector<double> expected = LossesWithoutLimit();
  for (const char* blocked : {"offload", "checkpoints"}) {
    settings_.run_dir = NewDirectory("blocked");
    SCOPED_TRACE(blocked);
    const std::string path = absl::StrCat(settings_.run_dir, "/", blocked);
    // A file blocks the directory from the first step on.
    before_step_ = [path](int64_t step) {
      if (step > 1) return;
      std::filesystem::remove_all(path);
      if (step == 0) {
        TESSERA_EXPECT_OK(WriteFile(path, "a file"));
      }
      if (step == 1) std::filesystem::create_directory(path);
    };
    const JobRun run = RunWith(1, std::vector<int64_t>(6, kMuch));
    ASSERT_THAT(run.statuses, Each(IsOk()));
    EXPECT_EQ(run.losses(), expected);
    EXPECT_THAT(run.result.strategy_changes, IsEmpty());
    const std::vector<std::string> notices = Notices(run);
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_THAT(notices[0], HasSubstr("after 1 steps"));
    EXPECT_THAT(notices[0],
                HasSubstr("continues, since its strategy cannot be changed: "));
    EXPECT_THAT(notices[0], HasSubstr(path));
  }
}

}  // namespace
}  // namespace tessera::train
