#include "collectives/cuda/lane_work.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/cuda/kernel_arguments.h"
#include "collectives/operation/operation.h"
#include "collectives/reduction/reduction.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Range {
  const std::byte* begin;
  int64_t size;
  int64_t lane;

  bool Overlaps(const Range& other) const {
    return size > 0 && other.size > 0 && begin < other.begin + other.size &&
           other.begin < begin + size;
  }
};

struct Accesses {
  std::vector<Range> reads;
  std::vector<Range> writes;
};

Accesses AccessesOf(const std::vector<Operation>& operations) {
  Accesses all;
  const auto add = [](std::vector<Range>& to, const void* data, int64_t size,
                      int64_t lane) {
    to.push_back({static_cast<const std::byte*>(data), size, lane});
  };
  for (int64_t lane = 0; lane < std::ssize(operations); ++lane) {
    const LaneWork work = PlanLane(operations, lane);
    if (work.fold) {
      const int64_t size = work.fold->count * SizeInBytes(work.fold->dtype);
      for (int s = 0; s < work.fold->source_count; ++s) {
        add(all.reads, work.fold->sources[static_cast<size_t>(s)], size, lane);
      }
      for (int t = 0; t < work.fold->target_count; ++t) {
        add(all.writes, work.fold->targets[static_cast<size_t>(t)], size, lane);
      }
    }
    for (const Move& move : work.moves) {
      add(all.reads, move.from, move.bytes, lane);
      add(all.writes, move.to, move.bytes, lane);
      add(all.reads, move.back_from, move.back_bytes, lane);
      add(all.writes, move.back_to, move.back_bytes, lane);
    }
  }
  return all;
}

// The order of lanes must not matter.
void ExpectIndependent(const Accesses& accesses) {
  for (const Range& write : accesses.writes) {
    for (const Range& other : accesses.writes) {
      EXPECT_TRUE(&write == &other || !write.Overlaps(other));
    }
    for (const Range& read : accesses.reads) {
      EXPECT_TRUE(write.lane == read.lane || !write.Overlaps(read));
    }
  }
}

int64_t WrittenBytes(const Accesses& accesses) {
  int64_t bytes = 0;
  for (const Range& write : accesses.writes) bytes += write.size;
  return bytes;
}

std::vector<std::vector<float>> Memory(int64_t ranks, int64_t count) {
  return std::vector<std::vector<float>>(
      static_cast<size_t>(ranks),
      std::vector<float>(static_cast<size_t>(count)));
}

Buffer Whole(std::vector<float>& values) { return Buffer(std::span(values)); }

TEST(LaneWorkTest, SlicesOfAllReduceCoverEveryOutputOnce) {
  for (const int64_t ranks : {1, 2, 3, 5}) {
    for (const int64_t count : {1, 33, 8192, 100'003}) {
      auto memory = Memory(ranks, count);
      std::vector<Operation> operations;
      for (auto& values : memory) {
        operations.push_back(
            AllReduceOf(Whole(values), Whole(values), Reduction::Average()));
      }
      const Accesses accesses = AccessesOf(operations);
      ExpectIndependent(accesses);
      EXPECT_EQ(WrittenBytes(accesses), ranks == 1 ? 0 : ranks * count * 4);
    }
  }
}

TEST(LaneWorkTest, SmallAllReducesAreOneLanes) {
  auto memory = Memory(4, 8191);
  std::vector<Operation> operations;
  for (auto& values : memory) {
    operations.push_back(
        AllReduceOf(Whole(values), Whole(values), Reduction::Sum()));
  }
  EXPECT_EQ(PlanLane(operations, 0).fold->count, 8191);
  for (const int64_t lane : {1, 2, 3}) {
    EXPECT_FALSE(PlanLane(operations, lane).fold.has_value());
  }
}

TEST(LaneWorkTest, BlocksInPlaceDoNotDisturbOtherLanes) {
  for (const int64_t ranks : {1, 2, 3, 4, 5}) {
    auto memory = Memory(ranks, 40 * ranks);
    std::vector<Operation> scatter, gather, exchange;
    for (int64_t r = 0; r < ranks; ++r) {
      const Buffer whole = Whole(memory[static_cast<size_t>(r)]);
      const Buffer own = whole.Slice(40 * r, 40);
      scatter.push_back(ReduceScatterOf(whole, own, Reduction::Sum()));
      gather.push_back(AllGatherOf(own, whole));
      exchange.push_back(AllToAllOf(whole, whole));
    }
    for (const auto& operations : {scatter, gather, exchange}) {
      ExpectIndependent(AccessesOf(operations));
    }
    EXPECT_EQ(WrittenBytes(AccessesOf(gather)), ranks * (ranks - 1) * 160);
    EXPECT_EQ(WrittenBytes(AccessesOf(exchange)), ranks * (ranks - 1) * 160);
  }
}

TEST(LaneWorkTest, PairsOfAnUnevenExchangeMustMatch) {
  auto in = Memory(2, 10), out = Memory(2, 10);
  std::vector<Operation> operations = {
      AllToAllOf(Whole(in[0]), Whole(out[0]), {4, 6}, {4, 6}),
      AllToAllOf(Whole(in[1]), Whole(out[1]), {6, 4}, {5, 5})};
  EXPECT_THAT(CheckPairs(operations),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 sends 6 elements to rank 1"),
                             HasSubstr("receives 5"))));
  operations[1].receive_counts = {6, 4};
  EXPECT_THAT(CheckPairs(operations), IsOk());
}

}  // namespace
}  // namespace tessera::collectives
