#include "tools/train/watch/hang.h"

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000'000;
// Whose files are not read or written.
constexpr int64_t kNoProcess = int64_t{1} << 40;

// A rank that has computed since second 100.
LivePlace Computing(int64_t rank) {
  return {.rank = rank,
          .pid = kNoProcess,
          .thread = kNoProcess,
          .action = RankAction::kForward,
          .step = 5,
          .file = "tools/train/model/llama_stage.cc",
          .line = 12,
          .since_ns = 100 * kSecond,
          .moved_ns = 100 * kSecond,
          .groups = {{.id = 1,
                      .name = "world",
                      .rank = rank,
                      .ranks = 3,
                      .begun = 7,
                      .ended = 7,
                      .begin_ns = 99 * kSecond}}};
}

// A rank that has waited since second 100 in collective number 8.
LivePlace Waiting(int64_t rank) {
  LivePlace place = Computing(rank);
  place.waiting_ns = 100 * kSecond;
  place.groups[0].begun = 8;
  place.groups[0].begin_ns = 100 * kSecond;
  place.groups[0].kind = collectives::OpKind::kAllReduce;
  place.groups[0].bytes = 64;
  return place;
}

class HangTest : public testing::Test {
 protected:
  // Looks at the places every second up to `second`; returns the last result.
  std::vector<int64_t> FindAt(
      std::vector<LivePlace> places, int64_t second,
      HangDetector detector = HangDetector(absl::Seconds(10))) {
    std::vector<int64_t> hung;
    for (int64_t at = 90; at <= second; ++at) {
      hung = detector.Find(places, at * kSecond);
    }
    return hung;
  }
};

TEST_F(HangTest, BlamesRankOutsideCollective) {
  const std::vector<LivePlace> places = {Waiting(0), Computing(1), Waiting(2)};
  EXPECT_THAT(FindAt(places, 110), IsEmpty());
  EXPECT_THAT(FindAt(places, 111), ElementsAre(1));
}

TEST_F(HangTest, ToleratesSlowRankThatMoves) {
  LivePlace slow = Computing(1);
  slow.moved_ns = 108 * kSecond;
  EXPECT_THAT(FindAt({Waiting(0), slow, Waiting(2)}, 118), IsEmpty());
}

TEST_F(HangTest, BlamesNoRankInCommonCollective) {
  EXPECT_THAT(FindAt({Waiting(0), Waiting(1), Waiting(2)}, 200), IsEmpty());
}

// Rank 1 still waits in collective 7, which the others have left.
TEST_F(HangTest, BlamesRankWhoseCollectiveIsBehind) {
  LivePlace behind = Waiting(1);
  behind.groups[0].begun = 7;
  behind.groups[0].ended = 6;
  EXPECT_THAT(FindAt({Waiting(0), behind, Waiting(2)}, 200), ElementsAre(1));
}

// Rank 2 is on a host whose places are unknown.
TEST_F(HangTest, ToleratesRankThatWaitsForAnotherHost) {
  LivePlace waits = Waiting(0), other = Waiting(1);
  const GroupPlace across = {
      .id = 2, .name = "across", .ranks = 2, .begun = 4, .ended = 3};
  const GroupPlace here = {
      .id = 3, .name = "here", .ranks = 2, .begun = 6, .ended = 6};
  waits.groups = {across, here};
  other.groups = {here};
  ++other.groups[0].begun;
  EXPECT_THAT(FindAt({waits, other}, 200), IsEmpty());
}

// Ranks 0 and 1 have both begun a collective, in the middle of which rank 0 was
// stopped; rank 2 waits for rank 1 in another one.
TEST_F(HangTest, ToleratesRankInsideACollectiveWithAStoppedOne) {
  LivePlace stopped = Waiting(0), waits = Waiting(1), other = Waiting(2);
  const GroupPlace pair = {
      .id = 2, .name = "pair", .ranks = 2, .begun = 4, .ended = 4};
  for (LivePlace* const place : {&waits, &other}) place->groups.push_back(pair);
  other.groups = {pair};
  other.groups[0].begun = 5;
  EXPECT_THAT(FindAt({stopped, waits, other}, 200), IsEmpty());
}

// Rank 0 hangs in its forward with a receive that it has posted ahead, for
// which rank 1 would have to go on.
TEST_F(HangTest, BlamesComputingRankWithOpenReceive) {
  LivePlace ahead = Computing(0);
  ahead.groups[0].messages = 1;
  ahead.groups[0].receives = true;
  ahead.groups[0].peer = 1;
  LivePlace waits = Computing(1);
  waits.waiting_ns = 101 * kSecond;
  waits.groups[0].messages = 1;
  waits.groups[0].receives = true;
  waits.groups[0].peer = 0;
  const std::vector<LivePlace> places = {ahead, waits};
  EXPECT_THAT(FindAt(places, 200), ElementsAre(0));
  EXPECT_THAT(WaitOf(waits, places)->ranks, ElementsAre(0));
  EXPECT_FALSE(WaitOf(ahead, places).has_value());
}

TEST_F(HangTest, HostsOfDevicesAreBlamedOnlyIfOthersAreAhead) {
  LivePlace first = Computing(0), second = Computing(1);
  first.on_device = second.on_device = true;
  EXPECT_THAT(FindAt({first, second}, 200), IsEmpty());
  first.groups[0].begun = first.groups[0].ended = 9;
  EXPECT_THAT(FindAt({first, second}, 200), ElementsAre(1));
}

TEST_F(HangTest, RanksThatJoinOrHaveNotBegunAreNotBlamed) {
  LivePlace joining = Computing(0), absent = Computing(1);
  joining.action = RankAction::kJoin;
  absent.pid = 0;
  EXPECT_THAT(FindAt({joining, absent}, 200), IsEmpty());
}

// The thread that writes rank 0's checkpoint waits for that of rank 1.
TEST_F(HangTest, RankThatWaitsForItsCheckpointIsNotBlamed) {
  LivePlace waits = Waiting(0), writes = Computing(1);
  waits.waiting_ns = 0;
  waits.action = writes.action = RankAction::kCheckpoint;
  EXPECT_THAT(FindAt({waits, writes}, 200), ElementsAre(1));
}

TEST_F(HangTest, DefaultLimitFollowsLongestStep) {
  const HangDetector detector(std::nullopt);
  LivePlace place = Computing(0);
  EXPECT_EQ(detector.LimitOf(place), absl::InfiniteDuration());
  EXPECT_THAT(FindAt({place}, 1000, detector), IsEmpty());
  place.longest_step_ns = kSecond;
  EXPECT_EQ(detector.LimitOf(place), absl::Minutes(1));
  EXPECT_THAT(FindAt({place}, 160, detector), IsEmpty());
  EXPECT_THAT(FindAt({place}, 161, detector), ElementsAre(0));
  place.longest_step_ns = 30 * kSecond;
  EXPECT_EQ(detector.LimitOf(place), absl::Minutes(5));
}

TEST_F(HangTest, PauseOfTheCallerIsNotAHang) {
  HangDetector detector(absl::Seconds(10));
  detector.Find(std::vector{Computing(0)}, 100 * kSecond);
  EXPECT_THAT(detector.Find(std::vector{Computing(0)}, 900 * kSecond),
              IsEmpty());
  EXPECT_THAT(detector.Find(std::vector{Computing(0)}, 901 * kSecond),
              IsEmpty());
}

TEST_F(HangTest, DescribesWaits) {
  LivePlace hung = Computing(1);
  hung.stack = {"read", "tessera::train::Load()"};
  const std::vector<LivePlace> places = {Waiting(0), hung};
  EXPECT_EQ(DescribePlaces(places, std::vector<int64_t>{1}, 112 * kSecond),
            "  rank 1: forward, step 6, for 12.0 s, at llama_stage.cc:12; last "
            "barrier #7 of world\n"
            "    read\n"
            "    tessera::train::Load()\n"
            "  rank 0: forward, step 6, for 12.0 s, at llama_stage.cc:12; in "
            "all_reduce #8 of world, 64 bytes for 12.0 s, which waits for rank "
            "1");
  EXPECT_EQ(HungText(places, std::vector<int64_t>{1},
                     HangDetector(absl::Seconds(10))),
            "rank 1 hangs: no progress for 10s (--hang_timeout)");
}

}  // namespace
}  // namespace tessera::train
