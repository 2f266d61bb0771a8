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

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tools::RankStart;
using topology::Rank;

class NodesTest : public testing::Test {
 protected:
  NodesTest() { files_.directory = testing::TempDir() + "/exchange"; }
  ~NodesTest() override { files_.Remove(); }

  Nodes::Options Options(int64_t node) {
    return {.place = {.nodes = 2, .node = node},
            .files = files_,
            .ranks = 4,
            .most_rounds = 3,
            .patience = absl::Seconds(20),
            .silence = absl::Seconds(2),
            .notice = [](const std::string&) {},
            .prepare = [this] { return files_.Make(); }};
  }

  // Nodes 0 and 1.
  std::pair<std::unique_ptr<Nodes>, std::unique_ptr<Nodes>> MeetBoth() {
    std::unique_ptr<Nodes> first;
    std::thread thread([&] { first = Nodes::Meet(Options(0)).value(); });
    std::unique_ptr<Nodes> second = Nodes::Meet(Options(1)).value();
    thread.join();
    return {std::move(first), std::move(second)};
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

  AttemptFiles files_;
};

TEST_F(NodesTest, EachNodeStartsItsRanks) {
  const auto [first, second] = MeetBoth();
  EXPECT_THAT(
      first->AwaitRanks(),
      IsOkAndHolds(ElementsAre(RankStart{Rank(0)}, RankStart{Rank(1)})));
  EXPECT_THAT(
      second->AwaitRanks(),
      IsOkAndHolds(ElementsAre(RankStart{Rank(2)}, RankStart{Rank(3)})));
  EXPECT_TRUE(first->IsHere(Rank(1)));
  EXPECT_FALSE(first->IsHere(Rank(2)));
  EXPECT_THAT(first->TakeOver(), IsEmpty());
  EXPECT_THAT(first->RanksToEnd(), IsEmpty());
  TESSERA_EXPECT_OK(first->Leave(absl::OkStatus(), true));
  EXPECT_TRUE(std::filesystem::exists(files_.directory));
  TESSERA_EXPECT_OK(second->Leave(absl::OkStatus(), true));
  EXPECT_FALSE(std::filesystem::exists(files_.directory));
}

// Its ranks are started again only if others have left a round because of them.
TEST_F(NodesTest, TakesOverMissedRanks) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(first->AwaitRanks());
  TESSERA_ASSERT_OK(second->AwaitRanks());
  second.reset();
  absl::SleepFor(absl::Seconds(3));
  EXPECT_THAT(first->TakeOver(), IsEmpty());
  TESSERA_ASSERT_OK(files_.WriteRound(0, 1));
  TESSERA_ASSERT_OK(files_.WriteRound(1, 1));
  EXPECT_THAT(AwaitTakeOver(*first),
              ElementsAre(RankStart{Rank(2), 1}, RankStart{Rank(3), 1}));
  EXPECT_EQ(files_.ReadRound(3).number, 1);
  EXPECT_TRUE(first->IsHere(Rank(2)));
  EXPECT_THAT(first->TakeOver(), IsEmpty());
}

TEST_F(NodesTest, FirstNodeMayBeLost) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(second->AwaitRanks());
  first.reset();
  TESSERA_ASSERT_OK(files_.WriteRound(3, 2));
  EXPECT_THAT(AwaitTakeOver(*second),
              ElementsAre(RankStart{Rank(0), 1}, RankStart{Rank(1), 1}));
}

TEST_F(NodesTest, NodesInReserveComeFirst) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(first->AwaitRanks());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reserve, Nodes::Meet(Options(2)));
  second.reset();
  TESSERA_ASSERT_OK(files_.WriteRound(0, 1));
  std::thread thread([&] { EXPECT_THAT(AwaitTakeOver(*first), IsEmpty()); });
  EXPECT_THAT(
      reserve->AwaitRanks(),
      IsOkAndHolds(ElementsAre(RankStart{Rank(2), 1}, RankStart{Rank(3), 1})));
  thread.join();
  EXPECT_THAT(first->RanksToEnd(), IsEmpty());
}

// It was silent for too long: another node has its ranks.
TEST_F(NodesTest, EndsRanksTakenOverByOtherNode) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(second->AwaitRanks());
  const std::string start = *ReadFile(files_.directory + "/start", 1000);
  const std::string name = start.substr(0, start.find(' '));
  TESSERA_ASSERT_OK(
      WriteFile(files_.directory + "/homes",
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
        second->Leave(absl::DataLossError("the disk is broken"), is_final),
        StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_THAT(first->RanksToEnd(), ElementsAre(Rank(0), Rank(1)));
    EXPECT_THAT(first->Leave(absl::AbortedError("killed"), false),
                StatusIs(is_final ? absl::StatusCode::kCancelled
                                  : absl::StatusCode::kAborted,
                         HasSubstr("node 1: the disk is broken")));
    EXPECT_FALSE(std::filesystem::exists(files_.directory));
  }
}

TEST_F(NodesTest, NamesMissingNodes) {
  Nodes::Options options = Options(0);
  options.patience = absl::Seconds(1);
  EXPECT_THAT(Nodes::Meet(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("node 1 of 2 has not started"),
                             HasSubstr("--node_rank"))));
  options = Options(1);
  options.patience = absl::Seconds(1);
  EXPECT_THAT(Nodes::Meet(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("node 0 of 2 has not started")));
}

TEST_F(NodesTest, RejectsRunningNode) {
  const auto nodes = MeetBoth();
  EXPECT_THAT(Nodes::Meet(Options(1)),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("node 1 of the run")));
}

// The first node does not disturb a run that goes on without it.
TEST_F(NodesTest, LostFirstNodeComesBackInReserve) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(second->AwaitRanks());
  EXPECT_TRUE(Nodes::IsRunning(files_));
  first.reset();
  absl::SleepFor(absl::Seconds(3));
  EXPECT_TRUE(Nodes::IsRunning(files_));
  Nodes::Options options = Options(0);
  options.prepare = [] { return absl::InternalError("not for this run"); };
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto back, Nodes::Meet(options));
  EXPECT_THAT(back->TakeOver(), IsEmpty());
  EXPECT_FALSE(back->IsHere(Rank(0)));
}

TEST_F(NodesTest, IgnoresFilesOfEarlierRun) {
  EXPECT_FALSE(Nodes::IsRunning(files_));
  { const auto nodes = MeetBoth(); }
  EXPECT_TRUE(std::filesystem::exists(files_.directory + "/start"));
  EXPECT_FALSE(Nodes::IsRunning(files_));
}

TEST_F(NodesTest, SurvivesDamagedFiles) {
  auto [first, second] = MeetBoth();
  TESSERA_ASSERT_OK(first->AwaitRanks());
  for (const char* const file :
       {"start", "homes", "failed", "node1", "node99999999999999999999",
        "nodex", "rank2.round", "round0"}) {
    for (const std::string& text :
         {std::string(), std::string("\0\xff 7 \n x", 9),
          std::string(5000, ' '), std::string("1\n77 77")}) {
      TESSERA_ASSERT_OK(
          WriteFile(absl::StrCat(files_.directory, "/", file), text));
      first->TakeOver();
      first->RanksToEnd();
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
  const auto soon = [] { return absl::Now() + absl::Milliseconds(200); };
  EXPECT_THAT(VariablesOfRound(files, 2, variables("3"), soon()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 has not joined round 2")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto first, VariablesOfRound(files, 2, variables("0"), soon()));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto other, VariablesOfRound(files, 2, variables("3"), soon()));
  EXPECT_EQ(first("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(other("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(other("TESSERA_MASTER_PORT"), first("TESSERA_MASTER_PORT"));
  EXPECT_EQ(other("RANK"), "3");
  TESSERA_ASSERT_OK(files.WriteRound(0, 4));
  EXPECT_THAT(
      VariablesOfRound(files, 3, variables("3"), absl::Now() + absl::Hours(1)),
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
      {[](auto&, auto& s) { s.elastic = true; }, "--elastic"}};
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
