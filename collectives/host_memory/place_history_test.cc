#include "collectives/host_memory/place_history.h"

#include <string>

#include "gtest/gtest.h"

namespace tessera::collectives::direct {
namespace {

constexpr OpKind kKind = OpKind::kAllGather;

// Which of `calls` calls ask ('?'), where the answer is always `enough`.
std::string CallsThatAsk(PlaceHistory& history, int calls, bool enough,
                         int64_t bytes = 65536) {
  std::string asks;
  for (int i = 0; i < calls; ++i) {
    const bool ask = history.Asks(kKind, bytes);
    asks += ask ? '?' : '.';
    if (ask) history.Learn(kKind, bytes, enough);
  }
  return asks;
}

TEST(PlaceHistoryTest, AsksAlwaysWhileTheAnswerIsYes) {
  PlaceHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 6, true), "??????");
}

TEST(PlaceHistoryTest, AsksLessAndLessOftenWhileTheAnswerIsNo) {
  PlaceHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 24, false), "?.?...?.......?.......?.");
}

TEST(PlaceHistoryTest, OneYesStartsAnew) {
  PlaceHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 14, false), "?.?...?.......");
  EXPECT_EQ(CallsThatAsk(history, 2, true), "??");
  EXPECT_EQ(CallsThatAsk(history, 5, false), "?.?..");
}

TEST(PlaceHistoryTest, SizesAndKindsDoNotKnowOfEachOther) {
  PlaceHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 2, false, 65536), "?.");
  EXPECT_EQ(CallsThatAsk(history, 2, false, 65535), "?.");
  EXPECT_EQ(CallsThatAsk(history, 1, false, 131072), "?");
  EXPECT_TRUE(history.Asks(OpKind::kAllReduce, 65536));
  EXPECT_TRUE(history.Asks(kKind, 65536));
}

TEST(PlaceHistoryTest, AsksAlwaysForLargeMessages) {
  PlaceHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 5, false, PlaceHistory::kLargeBytes),
            "?????");
  EXPECT_EQ(CallsThatAsk(history, 5, false, PlaceHistory::kLargeBytes - 1),
            "?.?..");
  EXPECT_EQ(CallsThatAsk(history, 3, false, 1), "?.?");
}

TEST(PlaceHistoryTest, AsksAlwaysWithoutSkips) {
  PlaceHistory history(0);
  EXPECT_EQ(CallsThatAsk(history, 5, false), "?????");
}

}  // namespace
}  // namespace tessera::collectives::direct
