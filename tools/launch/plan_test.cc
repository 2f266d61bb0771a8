#include "tools/launch/plan.h"

#include <signal.h>

#include <string>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::HasSubstr;
using topology::Rank;

LaunchPlan ValidPlan() {
  LaunchPlan plan;
  plan.command = {"program"};
  return plan;
}

void ExpectRefused(const LaunchPlan& plan, const std::string& message) {
  EXPECT_THAT(CheckPlan(plan),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

TEST(CheckPlanTest, TakesWhatMakesSense) {
  TESSERA_EXPECT_OK(CheckPlan(ValidPlan()));
  LaunchPlan plan = ValidPlan();
  plan.np = 4096;
  plan.nnodes = 3;
  plan.node_rank = 2;
  plan.master_addr = "head";
  plan.master_port = 65535;
  plan.grace = absl::ZeroDuration();
  TESSERA_EXPECT_OK(CheckPlan(plan));
}

TEST(CheckPlanTest, NamesTheFlagTheValueAndWhatIsAllowed) {
  LaunchPlan plan = ValidPlan();
  plan.np = 0;
  ExpectRefused(plan, "--np=0: expected a whole number from 1 to 4096");
  plan.np = 4097;
  ExpectRefused(plan, "--np=4097: ");
  plan = ValidPlan();
  plan.nnodes = 0;
  ExpectRefused(plan, "--nnodes=0: expected a whole number from 1 to");
  plan.nnodes = 2;
  ExpectRefused(plan, "--master_addr=: with --nnodes above 1, expected");
  plan.node_rank = 2;
  ExpectRefused(plan, "--node_rank=2: expected a whole number from 0 to 1");
  plan = ValidPlan();
  plan.master_port = 65536;
  ExpectRefused(plan, "--master_port=65536: ");
  plan = ValidPlan();
  plan.timeout = absl::ZeroDuration();
  ExpectRefused(plan, "--timeout=0: expected a time above 0");
  plan = ValidPlan();
  plan.grace = absl::Seconds(-1);
  ExpectRefused(plan, "--grace=-1s: expected a time from 0 up");
  plan = ValidPlan();
  plan.command = {};
  ExpectRefused(plan, "no program; write it and its arguments after --");
}

RankExit Exit(int64_t rank) { return {.rank = Rank(rank), .pid = 100}; }

TEST(LaunchOutcomeTest, ASuccessIsOkAndZero) {
  LaunchOutcome outcome;
  outcome.exits = {Exit(1), Exit(0)};
  TESSERA_EXPECT_OK(outcome.ToStatus());
  EXPECT_EQ(outcome.ExitCode(), 0);
}

TEST(LaunchOutcomeTest, AFailureNamesRankPidCauseAndTime) {
  LaunchOutcome outcome;
  outcome.exits = {Exit(0), Exit(1)};
  outcome.failure = Exit(1);
  outcome.failure->code = 3;
  outcome.failure->ran = absl::Milliseconds(1230);
  EXPECT_EQ(outcome.ToStatus(),
            absl::AbortedError("rank 1 (pid 100) exited with code 3 after 1.23 "
                               "s, the first to fail; all ranks were ended"));
  outcome.failure->by_signal = true;
  outcome.failure->code = SIGSEGV;
  outcome.failure->dumped_core = true;
  outcome.failure->ran = absl::Seconds(61);
  outcome.exits.pop_back();
  EXPECT_EQ(outcome.ToStatus(),
            absl::AbortedError("rank 1 (pid 100) was killed by SIGSEGV (core "
                               "dumped) after 61 s"));
  EXPECT_EQ(outcome.ExitCode(), 1);
}

TEST(LaunchOutcomeTest, NamesThoseThatFailedAtTheSameTime) {
  LaunchOutcome outcome;
  outcome.exits = {Exit(0), Exit(1), Exit(2)};
  outcome.failure = Exit(1);
  outcome.failure->code = 3;
  outcome.also_failed = {Exit(0), Exit(2)};
  EXPECT_THAT(outcome.ToStatus(),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("all ranks were ended; ranks 0, 2 failed at "
                                 "the same time")));
}

TEST(LaunchOutcomeTest, ATimeoutNamesTheFirstRanksThatStillRan) {
  LaunchOutcome outcome;
  outcome.timeout = absl::Seconds(90);
  for (int rank = 0; rank < 10; ++rank) {
    outcome.exits.push_back(Exit(rank));
    outcome.timed_out.push_back(Rank(rank));
  }
  EXPECT_THAT(outcome.ToStatus(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("ranks 0, 1, 2, 3, 4, 5, 6, 7, ... of 10 "
                                 "still ran after --timeout=1m30s")));
  EXPECT_EQ(outcome.ExitCode(), 1);
}

TEST(LaunchOutcomeTest, ASignalIs128AndItsNumber) {
  LaunchOutcome outcome;
  outcome.signal = SIGINT;
  EXPECT_THAT(outcome.ToStatus(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("ended by SIGINT")));
  EXPECT_EQ(outcome.ExitCode(), 130);
}

}  // namespace
}  // namespace tessera::tools
