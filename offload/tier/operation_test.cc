#include "offload/tier/operation.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

TEST(OperationTest, IsOverWithItsStatusFromTheStart) {
  EXPECT_TRUE(Operation().Test());
  TESSERA_EXPECT_OK(Operation().Wait());
  const Operation failed(absl::DataLossError("torn"));
  EXPECT_THAT(failed.Wait(), StatusIs(absl::StatusCode::kDataLoss, "torn"));
  EXPECT_THAT(failed.Wait(), StatusIs(absl::StatusCode::kDataLoss, "torn"));
}

TEST(OperationTest, WaitsForTheOtherThread) {
  auto [operation, completion] = Operation::Pending();
  EXPECT_FALSE(operation.Test());
  std::atomic<bool> finished = false;
  std::thread thread([&finished, c = completion] {
    absl::SleepFor(absl::Milliseconds(5));
    finished = true;
    c.Finish(absl::AbortedError("stop"));
  });
  EXPECT_THAT(operation.Wait(), StatusIs(absl::StatusCode::kAborted, "stop"));
  EXPECT_TRUE(finished);
  thread.join();
}

TEST(OperationTest, TheFirstFinishCounts) {
  auto [operation, completion] = Operation::Pending();
  completion.Finish(absl::OkStatus());
  completion.Finish(absl::AbortedError("late"));
  TESSERA_EXPECT_OK(operation.Wait());
}

TEST(OperationTest, TheDestructorAndAssignmentWait) {
  std::atomic<int> finished = 0;
  std::vector<std::thread> threads;
  {
    auto [first, c1] = Operation::Pending();
    auto [second, c2] = Operation::Pending();
    for (const Completion& c : {c1, c2}) {
      threads.emplace_back([&finished, c] {
        absl::SleepFor(absl::Milliseconds(5));
        ++finished;
        c.Finish(absl::OkStatus());
      });
    }
    first = std::move(second);
    EXPECT_GE(finished, 1);
  }
  EXPECT_EQ(finished, 2);
  for (std::thread& thread : threads) thread.join();
}

TEST(OperationTest, ListenersHearOnceBeforeOrAfterTheEnd) {
  auto [operation, completion] = Operation::Pending();
  std::vector<absl::StatusCode> heard;
  const auto listen = [&heard](const absl::Status& s) {
    heard.push_back(s.code());
  };
  operation.OnDone(listen);
  EXPECT_TRUE(heard.empty());
  completion.Finish(absl::DataLossError("x"));
  operation.OnDone(listen);
  Operation(absl::AbortedError("y")).OnDone(listen);
  EXPECT_THAT(heard, testing::ElementsAre(absl::StatusCode::kDataLoss,
                                          absl::StatusCode::kDataLoss,
                                          absl::StatusCode::kAborted));
}

}  // namespace
}  // namespace tessera::offload
