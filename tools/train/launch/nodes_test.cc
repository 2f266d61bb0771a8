#include "tools/train/launch/nodes.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/launch/supervise.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tools::RankStart;
using topology::Rank;

// A run of four ranks on two nodes at the start.
Settings FourRanks() {
  Settings settings;
  settings.parallel.mesh = {.dp = 4};
  settings.max_restarts = 3;
  settings.snapshot_every = 1;
  return settings;
}

class NodesTest : public testing::Test {
 protected:
  NodesTest() : directory_(testing::TempDir() + "/exchange") {}
  ~NodesTest() override { AttemptFiles{directory_}.Remove(); }

  std::unique_ptr<Nodes> Join(int64_t node,
                              absl::Duration patience = absl::Seconds(20)) {
    return Nodes::Join({.place = {.nodes = 2, .node = node},
                        .directory = directory_,
                        .patience = patience,
                        .silence = absl::Seconds(2),
                        .notice = [](const std::string&) {}})
        .value();
  }
  absl::StatusOr<Settings> Begin(Nodes& nodes) {
    return nodes.Begin([settings = settings_](int64_t count) {
      return FitCrew(settings, 2, count);
    });
  }
  // All begin the same attempt.
  void BeginAll(std::vector<Nodes*> nodes) {
    std::vector<std::thread> threads;
    for (Nodes* const one : nodes) {
      threads.emplace_back([this, one] { TESSERA_EXPECT_OK(Begin(*one)); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // Nodes 0 and 1.
  std::pair<std::unique_ptr<Nodes>, std::unique_ptr<Nodes>> MeetBoth() {
    std::unique_ptr<Nodes> first = Join(0), second = Join(1);
    BeginAll({first.get(), second.get()});
    return {std::move(first), std::move(second)};
  }

  AttemptFiles files(int64_t attempt = 1) const {
    return {absl::StrCat(directory_, "/", attempt)};
  }

  // Calls TakeOver once per second until it returns ranks.
  static std::vector<RankStart> AwaitTakeOver(Nodes& nodes) {
    for (int i = 0; i < 20; ++i) {
      std::vector<RankStart> starts = nodes.TakeOver();
      if (!starts.empty()) return starts;
      absl::SleepFor(absl::Milliseconds(500));
    }
    return {};
  }

  const std::string directory_;
  Settings settings_ = FourRanks();
};

TEST_F(NodesTest, EachNodeStartsItsRanks) {
  auto [first, second] = MeetBoth();
  EXPECT_THAT(
      first->AwaitRanks(),
      IsOkAndHolds(ElementsAre(RankStart{Rank(0)}, RankStart{Rank(1)})));
  EXPECT_THAT(
      second->AwaitRanks(),
      IsOkAndHolds(ElementsAre(RankStart{Rank(2)}, RankStart{Rank(3)})));
  EXPECT_EQ(first->size(), 2);
  EXPECT_TRUE(first->IsHere(Rank(1)));
  EXPECT_FALSE(first->IsHere(Rank(2)));
  EXPECT_THAT(first->TakeOver(), IsEmpty());
  EXPECT_THAT(first->RanksToEnd(), IsEmpty());
  EXPECT_FALSE(first->MustGrow());
  TESSERA_EXPECT_OK(first->End(absl::OkStatus(), true));
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(directory_));
  TESSERA_EXPECT_OK(second->End(absl::OkStatus(), true));
  second.reset();
  EXPECT_FALSE(std::filesystem::exists(directory_));
}

// Its ranks are started again only if others have left a round because of them.
TEST_F(NodesTest, TakesOverMissedRanks) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(first->AwaitRanks());
  TESSERA_ASSERT_OK(second->AwaitRanks());
  second.reset();
  absl::SleepFor(absl::Seconds(3));
  EXPECT_THAT(first->TakeOver(), IsEmpty());
  TESSERA_ASSERT_OK(files().WriteRound(0, 1));
  TESSERA_ASSERT_OK(files().WriteRound(1, 1));
  EXPECT_THAT(AwaitTakeOver(*first),
              ElementsAre(RankStart{Rank(2), 1}, RankStart{Rank(3), 1}));
  EXPECT_EQ(files().ReadRound(3), 1);
  EXPECT_TRUE(first->IsHere(Rank(2)));
  EXPECT_THAT(first->TakeOver(), IsEmpty());
  EXPECT_FALSE(files().ReadEnding().has_value());
}

// The new processes help the others to save their copies, and the next attempt
// has fewer ranks. It grows when another node comes.
TEST_F(NodesTest, ShrinksWithoutPlaceForLostRanks) {
  settings_.min_dp = 1;
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(first->AwaitRanks());
  TESSERA_ASSERT_OK(second->AwaitRanks());
  second.reset();
  TESSERA_ASSERT_OK(files().WriteRound(0, 1));
  EXPECT_THAT(AwaitTakeOver(*first),
              ElementsAre(RankStart{Rank(2), 1}, RankStart{Rank(3), 1}));
  ASSERT_TRUE(files().ReadEnding().has_value());
  EXPECT_EQ(files().ReadEnding()->round, 1);
  const absl::Status lost = files().ReadEnding()->cause.status;
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kUnavailable,
                             HasSubstr("node of rank 2, 3")));
  EXPECT_EQ(first->End(lost, false), lost);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Settings settings, Begin(*first));
  EXPECT_EQ(settings.parallel.mesh.dp, 2);
  EXPECT_EQ(first->attempt(), 2);
  EXPECT_EQ(first->size(), 1);
  EXPECT_THAT(
      first->AwaitRanks(),
      IsOkAndHolds(ElementsAre(RankStart{Rank(0)}, RankStart{Rank(1)})));
  EXPECT_FALSE(first->MustGrow());

  second = Join(1);
  TESSERA_ASSERT_OK(Begin(*second));
  EXPECT_EQ(second->attempt(), 2);
  for (int i = 0; i < 20 && !first->MustGrow(); ++i) {
    absl::SleepFor(absl::Milliseconds(200));
    first->TakeOver();
  }
  EXPECT_TRUE(first->MustGrow());
  EXPECT_FALSE(second->MustGrow());
  TESSERA_ASSERT_OK(WriteFile(files(2).stopped_by(), "a new host"));
  EXPECT_THAT(second->AwaitRanks(), IsOkAndHolds(IsEmpty()));
  BeginAll({first.get(), second.get()});
  EXPECT_EQ(first->attempt(), 3);
  EXPECT_EQ(second->size(), 2);
  EXPECT_THAT(
      second->AwaitRanks(),
      IsOkAndHolds(ElementsAre(RankStart{Rank(2)}, RankStart{Rank(3)})));
}

// With a node in reserve, the run does not shrink.
TEST_F(NodesTest, NodesInReserveComeFirst) {
  settings_.min_dp = 1;
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(first->AwaitRanks());
  const std::unique_ptr<Nodes> reserve = Join(2);
  TESSERA_ASSERT_OK(Begin(*reserve));
  second.reset();
  TESSERA_ASSERT_OK(files().WriteRound(0, 1));
  std::thread thread([&] { EXPECT_THAT(AwaitTakeOver(*first), IsEmpty()); });
  EXPECT_THAT(
      reserve->AwaitRanks(),
      IsOkAndHolds(ElementsAre(RankStart{Rank(2), 1}, RankStart{Rank(3), 1})));
  thread.join();
  EXPECT_THAT(first->RanksToEnd(), IsEmpty());
  EXPECT_FALSE(files().ReadEnding().has_value());
}

// After the last replacement the run ends with its copies.
TEST_F(NodesTest, EndsWithoutReplacements) {
  settings_.max_restarts = 0;
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(first->AwaitRanks());
  second.reset();
  TESSERA_ASSERT_OK(files().WriteRound(0, 1));
  EXPECT_THAT(AwaitTakeOver(*first),
              ElementsAre(RankStart{Rank(2), 1}, RankStart{Rank(3), 1}));
  EXPECT_TRUE(files().ReadEnding().has_value());
}

TEST_F(NodesTest, FirstNodeMayBeLost) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(second->AwaitRanks());
  first.reset();
  TESSERA_ASSERT_OK(files().WriteRound(3, 2));
  EXPECT_THAT(AwaitTakeOver(*second),
              ElementsAre(RankStart{Rank(0), 1}, RankStart{Rank(1), 1}));
}

// Without copies an attempt fails when node 0 is lost: node 1 goes on.
TEST_F(NodesTest, AnyNodeMayBeginAnAttempt) {
  settings_.min_dp = 1;
  settings_.snapshot_every = 0;
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(second->AwaitRanks());
  first.reset();
  EXPECT_THAT(second->End(absl::AbortedError("rank 2: lost rank 0"), false),
              StatusIs(absl::StatusCode::kAborted));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Settings settings, Begin(*second));
  EXPECT_EQ(settings.parallel.mesh.dp, 2);
  EXPECT_THAT(
      second->AwaitRanks(),
      IsOkAndHolds(ElementsAre(RankStart{Rank(0)}, RankStart{Rank(1)})));
}

// It was silent for too long: another node has its ranks.
TEST_F(NodesTest, EndsRanksTakenOverByOtherNode) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(second->AwaitRanks());
  const std::string start = *ReadFile(files().directory + "/start", 1000);
  const std::string name = start.substr(0, start.find(' '));
  TESSERA_ASSERT_OK(
      WriteFile(files().directory + "/homes",
                absl::StrCat(name, " ", name, " ", name, " ", name)));
  EXPECT_THAT(second->TakeOver(), IsEmpty());
  EXPECT_THAT(second->RanksToEnd(), ElementsAre(Rank(2), Rank(3)));
}

TEST_F(NodesTest, FailureReachesOtherNodes) {
  for (const bool is_final : {false, true}) {
    auto [first, second] = MeetBoth();
    TESSERA_ASSERT_OK(first->AwaitRanks());
    TESSERA_ASSERT_OK(second->AwaitRanks());
    EXPECT_THAT(
        second->End(absl::DataLossError("the disk is broken"), is_final),
        StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_THAT(first->RanksToEnd(), ElementsAre(Rank(0), Rank(1)));
    EXPECT_THAT(first->End(absl::AbortedError("killed"), false),
                StatusIs(is_final ? absl::StatusCode::kCancelled
                                  : absl::StatusCode::kAborted,
                         HasSubstr("node 1: the disk is broken")));
    second.reset();
    first.reset();
    EXPECT_FALSE(std::filesystem::exists(directory_));
  }
}

TEST_F(NodesTest, NamesMissingNodes) {
  std::unique_ptr<Nodes> nodes = Join(0, absl::Seconds(1));
  EXPECT_THAT(Begin(*nodes),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("node 1 of 2 has not started"),
                             HasSubstr("--node_rank"))));
  nodes.reset();
  nodes = Join(1, absl::Seconds(1));
  EXPECT_THAT(Begin(*nodes),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("node 0 of 2 has not started")));
}

TEST_F(NodesTest, BeginsWithFewerNodesIfItMay) {
  settings_.min_dp = 2;
  const std::unique_ptr<Nodes> nodes = Join(0, absl::Seconds(1));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Settings settings, Begin(*nodes));
  EXPECT_EQ(settings.parallel.mesh.dp, 2);
}

TEST_F(NodesTest, RejectsRunningNode) {
  const auto nodes = MeetBoth();
  EXPECT_THAT(
      Nodes::Join({.place = {.nodes = 2, .node = 1}, .directory = directory_}),
      StatusIs(absl::StatusCode::kAlreadyExists,
               HasSubstr("node 1 of the run")));
}

// The first node does not disturb a run that goes on without it.
TEST_F(NodesTest, LostFirstNodeComesBackInReserve) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(second->AwaitRanks());
  EXPECT_TRUE(Nodes::IsRunning(directory_));
  first.reset();
  absl::SleepFor(absl::Seconds(3));
  EXPECT_TRUE(Nodes::IsRunning(directory_));
  const std::unique_ptr<Nodes> back = Join(0);
  TESSERA_ASSERT_OK(Begin(*back));
  EXPECT_EQ(back->attempt(), 1);
  EXPECT_THAT(back->TakeOver(), IsEmpty());
  EXPECT_FALSE(back->IsHere(Rank(0)));
}

TEST_F(NodesTest, IgnoresFilesOfEarlierRun) {
  EXPECT_FALSE(Nodes::IsRunning(directory_));
  for (const int64_t attempt : {1, 7}) {
    TESSERA_ASSERT_OK(files(attempt).Make());
    TESSERA_ASSERT_OK(WriteFile(directory_ + "/node1", "name 000000007 1"));
  }
  EXPECT_FALSE(Nodes::IsRunning(directory_));
  const auto nodes = MeetBoth();
  EXPECT_EQ(nodes.first->attempt(), 1);
  EXPECT_FALSE(std::filesystem::exists(files(7).directory));
}

TEST_F(NodesTest, SurvivesDamagedFiles) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(first->AwaitRanks());
  for (const char* const file :
       {"1/start", "1/homes", "1/failed", "1/ending", "node1",
        "node99999999999999999999", "nodex", "1/rank2.round", "1/round0"}) {
    for (const std::string& text :
         {std::string(), std::string("\0\xff 7 \n x", 9),
          std::string(5000, ' '), std::string("1\n77 77")}) {
      TESSERA_ASSERT_OK(WriteFile(absl::StrCat(directory_, "/", file), text));
      first->TakeOver();
      first->RanksToEnd();
      first->MustGrow();
    }
  }
}

TEST(VariablesOfRoundTest, OthersFindRankZero) {
  const AttemptFiles files = {testing::TempDir() + "/rounds"};
  TESSERA_ASSERT_OK(files.Make());
  const auto variables = [](std::string rank) {
    return [rank](std::string_view name) -> std::optional<std::string> {
      if (name == "RANK") return rank;
      if (name == "MASTER_ADDR") return "127.0.0.1";
      return std::nullopt;
    };
  };
  const absl::Duration soon = absl::Milliseconds(200);
  EXPECT_THAT(VariablesOfRound(files, 2, variables("3"), soon),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 has not joined round 2")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto first, VariablesOfRound(files, 2, variables("0"), soon));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto other, VariablesOfRound(files, 2, variables("3"), soon));
  EXPECT_EQ(first("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(other("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(other("TESSERA_MASTER_PORT"), first("TESSERA_MASTER_PORT"));
  EXPECT_EQ(other("RANK"), "3");
  TESSERA_ASSERT_OK(files.WriteRound(0, 4));
  EXPECT_THAT(
      VariablesOfRound(files, 3, variables("3"), absl::Hours(1)),
      StatusIs(absl::StatusCode::kAborted, HasSubstr("gone on to round 4")));
  files.Remove();
}

TEST(CheckPlaceTest, RejectsInvalidPlaces) {
  setenv("TESSERA_JOB_SECRET", "0123456789abcdef", 1);
  Settings settings;
  settings.engine = "auto";
  settings.run_dir = "run";
  settings.parallel.mesh.dp = 4;
  const NodePlace place = {.nodes = 2, .node = 1, .master_addr = "host0"};
  TESSERA_EXPECT_OK(CheckPlace(place, settings));
  TESSERA_EXPECT_OK(CheckPlace({}, Settings()));
  using Change = std::function<void(NodePlace&, Settings&)>;
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](auto& p, auto&) { p.nodes = 0; }, "--nnodes=0"},
      {[](auto& p, auto&) { p.nodes = 3; }, "--nnodes=3: does not divide"},
      {[](auto& p, auto&) { p.node = 2; }, "--node_rank=2: expected 0 to 1"},
      {[](auto& p, auto&) { p.node = -1; }, "--node_rank=-1"},
      {[](auto& p, auto&) { p.master_addr = ""; }, "--master_addr="},
      {[](auto&, auto& s) { s.run_dir = ""; }, "--run_dir="},
      {[](auto&, auto& s) { s.engine = "shared_memory"; }, "--engine="},
      {[](auto& p, auto& s) {
         p.nodes = 1, p.node = 0;
         s.max_dp = 8;
       },
       "--max_dp=8: a run on one host does not grow above the dp 4"}};
  for (const auto& [change, message] : cases) {
    NodePlace changed = place;
    Settings with = settings;
    change(changed, with);
    EXPECT_THAT(
        CheckPlace(changed, with),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
  settings.snapshot_every = 1;
  settings.max_restarts = 1;
  TESSERA_EXPECT_OK(CheckPlace({2, 2, "host0"}, settings));
  unsetenv("TESSERA_JOB_SECRET");
  EXPECT_THAT(CheckPlace(place, settings),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("TESSERA_JOB_SECRET")));
}

}  // namespace
}  // namespace tessera::train
