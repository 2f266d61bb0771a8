#include <string>

#include "collectives/host_memory/call.h"
#include "collectives/host_memory/host_memory_collectives.h"
#include "gtest/gtest.h"

namespace tessera::collectives::host_memory {

namespace {

TEST(LineSliceTest, SlicesCoverRangeInWholeLines) {
  for (int64_t ranks = 1; ranks <= 9; ++ranks) {
    for (int64_t bytes = 0; bytes <= 2000; bytes += 4) {
      int64_t next = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const ByteRange slice = LineSlice(bytes, ranks, rank);
        EXPECT_EQ(slice.first, next);
        EXPECT_LE(slice.first, slice.last);
        if (slice.last != bytes) {
          EXPECT_EQ(slice.last % 64, 0);
        }
        EXPECT_LE(slice.length(), (bytes / 64 / ranks + 1) * 64);
        next = slice.last;
      }
      EXPECT_EQ(next, bytes);
    }
  }
}

constexpr OpKind kKind = OpKind::kAllGather;

// Marks with '?' which of `calls` calls ask; the answer is always `enough`.
std::string CallsThatAsk(ExchangeHistory& history, int calls, bool enough,
                         int64_t bytes = 65536) {
  std::string asks;
  for (int i = 0; i < calls; ++i) {
    const bool ask = history.Asks(kKind, bytes);
    asks += ask ? '?' : '.';
    if (ask) history.Learn(kKind, bytes, enough);
  }
  return asks;
}

TEST(ExchangeHistoryTest, AlwaysAsksAfterYes) {
  ExchangeHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 6, true), "??????");
}

TEST(ExchangeHistoryTest, BacksOffExponentiallyAfterNo) {
  ExchangeHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 24, false), "?.?...?.......?.......?.");
}

TEST(ExchangeHistoryTest, YesResetsBackoff) {
  ExchangeHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 14, false), "?.?...?.......");
  EXPECT_EQ(CallsThatAsk(history, 2, true), "??");
  EXPECT_EQ(CallsThatAsk(history, 5, false), "?.?..");
}

TEST(ExchangeHistoryTest, TracksSizesAndKindsSeparately) {
  ExchangeHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 2, false, 65536), "?.");
  EXPECT_EQ(CallsThatAsk(history, 2, false, 65535), "?.");
  EXPECT_EQ(CallsThatAsk(history, 1, false, 131072), "?");
  EXPECT_TRUE(history.Asks(OpKind::kAllReduce, 65536));
  EXPECT_TRUE(history.Asks(kKind, 65536));
}

TEST(ExchangeHistoryTest, AlwaysAsksForLargeMessages) {
  ExchangeHistory history(7);
  EXPECT_EQ(CallsThatAsk(history, 5, false, ExchangeHistory::kLargeBytes),
            "?????");
  EXPECT_EQ(CallsThatAsk(history, 5, false, ExchangeHistory::kLargeBytes - 1),
            "?.?..");
  EXPECT_EQ(CallsThatAsk(history, 3, false, 1), "?.?");
}

TEST(ExchangeHistoryTest, AlwaysAsksWithoutSkips) {
  ExchangeHistory history(0);
  EXPECT_EQ(CallsThatAsk(history, 5, false), "?????");
}

}  // namespace

}  // namespace tessera::collectives::host_memory
