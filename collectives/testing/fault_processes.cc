// The fault suite: ranks that fork, die, stop or leave, and what is written
// then.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/fault_suite.h"

namespace tessera::collectives {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace {

TEST_P(FaultTest, AForkedChildIsRefusedAndTheParentGoesOn) {
  const auto outcomes = GetParam().run(
      2,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(c.Barrier());
        if (GetParam().ranks_are_processes || c.rank() == Rank(0)) {
          const pid_t child = fork();
          if (child == 0) {
            const absl::Status status = c.Barrier();
            _exit(status.code() == absl::StatusCode::kFailedPrecondition &&
                          Says(status, "forked")
                      ? 0
                      : 1);
          }
          int status = 0;
          if (waitpid(child, &status, 0) != child || status != 0) {
            return absl::InternalError("the child was not refused");
          }
        }
        return SumOf(c, 100);
      },
      {});
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk());
  }
}

TEST_P(FaultTest, AKilledRankIsNamedByEverySurvivor) {
  if (!GetParam().ranks_are_processes) GTEST_SKIP() << "ranks are threads";
  for (const NamedCall& call : SymmetricCalls()) {
    SCOPED_TRACE(call.name);
    const bool notices = GetParam().notices_death;
    const auto outcomes = GetParam().run(
        4,
        [&](Communicator& c) -> absl::Status {
          for (int i = 0; i < 5; ++i) TESSERA_RETURN_IF_ERROR(call.call(c));
          if (c.rank() == Rank(1)) raise(SIGKILL);
          return call.call(c);
        },
        WithTimeout(notices ? absl::Seconds(40) : absl::Seconds(3)));
    EXPECT_EQ(outcomes[1].signal, SIGKILL);
    for (size_t r : {0, 2, 3}) {
      if (notices) {
        EXPECT_THAT(outcomes[r].status,
                    StatusIs(absl::StatusCode::kUnavailable,
                             AllOf(HasSubstr("rank 1"), HasSubstr("is dead"))))
            << "rank " << r;
        EXPECT_LT(outcomes[r].took, absl::Seconds(30));
      } else {
        EXPECT_THAT(outcomes[r].status, Not(IsOk())) << "rank " << r;
      }
    }
  }
}

TEST_P(FaultTest, MessagesAndStartedWorkEndWhenThePeerIsKilled) {
  if (!GetParam().ranks_are_processes) GTEST_SKIP() << "ranks are threads";
  const auto outcomes = GetParam().run(
      3,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(c.Barrier());
        if (c.rank() == Rank(2)) raise(SIGKILL);
        std::vector<float> in(1000);
        if (c.rank() == Rank(0)) {
          return c.Receive(Buffer(std::span(in)), Rank(2));
        }
        TESSERA_ASSIGN_OR_RETURN(
            const Work work,
            c.Start(ReceiveOf(Buffer(std::span(in)), Rank(2))));
        return work.Wait();
      },
      WithTimeout(absl::Seconds(5)));
  EXPECT_THAT(outcomes[0].status, Not(IsOk()));
  EXPECT_THAT(outcomes[1].status, Not(IsOk()));
}

TEST_P(FaultTest, AStoppedRankIsAMissingRank) {
  if (!GetParam().ranks_are_processes) GTEST_SKIP() << "ranks are threads";
  const auto outcomes = GetParam().run(
      3,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(c.Barrier({.timeout = absl::Seconds(20)}));
        if (c.rank() == Rank(1)) raise(SIGSTOP);
        return SumOf(c, 1000);
      },
      WithTimeout(absl::Seconds(1)));
  EXPECT_EQ(outcomes[1].signal, SIGKILL);  // By the harness, at the end.
  for (size_t r : {0, 2}) {
    EXPECT_THAT(outcomes[r].status,
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    if (GetParam().knows_peers) {
      EXPECT_TRUE(Says(outcomes[r].status, "rank 1")) << outcomes[r].status;
    }
  }
}

TEST_P(FaultTest, ARankThatLeftIsNoErrorForWhatItHadFinished) {
  const auto outcomes = GetParam().run(
      3,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(SumOf(c, 100));
        // Rank 0 returns at once; the others talk on.
        if (c.rank() == Rank(0)) return absl::OkStatus();
        absl::SleepFor(absl::Milliseconds(200));
        const Rank other(3 - c.rank().value());
        float mine = 1, theirs = 0;
        return c.SendReceive(ConstBuffer(std::span<const float>(&mine, 1)),
                             other, Buffer(std::span(&theirs, 1)), other);
      },
      WithTimeout(absl::Seconds(10)));
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk());
  }
}

TEST_P(FaultTest, TheFlightRecorderIsWrittenWhenTheGroupBreaks) {
  const std::string directory = ::testing::TempDir();
  CommunicatorOptions options = WithTimeout(absl::Milliseconds(300));
  options.dump_directory = directory;
  options.name = absl::StrCat("dumped-", getpid());
  static_cast<void>(GetParam().run(
      2,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(c.Barrier({.timeout = absl::Seconds(20)}));
        if (c.rank() == Rank(1)) absl::SleepFor(absl::Seconds(1));
        return SumOf(c, 4);
      },
      options));
  const std::string path =
      absl::StrCat(directory, "/", options.name, ".rank-0.json");
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), AllOf(HasSubstr("\"all_reduce\""),
                                HasSubstr("DEADLINE_EXCEEDED")));
  unlink(path.c_str());
  unlink(absl::StrCat(directory, "/", options.name, ".rank-1.json").c_str());
}

}  // namespace
}  // namespace tessera::collectives
