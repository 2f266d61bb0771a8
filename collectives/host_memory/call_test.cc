#include "collectives/host_memory/call.h"

#include "gtest/gtest.h"

namespace tessera::collectives::direct {
namespace {

TEST(LineSliceTest, SlicesAreWholeLinesAndCoverEverything) {
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

}  // namespace
}  // namespace tessera::collectives::direct
