// Needs OpenSSL; skipped if the build has none.
#include "collectives/bootstrap/join_job.h"

#include <unistd.h>

#include <cstdlib>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/job_secret.h"
#include "collectives/channel/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

topology::EnvironmentLookup Lookup(Variables variables) {
  return [variables = std::move(variables)](
             std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    if (it == variables.end()) return std::nullopt;
    return it->second;
  };
}

Variables Torchrun(int rank, int size) {
  return {{"RANK", absl::StrCat(rank)},
          {"LOCAL_RANK", absl::StrCat(rank)},
          {"WORLD_SIZE", absl::StrCat(size)},
          {"LOCAL_WORLD_SIZE", absl::StrCat(size)}};
}

Variables OpenMpi(int rank, int size, const std::string& job) {
  return {{"OMPI_COMM_WORLD_RANK", absl::StrCat(rank)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", absl::StrCat(rank)},
          {"OMPI_COMM_WORLD_SIZE", absl::StrCat(size)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", absl::StrCat(size)},
          {"PMIX_NAMESPACE", job}};
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables Tcp(int rank, int size, int port) {
  return With(Torchrun(rank, size),
              {{"MASTER_ADDR", "127.0.0.1"},
               {"MASTER_PORT", absl::StrCat(port)},
               {"TESSERA_JOB_SECRET", "a job's secret!!"}});
}

JoinOptions Within(absl::Duration timeout) { return {.timeout = timeout}; }

// Joins as each rank and gathers.
void CheckJob(const std::vector<Variables>& ranks) {
  const int size = static_cast<int>(ranks.size());
  std::vector<std::string> expected;
  for (int i = 0; i < size; ++i) expected.push_back(absl::StrCat("text ", i));
  RunThreads(size, [&](int i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        Job job, JoinJob(Lookup(ranks[i]), Within(absl::Seconds(20))));
    EXPECT_EQ(job.rank, Rank(i));
    EXPECT_EQ(job.world_size, AxisSize(size));
    EXPECT_EQ(job.environment.rank, Rank(i));
    EXPECT_EQ(job.store->size(), size);
    EXPECT_THAT(AllGather(*job.store, "a", expected[i],
                          absl::Now() + absl::Seconds(20)),
                IsOkAndHolds(expected));
  });
}

TEST(JoinJobTest, JoinsOverTcpUnderTorchrun) {
  const int before = CountDescriptors();
  for (int size = 1; size <= 9; ++size) {
    const int port = FreePort();
    std::vector<Variables> ranks;
    for (int i = 0; i < size; ++i) ranks.push_back(Tcp(i, size, port));
    CheckJob(ranks);
  }
  EXPECT_EQ(CountDescriptors(), before);
}

TEST(JoinJobTest, JoinsNextToTorchrunAgentStore) {
  // The agent's store listens on MASTER_PORT.
  auto addresses =
      ResolveTcp("127.0.0.1", 0, Deadline::After(absl::Seconds(5)));
  TESSERA_ASSERT_OK_AND_ASSIGN(const UniqueFd agent,
                               Listen(addresses->front()));
  const int port = LocalAddress(agent)->port();
  const std::string run = *RandomHex(8);
  std::vector<Variables> ranks;
  for (int i = 0; i < 3; ++i) {
    ranks.push_back(
        With(Tcp(i, 3, port), {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RUN_ID", run},
                               {"TORCHELASTIC_RESTART_COUNT", "0"}}));
  }
  CheckJob(ranks);
}

TEST(JoinJobTest, JoinsOverAbstractSocketUnderMpirun) {
  std::string home = absl::StrCat(::testing::TempDir(), "/homeXXXXXX");
  ASSERT_NE(mkdtemp(home.data()), nullptr);
  const std::string job = *RandomHex(8);
  const int before = CountDescriptors();
  for (int size = 2; size <= 5; ++size) {
    std::vector<Variables> ranks;
    for (int i = 0; i < size; ++i) {
      ranks.push_back(With(OpenMpi(i, size, absl::StrCat(job, ".", size)),
                           {{"HOME", home}}));
    }
    CheckJob(ranks);
  }
  EXPECT_EQ(CountDescriptors(), before);
}

TEST(JoinJobTest, JoinsOverInheritedSockets) {
  constexpr int kSize = 5;
  TESSERA_ASSERT_OK_AND_ASSIGN(auto sockets, MakeInheritedSockets(kSize));
  std::vector<pid_t> children;
  for (int i = 0; i < kSize; ++i) {
    children.push_back(StartProcess([&] {
      if (!sockets[i].PassOn()) return 1;
      const auto lookup = Lookup(With(
          Torchrun(i, kSize), {{kInheritedSocketsVariable, sockets[i].value}}));
      const auto job = JoinJob(lookup, Within(absl::Seconds(20)));
      if (!job.ok()) return 2;
      // The second join returns the reason for its failure.
      const auto again = JoinJob(lookup, Within(absl::Seconds(20)));
      for (UniqueFd& socket : sockets[i].sockets) socket.Release();
      return absl::IsFailedPrecondition(again.status()) ? 0 : 3;
    }));
  }
  sockets.clear();
  for (const pid_t child : children) EXPECT_EQ(WaitForProcess(child), 0);
}

TEST(JoinJobTest, JoinsWorldOfOneWithoutSettings) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Job job, JoinJob(Lookup(Torchrun(0, 1))));
  EXPECT_EQ(job.rank, Rank(0));
  TESSERA_EXPECT_OK(Barrier(*job.store, "b", absl::Now()));
}

TEST(JoinJobTest, ReturnsNotFoundWithoutLauncher) {
  EXPECT_THAT(JoinJob(Lookup({})), StatusIs(absl::StatusCode::kNotFound,
                                            HasSubstr("no launcher's")));
  EXPECT_THAT(JoinJob(Lookup({{"RANK", "x"}, {"LOCAL_RANK", "0"}})),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(JoinJobTest, EveryRankNamesLateRank) {
  const int port = FreePort();
  const absl::Time start = absl::Now();
  RunThreads(3, [&](int i) {
    const int rank = i < 2 ? i : 3;  // Rank 2 is missing.
    EXPECT_THAT(
        JoinJob(Lookup(Tcp(rank, 4, port)), Within(absl::Milliseconds(400))),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 AllOf(HasSubstr("the job did not form"),
                       HasSubstr("rank 2 never joined the job"))));
  });
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(400));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(JoinJobTest, EveryRankNamesLateRankZero) {
  const int port = FreePort();
  EXPECT_THAT(JoinJob(Lookup(Tcp(1, 2, port)), Within(absl::Milliseconds(100))),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("did not reach rank 0 at 127.0.0.1:"),
                             HasSubstr(absl::StrCat("MASTER_PORT=", port)))));
}

TEST(JoinJobTest, NamesVariableOfPortInUse) {
  auto addresses =
      ResolveTcp("127.0.0.1", 0, Deadline::After(absl::Seconds(5)));
  TESSERA_ASSERT_OK_AND_ASSIGN(const UniqueFd other,
                               Listen(addresses->front()));
  const int port = LocalAddress(other)->port();
  EXPECT_THAT(JoinJob(Lookup(Tcp(0, 2, port))),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr(absl::StrCat("MASTER_PORT=", port)),
                             HasSubstr("set TESSERA_MASTER_PORT to a free"))));
}

TEST(JoinJobTest, NamesVariablesOnSecretMismatch) {
  const int port = FreePort();
  RunThreads(2, [&](int i) {
    Variables mine = Tcp(i, 2, port);
    if (i == 1) mine["TESSERA_JOB_SECRET"] = "quite another secret";
    const auto job = JoinJob(Lookup(mine), Within(absl::Milliseconds(800)));
    if (i == 1) {
      EXPECT_THAT(job, StatusIs(absl::StatusCode::kPermissionDenied,
                                AllOf(HasSubstr("rank 1 of 2"),
                                      HasSubstr("TESSERA_JOB_SECRET"))));
    } else {
      EXPECT_THAT(job, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                HasSubstr("rank 1 never joined")));
    }
  });
}

TEST(JoinJobTest, RequiresSecretOffLoopback) {
  Variables mine = Tcp(0, 2, 29500);
  mine.erase("TESSERA_JOB_SECRET");
  mine["HOME"] = ::testing::TempDir();
  mine["MASTER_ADDR"] = "192.0.2.1";
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("set TESSERA_JOB_SECRET"));
  EXPECT_THAT(JoinJob(Lookup(mine)), refused);
  mine["MASTER_ADDR"] = "127.0.0.1";
  mine["TESSERA_BIND_ADDRESS"] = "0.0.0.0";
  EXPECT_THAT(JoinJob(Lookup(mine)), refused);
}

TEST(JoinJobTest, ExplainsNonLocalAddress) {
  Variables mine = Tcp(0, 2, 29500);
  mine["MASTER_ADDR"] = "192.0.2.1";
  EXPECT_THAT(JoinJob(Lookup(mine)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("TESSERA_BIND_ADDRESS")));
  mine["MASTER_ADDR"] = "no such host";
  EXPECT_THAT(JoinJob(Lookup(mine), Within(absl::Seconds(5))),
              ::testing::Not(IsOk()));
}

TEST(ProcessEnvironmentTest, ReadsThisProcessesVariables) {
  setenv("TESSERA_TEST_VARIABLE", "value", 1);
  EXPECT_EQ(ProcessEnvironment()("TESSERA_TEST_VARIABLE"), "value");
  unsetenv("TESSERA_TEST_VARIABLE");
  EXPECT_EQ(ProcessEnvironment()("TESSERA_TEST_VARIABLE"), std::nullopt);
}

}  // namespace
}  // namespace tessera::collectives
