#include "collectives/testing/fault_suite.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CommunicatorOptions WithTimeout(absl::Duration timeout) {
  CommunicatorOptions options;
  options.timeout = timeout;
  return options;
}

// Sums over its own buffers.
using Call = std::function<absl::Status(Communicator&)>;

absl::Status SumOf(Communicator& communicator, int64_t count,
                   const CallOptions& call = {}) {
  std::vector<float> values(static_cast<size_t>(count), 1.0f);
  return communicator.AllReduce(Buffer(std::span(values)), Reduction::Sum(),
                                call);
}

// Matches the message about a killed rank.
::testing::Matcher<const std::string&> SaysDead() {
  if (FaultTest::GetParam().says_dead) return HasSubstr("is dead");
  return ::testing::AnyOf(HasSubstr("is dead"), HasSubstr("was lost"));
}

struct NamedCall {
  std::string name;
  Call call;
};

// Collectives that complete only if every rank takes part.
std::vector<NamedCall> SymmetricCalls() {
  std::vector<NamedCall> calls = {
      {"barrier", [](Communicator& c) { return c.Barrier(); }},
      {"small all_reduce", [](Communicator& c) { return SumOf(c, 4); }},
      {"large all_reduce", [](Communicator& c) { return SumOf(c, 1 << 20); }},
      {"ring all_reduce",
       [](Communicator& c) {
         return SumOf(c, 10'000, {.algorithm = Algorithm::kRing});
       }},
      {"all_gather",
       [](Communicator& c) {
         const std::vector<float> in(1000);
         std::vector<float> out(static_cast<size_t>(1000 * c.size()));
         return c.AllGather(ConstBuffer(std::span(in)), Buffer(std::span(out)));
       }},
  };
  if (!FaultTest::GetParam().has_algorithms) {
    std::erase_if(calls, [](const NamedCall& call) {
      return call.name == "ring all_reduce";
    });
  }
  return calls;
}

bool Says(const absl::Status& status, std::string_view part) {
  return absl::StrContains(status.message(), part);
}

TEST_P(FaultTest, NamesLateRankAtDeadline) {
  for (const NamedCall& call : SymmetricCalls()) {
    SCOPED_TRACE(call.name);
    const auto outcomes = GetParam().run(
        3,
        [&](Communicator& c) -> absl::Status {
          TESSERA_RETURN_IF_ERROR(c.Barrier({.timeout = absl::Seconds(20)}));
          if (c.rank() == Rank(2)) absl::SleepFor(absl::Milliseconds(1500));
          return call.call(c);
        },
        WithTimeout(absl::Milliseconds(400)));
    for (size_t r : {0, 1}) {
      EXPECT_THAT(outcomes[r].status,
                  StatusIs(absl::StatusCode::kDeadlineExceeded));
      if (!GetParam().knows_peers) continue;
      EXPECT_TRUE(Says(outcomes[r].status, "rank 2")) << outcomes[r].status;
    }
    EXPECT_THAT(outcomes[2].status, Not(IsOk()));
  }
}

TEST_P(FaultTest, ErrorDescribesLastOperationOfLateRank) {
  if (!GetParam().knows_peers) GTEST_SKIP() << "the engine cannot tell";
  const auto outcomes = GetParam().run(
      2,
      [](Communicator& c) -> absl::Status {
        for (int i = 0; i < 3; ++i) {
          TESSERA_RETURN_IF_ERROR(c.Barrier({.timeout = absl::Seconds(20)}));
        }
        if (c.rank() == Rank(1)) absl::SleepFor(absl::Milliseconds(1200));
        return SumOf(c, 4);
      },
      WithTimeout(absl::Milliseconds(300)));
  EXPECT_THAT(
      outcomes[0].status,
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("world"), HasSubstr("all_reduce #4 of 4 f32"),
                     HasSubstr("has not entered operation #4; its last was #3"),
                     HasSubstr(absl::StrCat("pid ")))));
}

TEST_P(FaultTest, UnmatchedReceiveEndsAtDeadline) {
  const auto outcomes = GetParam().run(
      2,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(c.Barrier({.timeout = absl::Seconds(20)}));
        std::vector<float> in(10);
        if (c.rank() == Rank(0)) {
          return c.Receive(Buffer(std::span(in)), Rank(1));
        }
        absl::SleepFor(absl::Milliseconds(900));
        return absl::OkStatus();
      },
      WithTimeout(absl::Milliseconds(300)));
  EXPECT_THAT(outcomes[0].status,
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(outcomes[1].status, IsOk());
}

TEST_P(FaultTest, UnmatchedStartedReceiveEndsAtDeadline) {
  const auto outcomes = GetParam().run(
      2,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(c.Barrier({.timeout = absl::Seconds(20)}));
        std::vector<float> in(10);
        if (c.rank() == Rank(0)) {
          TESSERA_ASSIGN_OR_RETURN(
              const Work work,
              c.Start(ReceiveOf(Buffer(std::span(in)), Rank(1))));
          return work.Wait();
        }
        absl::SleepFor(absl::Milliseconds(900));
        return absl::OkStatus();
      },
      WithTimeout(absl::Milliseconds(300)));
  EXPECT_THAT(outcomes[0].status,
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// A call that rank 1 makes instead of an all_reduce (sum) of 16 f32, and the
// expected text of the error.
struct Difference {
  std::string other;
  Call call;
};

std::vector<Difference> Differences() {
  const auto reduce = [](Communicator& c, auto value, Reduction reduction,
                         int64_t count) {
    std::vector<decltype(value)> values(static_cast<size_t>(count), value);
    return c.AllReduce(Buffer(std::span(values)), reduction);
  };
  return {
      {"barrier", [](Communicator& c) { return c.Barrier(); }},
      {"of 17 f32",
       [=](Communicator& c) { return reduce(c, 1.0f, Reduction::Sum(), 17); }},
      {"of 5000 f32",
       [=](Communicator& c) {
         return reduce(c, 1.0f, Reduction::Sum(), 5000);
       }},
      {"of 16 i32",
       [=](Communicator& c) { return reduce(c, 1, Reduction::Sum(), 16); }},
      {"max",
       [=](Communicator& c) { return reduce(c, 1.0f, Reduction::Max(), 16); }},
      {"broadcast",
       [](Communicator& c) {
         std::vector<float> values(16);
         // The root of a broadcast does not have to wait for the others: it
         // gets the error from its next call.
         TESSERA_RETURN_IF_ERROR(
             c.Broadcast(Buffer(std::span(values)), Rank(1)));
         return c.Barrier();
       }},
  };
}

TEST_P(FaultTest, MismatchErrorShowsBothSidesOnEveryRank) {
  for (const Difference& difference : Differences()) {
    SCOPED_TRACE(difference.other);
    const auto outcomes = GetParam().run(
        3,
        [&](Communicator& c) -> absl::Status {
          TESSERA_RETURN_IF_ERROR(c.Barrier());
          return c.rank() == Rank(1) ? difference.call(c) : SumOf(c, 16);
        },
        WithTimeout(GetParam().notices_mismatch ? absl::Seconds(20)
                                                : absl::Seconds(2)));
    if (!GetParam().notices_mismatch) continue;  // The call only has to return.
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_THAT(outcomes[r].status,
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr("of 16 f32, sum"),
                                 HasSubstr(difference.other))))
          << "rank " << r;
    }
  }
}

TEST_P(FaultTest, SizeMismatchErrorShowsBothSizes) {
  if (!GetParam().notices_mismatch) GTEST_SKIP() << "an option there";
  const auto outcomes = GetParam().run(
      2,
      [](Communicator& c) -> absl::Status {
        std::vector<float> values(100);
        if (c.rank() == Rank(0)) {
          // A send may complete before its receive; in this case the group is
          // broken afterwards.
          TESSERA_RETURN_IF_ERROR(
              c.Send(ConstBuffer(std::span(values)), Rank(1)));
          return c.Barrier();
        }
        return c.Receive(Buffer(std::span(values).first(99)), Rank(0));
      },
      WithTimeout(absl::Seconds(20)));
  EXPECT_THAT(outcomes[1].status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("100 f32"), HasSubstr("99 f32"))));
  EXPECT_THAT(outcomes[0].status, Not(IsOk()));
}

TEST_P(FaultTest, AbortUnblocksEveryWaiter) {
  const bool everywhere = GetParam().abort_reaches_peers;
  const auto outcomes = GetParam().run(
      3,
      [&](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(c.Barrier({.timeout = absl::Seconds(20)}));
        std::optional<std::thread> aborter;
        if (c.rank() == Rank(0)) {
          aborter.emplace([&c] {
            absl::SleepFor(absl::Milliseconds(100));
            c.Abort("the user pressed stop");
          });
        } else if (c.rank() == Rank(2)) {
          // Without a running operation.
          absl::SleepFor(absl::Milliseconds(500));
        }
        const absl::Status status = c.Barrier();
        if (aborter) aborter->join();
        return status;
      },
      WithTimeout(everywhere ? absl::Seconds(30) : absl::Seconds(2)));
  EXPECT_THAT(outcomes[0].status, StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("the user pressed stop")));
  if (!everywhere) return;
  EXPECT_THAT(outcomes[1].status, StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("the user pressed stop")));
  EXPECT_TRUE(Says(outcomes[2].status, "the user pressed stop"))
      << outcomes[2].status;
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_LT(outcome.took, absl::Seconds(20));
  }
}

TEST_P(FaultTest, RejectsCallsAfterErrorWithReason) {
  const auto outcomes = GetParam().run(
      2,
      [](Communicator& c) -> absl::Status {
        c.Abort("enough");
        EXPECT_THAT(c.status(), StatusIs(absl::StatusCode::kAborted));
        for (const absl::Status& later :
             {c.Barrier(), SumOf(c, 3), c.Send(ConstBuffer(), Rank(0)),
              c.Start(BarrierOf()).status()}) {
          EXPECT_THAT(later, StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("refuses further work"),
                                            HasSubstr("enough"))));
        }
        return absl::OkStatus();
      },
      {});
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk());
  }
}

TEST_P(FaultTest, OtherGroupsContinueWhenOneBreaks) {
  const auto outcomes = GetParam().run(
      4,
      [](Communicator& c) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(auto pair, c.Split(c.rank().value() / 2, 0));
        TESSERA_RETURN_IF_ERROR(pair->Barrier());
        // Completed work of a device reports the error if its group breaks.
        TESSERA_RETURN_IF_ERROR(c.host().Barrier());
        if (c.rank().value() < 2) {
          if (c.rank() == Rank(0)) pair->Abort("only this pair");
          EXPECT_THAT(pair->Barrier(), Not(IsOk()));
        } else {
          for (int i = 0; i < 100; ++i) {
            TESSERA_RETURN_IF_ERROR(SumOf(*pair, 10));
          }
        }
        // An error ends device work, but not host work.
        return SumOf(c.host(), 1000);
      },
      {});
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk());
  }
}

// Tests of ranks that fork, die, stop or leave, and of the resulting errors.

TEST_P(FaultTest, RejectsForkedChildAndParentContinues) {
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

TEST_P(FaultTest, EverySurvivorNamesKilledRank) {
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
                             AllOf(HasSubstr("rank 1"), SaysDead())))
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

// The ways in which a rank receives 10 f32 with tag 5, from rank 1 or from any
// rank.
std::vector<NamedCall> ReceivesWithTags() {
  const auto waits = [](Rank source) {
    return [source](Communicator& c) {
      std::vector<float> in(10);
      return c.Run(ReceiveOf(Buffer(std::span(in)), source, 5));
    };
  };
  const auto asks = [](Communicator& c) -> absl::Status {
    std::vector<float> in(10);
    TESSERA_ASSIGN_OR_RETURN(
        const Work work, c.Start(ReceiveOf(Buffer(std::span(in)), Rank(1), 5)));
    while (true) {
      TESSERA_ASSIGN_OR_RETURN(const bool done, work.Test());
      if (done) return absl::OkStatus();
      absl::SleepFor(absl::Milliseconds(1));
    }
  };
  return {{"from rank 1", waits(Rank(1))},
          {"from any rank", waits(kAnySource)},
          {"started", asks}};
}

TEST_P(FaultTest, ReceivesWithTagsEndAtTheDeadline) {
  if (!GetParam().has_tags) GTEST_SKIP() << "no tags";
  for (const NamedCall& call : ReceivesWithTags()) {
    SCOPED_TRACE(call.name);
    const auto outcomes = GetParam().run(
        3,
        [&](Communicator& c) -> absl::Status {
          TESSERA_RETURN_IF_ERROR(c.Barrier({.timeout = absl::Seconds(20)}));
          // A message with another tag does not match.
          const float other = 1;
          if (c.rank() == Rank(0)) return call.call(c);
          absl::Status sent;
          if (c.rank() == Rank(1)) {
            sent = c.Run(SendOf(ConstBuffer(std::span(&other, 1)), Rank(0), 4));
          }
          absl::SleepFor(absl::Milliseconds(900));
          return sent;
        },
        WithTimeout(absl::Milliseconds(300)));
    EXPECT_THAT(outcomes[0].status,
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("rank 1"), HasSubstr("tag 5"))));
    EXPECT_THAT(outcomes[1].status, IsOk());
  }
}

TEST_P(FaultTest, ReceivesWithTagsEndWhenTheGroupIsAborted) {
  if (!GetParam().has_tags) GTEST_SKIP() << "no tags";
  for (const NamedCall& call : ReceivesWithTags()) {
    SCOPED_TRACE(call.name);
    const auto outcomes = GetParam().run(
        2,
        [&](Communicator& c) -> absl::Status {
          TESSERA_RETURN_IF_ERROR(c.Barrier());
          if (c.rank() == Rank(0)) return call.call(c);
          absl::SleepFor(absl::Milliseconds(100));
          c.Abort("enough");
          absl::SleepFor(absl::Milliseconds(300));
          return absl::OkStatus();
        },
        WithTimeout(absl::Seconds(20)));
    EXPECT_THAT(outcomes[0].status,
                StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
    EXPECT_LT(outcomes[0].took, absl::Seconds(10));
  }
}

TEST_P(FaultTest, ReceivesWithTagsNameAKilledRank) {
  if (!GetParam().has_tags || !GetParam().ranks_are_processes) {
    GTEST_SKIP() << "no tags, or ranks are threads";
  }
  for (const NamedCall& call : ReceivesWithTags()) {
    SCOPED_TRACE(call.name);
    // A connection that is lost may be that of a rank that has left: if any
    // rank may send, the others must be gone, too.
    const bool may_leave =
        !GetParam().says_dead && call.name == "from any rank";
    const auto outcomes = GetParam().run(
        may_leave ? 2 : 3,
        [&](Communicator& c) -> absl::Status {
          TESSERA_RETURN_IF_ERROR(c.Barrier());
          if (c.rank() == Rank(1)) raise(SIGKILL);
          return call.call(c);
        },
        WithTimeout(absl::Seconds(20)));
    for (size_t r = 0; r < outcomes.size(); ++r) {
      if (r == 1) continue;
      EXPECT_THAT(outcomes[r].status,
                  StatusIs(absl::StatusCode::kUnavailable,
                           AllOf(HasSubstr("rank 1"), SaysDead())));
      EXPECT_LT(outcomes[r].took, absl::Seconds(10));
    }
  }
}

// Ranks prepare sums of 4 and 5 f32 and run the first three times; then rank 1
// calls `other` and the others run the sum of 4 once more.
std::vector<RankOutcome> RunPrepared(
    absl::Duration timeout,
    const std::function<absl::Status(Communicator&, PreparedOperation& of_four,
                                     PreparedOperation& of_five)>& other) {
  return FaultTest::GetParam().run(
      3,
      [&](Communicator& c) -> absl::Status {
        const CallOptions slow = {.timeout = absl::Seconds(20)};
        TESSERA_RETURN_IF_ERROR(c.Barrier(slow));
        std::vector<float> values(5, 1.0f);
        const Buffer five{std::span(values)};
        const Buffer four = five.Slice(0, 4);
        TESSERA_ASSIGN_OR_RETURN(
            PreparedOperation of_four,
            c.Prepare(AllReduceOf(four, four, Reduction::Sum())));
        TESSERA_ASSIGN_OR_RETURN(
            PreparedOperation of_five,
            c.Prepare(AllReduceOf(five, five, Reduction::Sum())));
        for (int i = 0; i < 3; ++i) {
          TESSERA_RETURN_IF_ERROR(of_four.Run());
        }
        return c.rank() == Rank(1) ? other(c, of_four, of_five) : of_four.Run();
      },
      WithTimeout(timeout));
}

TEST_P(FaultTest, PreparedRunNamesLateRankAtDeadline) {
  const auto outcomes = RunPrepared(
      absl::Milliseconds(500),
      [](Communicator&, PreparedOperation& of_four, PreparedOperation&) {
        absl::SleepFor(absl::Milliseconds(2000));
        return of_four.Run();
      });
  for (size_t r : {0, 2}) {
    EXPECT_THAT(outcomes[r].status,
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    if (!GetParam().knows_peers) continue;
    // On a device the preparations are collectives of the host.
    EXPECT_THAT(
        std::string(outcomes[r].status.message()),
        AllOf(HasSubstr("world"), HasSubstr("of 4 f32"), HasSubstr("rank 1"),
              ::testing::AnyOf(HasSubstr("operation #7; its last was #6"),
                               HasSubstr("operation #5; its last was #4"))));
  }
  EXPECT_THAT(outcomes[1].status, Not(IsOk()));
}

TEST_P(FaultTest, PreparedMismatchErrorShowsBothSidesOnEveryRank) {
  const auto timeout =
      GetParam().notices_mismatch ? absl::Seconds(20) : absl::Seconds(2);
  const auto prepared = RunPrepared(
      timeout, [](Communicator&, PreparedOperation&,
                  PreparedOperation& of_five) { return of_five.Run(); });
  const auto ordinary =
      RunPrepared(timeout, [](Communicator& c, PreparedOperation&,
                              PreparedOperation&) { return SumOf(c, 5); });
  const auto large =
      RunPrepared(timeout, [](Communicator& c, PreparedOperation&,
                              PreparedOperation&) { return SumOf(c, 5000); });
  if (!GetParam().notices_mismatch) return;  // The call only has to return.
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_THAT(prepared[r].status,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("of 4 f32, sum"),
                               HasSubstr("of 5 f32, sum"))));
    EXPECT_THAT(ordinary[r].status,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("of 4 f32, sum"),
                               HasSubstr("of 5 f32, sum"))));
    EXPECT_THAT(large[r].status,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("of 4 f32, sum"),
                               HasSubstr("of 5000 f32, sum"))));
  }
}

TEST_P(FaultTest, AbortEndsPreparedRun) {
  const bool everywhere = GetParam().abort_reaches_peers;
  const auto outcomes = RunPrepared(
      everywhere ? absl::Seconds(30) : absl::Seconds(2),
      [](Communicator& c, PreparedOperation& of_four, PreparedOperation&) {
        absl::SleepFor(absl::Milliseconds(100));
        c.Abort("enough");
        const absl::Status later = of_four.Run();
        EXPECT_THAT(later, StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("refuses further work")));
        absl::SleepFor(absl::Milliseconds(300));
        return absl::OkStatus();
      });
  for (size_t r : {0, 2}) {
    EXPECT_THAT(outcomes[r].status, Not(IsOk()));
    if (!everywhere) continue;
    EXPECT_THAT(outcomes[r].status,
                StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
    EXPECT_LT(outcomes[r].took, absl::Seconds(20));
  }
}

TEST_P(FaultTest, PreparedRunNamesKilledRank) {
  if (!GetParam().ranks_are_processes) GTEST_SKIP() << "ranks are threads";
  const bool notices = GetParam().notices_death;
  const auto outcomes =
      RunPrepared(notices ? absl::Seconds(40) : absl::Seconds(3),
                  [](Communicator&, PreparedOperation&, PreparedOperation&) {
                    raise(SIGKILL);
                    return absl::OkStatus();
                  });
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  for (size_t r : {0, 2}) {
    EXPECT_THAT(outcomes[r].status, Not(IsOk()));
    if (!notices) continue;
    EXPECT_THAT(outcomes[r].status,
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("rank 1"), SaysDead())));
    EXPECT_LT(outcomes[r].took, absl::Seconds(30));
  }
}

TEST_P(FaultTest, TreatsStoppedRankAsMissing) {
  if (!GetParam().ranks_are_processes) GTEST_SKIP() << "ranks are threads";
  const auto outcomes = GetParam().run(
      3,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(c.Barrier({.timeout = absl::Seconds(20)}));
        if (c.rank() == Rank(1)) raise(SIGSTOP);
        return SumOf(c, 1000);
      },
      WithTimeout(absl::Seconds(1)));
  EXPECT_EQ(outcomes[1].signal, SIGKILL);  // Killed by the harness at the end.
  for (size_t r : {0, 2}) {
    EXPECT_THAT(outcomes[r].status,
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    if (GetParam().knows_peers) {
      EXPECT_TRUE(Says(outcomes[r].status, "rank 1")) << outcomes[r].status;
    }
  }
}

TEST_P(FaultTest, DepartureDoesNotFailFinishedOperations) {
  const auto outcomes = GetParam().run(
      3,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(SumOf(c, 100));
        // Rank 0 returns at once; the others continue to communicate.
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

TEST_P(FaultTest, WritesFlightRecorderWhenGroupBreaks) {
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

void FaultTest::TearDown() {
  errno = 0;
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FaultTest);

}  // namespace tessera::collectives
