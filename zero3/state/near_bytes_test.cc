#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "zero3/state/shard_store.h"

namespace tessera::zero3 {
namespace {

int64_t LargestRun(const std::vector<int64_t>& bytes, int64_t length) {
  int64_t largest = 0;
  const auto count = static_cast<int64_t>(bytes.size());
  for (int64_t begin = 0; begin < count; ++begin) {
    int64_t sum = 0;
    for (int64_t i = begin; i < std::min(begin + length, count); ++i) {
      sum += bytes[static_cast<size_t>(i)];
    }
    largest = std::max(largest, sum);
  }
  return largest;
}

TEST(NearBytesTest, IsTheLargestRunOfEither) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<OffloadedBytes> slots(random() % 12);
    std::vector<int64_t> values, updates;
    for (OffloadedBytes& slot : slots) {
      slot = {static_cast<int64_t>(random() % 9),
              static_cast<int64_t>(random() % 20)};
      values.push_back(slot.value);
      updates.push_back(slot.update);
    }
    const auto of_updates = static_cast<int64_t>(1 + random() % 4);
    const auto of_values = static_cast<int64_t>(1 + random() % 20);
    EXPECT_EQ(NearBytes(slots, of_updates, of_values),
              std::max(LargestRun(updates, of_updates),
                       LargestRun(values, of_values)));
  }
}

}  // namespace
}  // namespace tessera::zero3
