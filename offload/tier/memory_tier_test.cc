#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/accounting.h"
#include "offload/tier/operation.h"

namespace tessera::offload {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<Accounting> Budget(int64_t bytes) {
  return std::make_shared<Accounting>("host", bytes);
}

TEST(AccountingTest, CountsCurrentAndPeakPerPurpose) {
  const auto accounting = Budget(100);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Reservation a,
      Accounting::Reserve(accounting, "a", 60, Purpose::kParameters));
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        Reservation b,
        Accounting::Reserve(accounting, "b", 40, Purpose::kGradients));
    EXPECT_EQ(accounting->usage().current, 100);
  }
  const Usage usage = accounting->usage();
  EXPECT_EQ(usage.budget, 100);
  EXPECT_EQ(usage.current, 60);
  EXPECT_EQ(usage.peak, 100);
  EXPECT_EQ(usage.of(Purpose::kParameters), (Usage::Part{60, 60}));
  EXPECT_EQ(usage.of(Purpose::kGradients), (Usage::Part{0, 40}));
  EXPECT_EQ(usage.of(Purpose::kOptimizer), Usage::Part{});
}

TEST(AccountingTest, RejectsBeforeTheBudgetIsExceeded) {
  const auto accounting = Budget(100);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Reservation a,
      Accounting::Reserve(accounting, "a", 60, Purpose::kParameters));
  const Usage before = accounting->usage();
  EXPECT_THAT(
      Accounting::Reserve(accounting, "layer.1", 41, Purpose::kOptimizer),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("tier host"), HasSubstr("\"layer.1\""),
                     HasSubstr("asks for 41 bytes"),
                     HasSubstr("60 of the budget of 100 bytes are in use"),
                     HasSubstr("Drop blocks"))));
  EXPECT_EQ(accounting->usage(), before);
  TESSERA_EXPECT_OK(
      Accounting::Reserve(accounting, "b", 40, Purpose::kOptimizer));
}

TEST(AccountingTest, ReportsBlockLargerThanBudget) {
  EXPECT_THAT(Accounting::Reserve(Budget(100), std::string(300, '\1'), 101,
                                  Purpose::kBuffers),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("more than the whole budget of 100"),
                             HasSubstr("\\x01..."))));
}

TEST(AccountingTest, RejectsNegativeBytesAndUnknownPurposes) {
  EXPECT_THAT(Accounting::Reserve(Budget(1), "a", -1, Purpose::kBuffers),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
  EXPECT_THAT(
      Accounting::Reserve(Budget(1), "a", 1, static_cast<Purpose>(9)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("invalid")));
}

TEST(AccountingTest, DoesNotOverflow) {
  const auto accounting = Budget(kUnlimited);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Reservation a,
      Accounting::Reserve(accounting, "a", kUnlimited, Purpose::kBuffers));
  EXPECT_THAT(Accounting::Reserve(accounting, "b", 1, Purpose::kBuffers),
              StatusIs(absl::StatusCode::kResourceExhausted));
  TESSERA_EXPECT_OK(Accounting::Reserve(accounting, "c", 0, Purpose::kBuffers));
}

TEST(ReservationTest, ResizesMovesAndChangesPurpose) {
  const auto accounting = Budget(10);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Reservation a,
      Accounting::Reserve(accounting, "a", 4, Purpose::kBuffers));
  TESSERA_EXPECT_OK(a.Resize("a", 10));
  EXPECT_THAT(a.Resize("a", 11),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(a.bytes(), 10);
  TESSERA_EXPECT_OK(a.Resize("a", 3));
  EXPECT_THAT(a.Resize("a", -1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Reservation().Resize("a", 1),
              StatusIs(absl::StatusCode::kInvalidArgument));
  a.SetPurpose(Purpose::kOptimizer);
  Reservation moved = std::move(a);
  EXPECT_EQ(accounting->usage().of(Purpose::kOptimizer), (Usage::Part{3, 3}));
  EXPECT_EQ(accounting->usage().of(Purpose::kBuffers), (Usage::Part{0, 10}));
  EXPECT_EQ(accounting->usage().peak, 10);
  accounting->ResetPeaks();
  EXPECT_EQ(accounting->usage().peak, 3);
  EXPECT_EQ(accounting->usage().of(Purpose::kBuffers), Usage::Part{});
  moved.Release();
  EXPECT_EQ(accounting->usage().current, 0);
}

TEST(AccountingTest, ThreadsNeverExceedBudget) {
  const auto accounting = Budget(1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&accounting, t] {
      std::mt19937_64 random(t);
      std::vector<Reservation> held(8);
      for (int i = 0; i < 3000; ++i) {
        auto room = Accounting::Reserve(
            accounting, "k", static_cast<int64_t>(random() % 200),
            kAllPurposes[random() % kAllPurposes.size()]);
        if (room.ok()) held[random() % held.size()] = *std::move(room);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Usage usage = accounting->usage();
  EXPECT_EQ(usage.current, 0);
  EXPECT_GT(usage.peak, 800);
  EXPECT_LE(usage.peak, 1000);
  for (const Usage::Part& part : usage.parts) EXPECT_EQ(part.current, 0);
}

TEST(OperationTest, StartsCompletedWithStatus) {
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

TEST(OperationTest, NotifiesListenersOnceBeforeOrAfterCompletion) {
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

TEST(WorkerPoolTest, RunsInOrderAndReturnsStatuses) {
  WorkerPool pool(0);  // Creates at least one thread.
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

TEST(WorkerPoolTest, DestructorRunsPendingWork) {
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
