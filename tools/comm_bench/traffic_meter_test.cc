#include "tools/comm_bench/traffic_meter.h"

#include <cstring>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {

namespace {

using collectives::kCollectiveKinds;
using collectives::OpKind;
using collectives::StoreMode;

constexpr int64_t kCount = 1000;

// The ranks' inputs and outputs, each with kCount elements.
class Arrays {
 public:
  explicit Arrays(int64_t world)
      : memory_(static_cast<size_t>(2 * world),
                std::vector<float>(kCount, -1.0f)) {
    for (size_t r = 0; r < static_cast<size_t>(world); ++r) {
      for (size_t i = 0; i < kCount; ++i) {
        input(r)[i] = static_cast<float>(1000 * r + i);
      }
      buffers.inputs.push_back(reinterpret_cast<std::byte*>(input(r)));
      buffers.outputs.push_back(reinterpret_cast<std::byte*>(output(r)));
    }
  }
  float* input(size_t rank) { return memory_[2 * rank].data(); }
  float* output(size_t rank) { return memory_[2 * rank + 1].data(); }

  TrafficBuffers buffers;

 private:
  std::vector<std::vector<float>> memory_;
};

// The traffic is a valid bound only because it performs an all-reduce.
TEST(TrafficKernelTest, AllReduceTrafficIsAnAllReduce) {
  for (const StoreMode stores : {StoreMode::kCached, StoreMode::kStreaming}) {
    Arrays arrays(4);
    for (int64_t rank = 0; rank < 4; ++rank) {
      MoveTraffic(arrays.buffers, rank, OpKind::kAllReduce, kCount * 4, stores);
    }
    for (size_t r = 0; r < 4; ++r) {
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(arrays.output(r)[i], 6000.0f + 4.0f * static_cast<float>(i));
      }
    }
  }
}

TEST(TrafficKernelTest, AllGatherTrafficMovesEveryBlock) {
  Arrays arrays(4);
  constexpr size_t kBlock = kCount / 4;
  MoveTraffic(arrays.buffers, 2, OpKind::kAllGather, kCount * 4,
              StoreMode::kCached);
  for (size_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < kBlock; ++i) {
      ASSERT_EQ(arrays.output(2)[r * kBlock + i], arrays.input(r)[i]);
    }
  }
}

TEST(TrafficKernelTest, AllToAllTrafficMovesOwnBlocks) {
  Arrays arrays(4);
  constexpr size_t kBlock = kCount / 4;
  MoveTraffic(arrays.buffers, 1, OpKind::kAllToAll, kCount * 4,
              StoreMode::kStreaming);
  for (size_t r = 0; r < 4; ++r) {
    ASSERT_EQ(arrays.output(1)[r * kBlock], arrays.input(r)[kBlock]);
  }
}

TEST(MeasureTrafficTest, BoundsGrowWithTheMessage) {
  for (const OpKind kind : kCollectiveKinds) {
    if (kind == OpKind::kBarrier) continue;
    TESSERA_ASSERT_OK_AND_ASSIGN(const double small,
                                 MeasureTraffic(3, kind, 64 << 10));
    TESSERA_ASSERT_OK_AND_ASSIGN(const double large,
                                 MeasureTraffic(3, kind, 4 << 20));
    EXPECT_GT(small, 0) << kind;
    EXPECT_GT(large, 4 * small) << kind;
  }
}

TEST(MeasureTrafficTest, SupportsOddSizesAndOneRank) {
  for (const int64_t bytes : {1, 4, 7, 100}) {
    EXPECT_THAT(MeasureTraffic(1, OpKind::kAllReduce, bytes), IsOk());
  }
}

TEST(MeasureTrafficTest, RejectsMessagesWithoutBytesOrRoom) {
  EXPECT_THAT(MeasureTraffic(2, OpKind::kAllReduce, 0),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MeasureTraffic(2, OpKind::kBarrier, 8),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MeasureTraffic(64, OpKind::kAllReduce, int64_t{1} << 40),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace

}  // namespace tessera::tools
