// Runs real processes and threads with a program controlled by its settings.
// The test's binary is also the program of its ranks.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/engine/engine_registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/launch/launch_command.h"
#include "tools/launch/rank_processes.h"
#include "tools/train/launch/rank_process.h"
#include "tools/train/launch/supervise.h"
#include "tools/train/launch/world.h"
#include "tools/train/watch/live_place.h"
#include "topology/config/strategies.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using topology::CommunicationStrategy;

// Executes "RANK:VERB[:ARGUMENT]" from Settings::data on that rank.
absl::Status Act(const std::vector<std::string>& action,
                 const RankContext& rank) {
  const std::string& verb = action[1];
  if (verb == "kill") raise(SIGKILL);
  if (verb == "exit") _exit(3);
  if (verb == "sleep") sleep(60);
  // A data loader that waits for data.
  if (verb == "load") {
    const ActionScope place(RankAction::kLoadData);
    return ReadFile(action[2], 1000).status();
  }
  for (int64_t i = 0; verb == "slow" && i < 8; ++i) {
    const ActionScope place(RankAction::kForward, i);
    absl::SleepFor(absl::Milliseconds(500));
  }
  if (verb == "step") rank.on_step();
  if (verb == "fail") return absl::ResourceExhaustedError("the disk is full");
  if (verb == "refuse") return absl::InvalidArgumentError("another model");
  // Dies only the first time.
  if (verb == "killonce" && std::filesystem::create_directory(action[2])) {
    raise(SIGKILL);
  }
  return absl::OkStatus();
}

// Returns the sum of all ranks' numbers plus one, as text.
absl::StatusOr<std::string> Add(collectives::Communicator& world) {
  std::vector<int64_t> value = {world.rank().value() + 1};
  TESSERA_RETURN_IF_ERROR(world.AllReduce(collectives::Buffer(std::span(value)),
                                          collectives::Reduction::Sum()));
  return world.rank().value() == 0 ? absl::StrCat(value[0]) : "ignored";
}

absl::StatusOr<RankProgram> MakeActor(const Settings& settings) {
  if (settings.model == "unmade") return absl::NotFoundError("no such model");
  return [settings](const RankContext& rank) -> absl::StatusOr<std::string> {
    for (const std::string& text : settings.data) {
      const std::vector<std::string> action = absl::StrSplit(text, ':');
      if (action[0] != absl::StrCat(rank.world.rank().value())) continue;
      TESSERA_RETURN_IF_ERROR(Act(action, rank));
    }
    TESSERA_ASSIGN_OR_RETURN(std::string sum, Add(rank.world));
    if (rank.collectives->Take().empty()) {
      return absl::InternalError("the all-reduce was not logged");
    }
    return absl::StrCat(sum, settings.resume);
  };
}

Settings Job(const std::string& engine, std::vector<std::string> actions = {}) {
  return {.data = std::move(actions),
          .parallel = {.mesh = {.dp = 2, .tp = 2},
                       .strategy = CommunicationStrategy::kRing,
                       .timeout = absl::Seconds(30)},
          .engine = engine};
}

class AttemptTest : public testing::TestWithParam<std::string> {
 protected:
  AttemptTest() {
    files_.directory = testing::TempDir() + "/ranks";
    options_ = {.files = files_, .program = tools::OwnPath().value()};
  }
  void TearDown() override {
    EXPECT_THAT(tools::ListChildren().value(), IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(files_.directory));
  }

  AttemptOutcome Run(const Settings& settings) {
    return RunAttempt(settings, options_);
  }

  AttemptFiles files_;
  AttemptOptions options_;
};

bool HasEngine(const std::string& engine) {
  return CheckEngine({.engine = engine}).ok();
}

using EveryEngineTest = AttemptTest;

TEST_P(EveryEngineTest, ReturnsResultOfRankZero) {
  if (!HasEngine(GetParam())) GTEST_SKIP() << "not built in";
  const AttemptOutcome outcome = Run(Job(GetParam(), {"0:step"}));
  TESSERA_ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.result, "10");
  EXPECT_TRUE(outcome.took_a_step);
}

TEST_P(EveryEngineTest, NamesFailedRankAndReason) {
  if (!HasEngine(GetParam())) GTEST_SKIP() << "not built in";
  const AttemptOutcome outcome = Run(Job(GetParam(), {"2:fail"}));
  EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kResourceExhausted,
                                       HasSubstr("rank 2: the disk is full")));
  EXPECT_EQ(outcome.rank, 2);
  EXPECT_FALSE(outcome.died);
  EXPECT_FALSE(outcome.took_a_step);
  EXPECT_TRUE(MayPass(outcome));
}

TEST_P(EveryEngineTest, ReportsInvalidProgramOnce) {
  if (!HasEngine(GetParam())) GTEST_SKIP() << "not built in";
  Settings settings = Job(GetParam());
  settings.model = "unmade";
  const AttemptOutcome outcome = Run(settings);
  EXPECT_THAT(outcome.status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such")));
  EXPECT_FALSE(MayPass(outcome));
}

// Nobody writes the FIFO that rank 1 reads.
TEST_P(EveryEngineTest, NamesRankThatHangsInItsDataLoader) {
  if (!HasEngine(GetParam())) GTEST_SKIP() << "not built in";
  const std::string fifo = testing::TempDir() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  files_.flight = testing::TempDir() + "/flight";
  std::string notices;
  options_ = {.files = files_,
              .program = tools::OwnPath().value(),
              .notice = [&](const std::string& line) { notices += line; }};
  Settings settings = Job(GetParam(), {"1:load:" + fifo});
  settings.hang_timeout = "2s";
  const AttemptOutcome outcome = Run(settings);
  std::filesystem::remove(fifo);
  EXPECT_THAT(std::string(outcome.status.message()),
              HasSubstr("rank 1 hangs: no progress for 2s (--hang_timeout); "
                        "all ranks were ended"));
  EXPECT_EQ(outcome.rank, 1);
  EXPECT_TRUE(MayPass(outcome));
  EXPECT_THAT(notices,
              AllOf(HasSubstr("rank 1 hangs"), HasSubstr("; killed\n"),
                    HasSubstr("  rank 1: load data, for "),
                    HasSubstr("at attempt_test.cc:"), HasSubstr("ReadFile"),
                    ContainsRegex("rank 3: .*; in all_reduce #[0-9]+ of world, "
                                  "8 bytes for .*, which waits for rank 1"),
                    Not(HasSubstr("rank 0 hangs")), HasSubstr(files_.flight)));
  for (const char* const rank : {"0", "1", "2", "3"}) {
    EXPECT_TRUE(std::filesystem::exists(
        absl::StrCat(files_.flight, "/rank", rank, ".json")));
  }
  std::filesystem::remove_all(files_.flight);
}

// Rank 1 takes longer than the timeout, but goes on; the others wait for it.
TEST_P(EveryEngineTest, ToleratesSlowRank) {
  if (!HasEngine(GetParam())) GTEST_SKIP() << "not built in";
  Settings settings = Job(GetParam(), {"1:slow"});
  settings.hang_timeout = "3s";
  const AttemptOutcome outcome = Run(settings);
  TESSERA_ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.result, "10");
}

INSTANTIATE_TEST_SUITE_P(Engines, EveryEngineTest,
                         testing::Values("shared_memory", "in_process", "gloo"),
                         [](const auto& info) { return info.param; });

TEST_F(AttemptTest, NamesKilledRankAndEndsOthers) {
  const auto begin = std::chrono::steady_clock::now();
  const AttemptOutcome outcome =
      Run(Job("shared_memory", {"3:kill", "1:sleep"}));
  EXPECT_THAT(
      std::string(outcome.status.message()),
      AllOf(HasSubstr("rank 3 (pid "), HasSubstr("was killed by SIGKILL"),
            HasSubstr("all ranks were ended")));
  EXPECT_EQ(outcome.rank, 3);
  EXPECT_TRUE(outcome.died);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(AttemptTest, TreatsExitWithoutReportAsDeath) {
  const AttemptOutcome outcome = Run(Job("shared_memory", {"1:exit"}));
  EXPECT_THAT(std::string(outcome.status.message()),
              AllOf(HasSubstr("rank 1 (pid "), HasSubstr("code 3")));
  EXPECT_TRUE(outcome.died);
}

TEST_F(AttemptTest, ReportsDeathOfThreadProcess) {
  const AttemptOutcome outcome = Run(Job("in_process", {"2:kill"}));
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("SIGKILL"));
  EXPECT_TRUE(outcome.died);
  EXPECT_TRUE(MayPass(outcome));
}

TEST_F(AttemptTest, RestartsAfterDeath) {
  const std::string once = testing::TempDir() + "/once";
  std::vector<std::string> notices;
  Settings settings = Job("shared_memory", {"1:killonce:" + once});
  settings.max_restarts = 1;
  const AttemptOutcome outcome = Supervise(
      settings,
      {.attempt = [&](const Settings& s) { return Run(s); },
       .last_checkpoint = [] { return " after step 20"; },
       .is_valid = [](const Settings&) { return true; },
       .notice = [&](const std::string& line) { notices.push_back(line); }});
  TESSERA_ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.result, "10 after step 20");
  EXPECT_THAT(notices, testing::SizeIs(1));
}

TEST_F(AttemptTest, RejectsInvalidMeshBeforeStart) {
  Settings settings = Job("shared_memory");
  settings.parallel.mesh.dp = 0;
  EXPECT_THAT(Run(settings).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dp0")));
}

TEST(CheckEngineTest, AcceptsKnownEnginesAndListsThem) {
  TESSERA_EXPECT_OK(CheckEngine({.engine = "shared_memory"}));
  TESSERA_EXPECT_OK(CheckEngine({.engine = "in_process"}));
  EXPECT_THAT(CheckEngine({.engine = "tin_cans"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--engine=tin_cans"),
                             HasSubstr("shared_memory"))));
  EXPECT_THAT(CheckEngine({.engine = "nccl"}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("CPU")));
}

TEST(RunThreadsTest, ReturnsRankZerosResultOrTheCause) {
  for (const CommunicationStrategy strategy :
       {CommunicationStrategy::kRing, CommunicationStrategy::kTree,
        CommunicationStrategy::kHierarchical,
        CommunicationStrategy::kAllReduce}) {
    Settings settings = Job("in_process");
    settings.parallel.strategy = strategy;
    EXPECT_THAT(RunThreads(settings, MakeActor(settings).value()),
                IsOkAndHolds("10"));
  }
  const Settings failing = Job("in_process", {"3:fail"});
  EXPECT_THAT(RunThreads(failing, MakeActor(failing).value()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("rank 3: the disk is full")));
}

TEST(RankProcessTest, ArgumentsAreRecognised) {
  std::vector<std::string> arguments = RankArguments({"/x"}, true);
  arguments.insert(arguments.begin(), "train");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  EXPECT_TRUE(IsRankProcess(static_cast<int>(argv.size()), argv.data()));
  EXPECT_FALSE(IsRankProcess(1, argv.data()));
}

}  // namespace
}  // namespace tessera::train

int main(int argc, char** argv) {
  using namespace tessera::train;
  if (IsRankProcess(argc, argv)) return RankProcessMain(argc, argv, MakeActor);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
