#include "collectives/channel/deadline.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/channel/connection.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(DeadlineTest, CountsDownAndNeverBelowZero) {
  const Deadline soon = Deadline::After(absl::Milliseconds(30));
  EXPECT_FALSE(soon.Expired());
  EXPECT_LE(soon.Left(), absl::Milliseconds(30));
  EXPECT_GE(soon.PollMillis(), 1);
  absl::SleepFor(absl::Milliseconds(31));
  EXPECT_TRUE(soon.Expired());
  EXPECT_EQ(soon.Left(), absl::ZeroDuration());
  EXPECT_EQ(soon.PollMillis(), 0);
  EXPECT_TRUE(Deadline(absl::Now() - absl::Seconds(1)).Expired());
}

TEST(DeadlineTest, HandlesInfiniteTimes) {
  const Deadline never(absl::InfiniteFuture());
  EXPECT_FALSE(never.Expired());
  EXPECT_EQ(never.Left(), absl::InfiniteDuration());
  EXPECT_EQ(never.PollMillis(), 3'600'000);
  EXPECT_TRUE(Deadline(absl::InfinitePast()).Expired());
  EXPECT_LT(Deadline(absl::InfinitePast()), never);
  EXPECT_EQ(Deadline::After(absl::InfiniteDuration()).PollMillis(), 3'600'000);
}

TEST(WaitReadyTest, ReturnsWhenReadyOrAtTheDeadline) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const WakeFd wake, WakeFd::Create());
  const absl::Time start = absl::Now();
  EXPECT_THAT(
      WaitReady(wake.fd(), POLLIN, Deadline::After(absl::Milliseconds(30))),
      IsOkAndHolds(false));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(30));
  std::thread waker([&] {
    absl::SleepFor(absl::Milliseconds(20));
    wake.Wake();
  });
  EXPECT_THAT(WaitReady(wake.fd(), POLLIN, Deadline::After(absl::Seconds(20))),
              IsOkAndHolds(true));
  waker.join();
  wake.Drain();
  EXPECT_THAT(WaitReady(wake.fd(), POLLIN, Deadline(absl::InfinitePast())),
              IsOkAndHolds(false));
}

TEST(WaitReadyTest, ContinuesAfterSignals) {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(const WakeFd wake, WakeFd::Create());
  const pthread_t self = pthread_self();
  std::thread pest([&] {
    for (int i = 0; i < 10; ++i) {
      pthread_kill(self, SIGUSR1);
      absl::SleepFor(absl::Milliseconds(5));
    }
    wake.Wake();
  });
  EXPECT_THAT(WaitReady(wake.fd(), POLLIN, Deadline::After(absl::Seconds(20))),
              IsOkAndHolds(true));
  pest.join();
}

}  // namespace
}  // namespace tessera::collectives
