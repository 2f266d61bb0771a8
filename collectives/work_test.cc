#include "collectives/work.h"

#include <thread>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(WorkTest, TestsFalseUntilFinished) {
  const auto state = std::make_shared<WorkState>();
  const Work work(state);
  EXPECT_THAT(work.Test(), IsOkAndHolds(false));
  EXPECT_THAT(work.WaitFor(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       ::testing::HasSubstr("it continues")));
  state->Finish(absl::OkStatus());
  EXPECT_THAT(work.Test(), IsOkAndHolds(true));
  EXPECT_THAT(work.Wait(), IsOk());
  EXPECT_THAT(work.WaitFor(absl::ZeroDuration()), IsOk());
}

TEST(WorkTest, EveryCopyGetsTheError) {
  const auto state = std::make_shared<WorkState>();
  const Work work(state);
  const Work copy = work;
  state->Finish(absl::UnavailableError("rank 1 is dead"));
  EXPECT_THAT(copy.Wait(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(work.Test(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(WorkTest, UnblocksWaitersOnOtherThreads) {
  const auto state = std::make_shared<WorkState>();
  std::thread waiter([work = Work(state)] {
    EXPECT_THAT(work.Wait(), IsOk());
    EXPECT_THAT(work.WaitFor(absl::Hours(1)), IsOk());
  });
  state->Finish(absl::OkStatus());
  waiter.join();
}

}  // namespace
}  // namespace tessera::collectives
