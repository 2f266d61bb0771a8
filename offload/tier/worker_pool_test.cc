#include "offload/tier/worker_pool.h"

#include <atomic>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

TEST(WorkerPoolTest, RunsInOrderAndHandsStatusesBack) {
  WorkerPool pool(0);  // One thread at least.
  std::vector<int> order;
  std::vector<Operation> operations;
  for (int i = 0; i < 10; ++i) {
    operations.push_back(pool.Run([&order, i] {
      order.push_back(i);
      return i == 3 ? absl::AbortedError("three") : absl::OkStatus();
    }));
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(operations[i].Wait().ok(), i != 3);
  }
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(WorkerPoolTest, TheDestructorRunsWhatIsLeft) {
  std::atomic<int> ran = 0;
  std::vector<Operation> operations;
  {
    WorkerPool pool(3);
    for (int i = 0; i < 100; ++i) {
      operations.push_back(pool.Run([&ran] {
        ++ran;
        return absl::OkStatus();
      }));
    }
  }
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace tessera::offload
