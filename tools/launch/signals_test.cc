#include "tools/launch/signals.h"

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

TEST(SignalNameTest, NamesSignals) {
  EXPECT_EQ(SignalName(SIGKILL), "SIGKILL");
  EXPECT_EQ(SignalName(SIGSEGV), "SIGSEGV");
  EXPECT_EQ(SignalName(SIGRTMIN + 3), "signal " + std::to_string(SIGRTMIN + 3));
}

TEST(SignalWatchTest, TurnsSignalsIntoEventsWhileItLives) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto watch, SignalWatch::Create());
    EXPECT_EQ(watch->Next(), std::nullopt);
    raise(SIGTERM);
    raise(SIGINT);
    std::vector<int> seen;
    while (const auto signal = watch->Next()) seen.push_back(*signal);
    EXPECT_THAT(seen, ::testing::UnorderedElementsAre(SIGTERM, SIGINT));
    raise(SIGHUP);   // Not read by Next; must have no effect later.
    raise(SIGPIPE);  // Likewise.
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGCHLD}) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal));
  }
}

TEST(SignalWatchTest, LeavesIgnoredSignalsIgnored) {
  signal(SIGHUP, SIG_IGN);
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto watch, SignalWatch::Create());
    raise(SIGHUP);
    EXPECT_EQ(watch->Next(), std::nullopt);
  }
  signal(SIGHUP, SIG_DFL);
}

}  // namespace
}  // namespace tessera::tools
