// Needs OpenSSL; skipped if the build has none.
#include "collectives/bootstrap/tls_store.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "collectives/bootstrap/testing/store_suite.h"
#include "collectives/channel/job_secret.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "a secret of the job";

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

TlsStoreOptions Options(int rank, int size, int port = 0) {
  TlsStoreOptions options;
  options.rank = Rank(rank);
  options.size = size;
  options.secret = kSecret;
  options.port = port;
  return options;
}

// Refusals are counted just after the client is notified.
int64_t AwaitRefusals(const ServedStore& store, int64_t count) {
  while (store.refusals() < count) absl::SleepFor(absl::Milliseconds(1));
  return store.refusals();
}

// Opens the stores of all ranks over TCP or over an abstract socket.
void OpenAll(int size, bool tcp, Stores* stores) {
  TlsStoreOptions options = Options(0, size);
  if (!tcp) {
    options.abstract_name = *RandomHex(16);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(auto served, ServeTlsStore(options, Soon()));
  options.port = served->port();
  EXPECT_EQ(options.port != 0, tcp);
  stores->resize(size);
  (*stores)[0] = std::move(served);
  RunThreads(size - 1, [&](int i) {
    TlsStoreOptions mine = options;
    mine.rank = Rank(i + 1);
    TESSERA_ASSERT_OK_AND_ASSIGN((*stores)[i + 1], OpenTlsStore(mine, Soon()));
  });
}

class TlsStoreSuiteTest : public ::testing::TestWithParam<int> {};

TEST_P(TlsStoreSuiteTest, PassesStoreConformance) {
  const int before = CountDescriptors();
  {
    Stores stores;
    ASSERT_NO_FATAL_FAILURE(OpenAll(GetParam(), GetParam() % 2 == 1, &stores));
    CheckSetAndGet(stores);
    CheckAllGather(stores, GetParam());
    CheckThreads(stores);
    CheckDeadline(stores);
    if (GetParam() >= 3) CheckLeaving(stores);
    // Rank 0 waits for ranks that still read.
    while (!stores.empty()) stores.pop_back();
  }
  EXPECT_EQ(CountDescriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Sizes, TlsStoreSuiteTest, ::testing::Range(1, 10));

TEST(TlsStoreTest, RankZeroMayComeLast) {
  const int port = FreePort();
  RunThreads(3, [&](int i) {
    if (i == 0) absl::SleepFor(absl::Milliseconds(200));
    TESSERA_ASSERT_OK_AND_ASSIGN(auto store,
                                 OpenTlsStore(Options(i, 3, port), Soon()));
    TESSERA_EXPECT_OK(Barrier(*store, "b", Soon()));
  });
}

TEST(TlsStoreTest, NamesUnreachableRankZero) {
  const absl::Time deadline = absl::Now() + absl::Milliseconds(200);
  EXPECT_THAT(ConnectTlsStore(Options(2, 3, 1), deadline),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 2 of 3 did not reach rank 0 at "
                                       "127.0.0.1:1 in time"),
                             HasSubstr("Connection refused"))));
  EXPECT_GE(absl::Now(), deadline);
  EXPECT_LT(absl::Now(), deadline + absl::Seconds(3));
}

TEST(TlsStoreTest, RejectsOtherSecretOrJobImmediately) {
  std::vector<std::string> lines;
  TlsStoreOptions options = Options(0, 3);
  options.on_refusal = [&](std::string line) { lines.push_back(line); };
  TESSERA_ASSERT_OK_AND_ASSIGN(auto served, ServeTlsStore(options, Soon()));
  TlsStoreOptions other = Options(1, 3, served->port());
  other.secret = "another secret, not it";
  const absl::Time start = absl::Now();
  EXPECT_THAT(
      ConnectTlsStore(other, Soon()),
      StatusIs(absl::StatusCode::kPermissionDenied,
               AllOf(HasSubstr("rank 1 of 3 at 127.0.0.1:"),
                     HasSubstr("another secret"), Not(HasSubstr("not it")),
                     Not(HasSubstr(kSecret)))));
  other = Options(1, 3, served->port());
  other.job = "other";
  EXPECT_THAT(ConnectTlsStore(other, Soon()),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("another job than \"other\"")));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(AwaitRefusals(*served, 2), 2);
  // Valid clients still connect.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto store, ConnectTlsStore(Options(1, 3, served->port()), Soon()));
  store.reset();
  served.reset();  // Its thread has ended, so all lines are written.
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("refused a connection"),
                              HasSubstr("127.0.0.1:"), HasSubstr("binder")));
  EXPECT_THAT(lines[0], Not(HasSubstr(kSecret)));
}

TEST(TlsStoreTest, AcceptsRankOnceAndWithMatchingSize) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto served,
                               ServeTlsStore(Options(0, 3), Soon()));
  const int port = served->port();
  TESSERA_ASSERT_OK_AND_ASSIGN(auto one,
                               ConnectTlsStore(Options(1, 3, port), Soon()));
  EXPECT_THAT(ConnectTlsStore(Options(1, 3, port), Soon()),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("rank 1 has already joined")));
  EXPECT_THAT(ConnectTlsStore(Options(2, 4, port), Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has world size 4, rank 0 has 3")));
  EXPECT_THAT(ConnectTlsStore(Options(0, 3, port), Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ConnectTlsStore(Options(3, 3, port), Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ServeTlsStore(Options(0, 0), Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(AwaitRefusals(*served, 2), 2);
  TESSERA_EXPECT_OK(one->Set("still", "here"));
}

TEST(TlsStoreTest, ReportsUnusablePortAndAddress) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto served,
                               ServeTlsStore(Options(0, 2), Soon()));
  EXPECT_THAT(ServeTlsStore(Options(0, 2, served->port()), Soon()),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("finds its port taken"),
                             HasSubstr(absl::StrCat(":", served->port())))));
  TlsStoreOptions foreign = Options(0, 2);
  foreign.host = "192.0.2.1";  // RFC 5737: reserved for documentation.
  EXPECT_THAT(ServeTlsStore(foreign, Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("an address of its own host")));
  foreign.bind_address = "127.0.0.1";
  TESSERA_EXPECT_OK(ServeTlsStore(foreign, Soon()).status());
}

TEST(TlsStoreProcessTest, KilledRankFailsWaitsForIt) {
  // Fork before any thread exists.
  int port_pipe[2];
  ASSERT_EQ(pipe(port_pipe), 0);
  const auto read_port = [&] {
    int port = 0;
    return read(port_pipe[0], &port, sizeof(port)) == sizeof(port) ? port : 1;
  };
  const pid_t victim = StartProcess([&] {
    auto store = ConnectTlsStore(Options(2, 3, read_port()), Soon());
    if (!store.ok() || !(*store)->Set("here", "").ok()) return 1;
    pause();
    return 2;
  });
  const pid_t witness = StartProcess([&] {
    auto store = ConnectTlsStore(Options(1, 3, read_port()), Soon());
    if (!store.ok()) return 1;
    const auto value = (*store)->GetFrom(Rank(2), "never", Soon());
    return absl::IsUnavailable(value.status()) ? 0 : 2;
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(auto served,
                               ServeTlsStore(Options(0, 3), Soon()));
  const int port = served->port();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(write(port_pipe[1], &port, sizeof(port)), ssize_t{sizeof(port)});
  }
  TESSERA_ASSERT_OK(served->Get("here", Soon()).status());
  kill(victim, SIGKILL);
  const absl::Time start = absl::Now();
  EXPECT_THAT(
      Barrier(*served, "b", Soon()),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("rank 2 (host "),
                     HasSubstr(absl::StrCat("pid ", victim, ") is lost")))));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(WaitForProcess(victim), -SIGKILL);
  EXPECT_EQ(WaitForProcess(witness), 0);
  close(port_pipe[0]);
  close(port_pipe[1]);
}

TEST(TlsStoreProcessTest, DeathOfRankZeroFailsEveryWait) {
  TlsStoreOptions options = Options(0, 3);
  options.abstract_name = *RandomHex(16);
  const pid_t zero = StartProcess([&] {
    auto store = ServeTlsStore(options, Soon());
    if (store.ok()) pause();
    return 1;
  });
  std::atomic<int> joined = 0;
  RunThreads(2, [&](int i) {
    TlsStoreOptions mine = options;
    mine.rank = Rank(i + 1);
    TESSERA_ASSERT_OK_AND_ASSIGN(auto store, ConnectTlsStore(mine, Soon()));
    TESSERA_ASSERT_OK(store->Set(absl::StrCat("rank ", i), ""));
    ++joined;
    while (joined < 2) absl::SleepFor(absl::Milliseconds(1));
    if (i == 0) kill(zero, SIGKILL);
    const auto lost = StatusIs(
        absl::StatusCode::kUnavailable,
        AllOf(HasSubstr(absl::StrCat("pid ", zero)), HasSubstr("rank 0 (host "),
              HasSubstr("closed the connection")));
    const absl::Time start = absl::Now();
    EXPECT_THAT(store->Get("never", Soon()), lost);
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
    EXPECT_THAT(store->Set("more", ""), lost);
    EXPECT_THAT(Barrier(*store, "b", Soon()), lost);
  });
  EXPECT_EQ(WaitForProcess(zero), -SIGKILL);
}

TEST(TlsStoreProcessTest, NamesHungRankZeroAtDeadline) {
  TlsStoreOptions options = Options(0, 2);
  options.abstract_name = *RandomHex(16);
  const pid_t zero = StartProcess([&] {
    auto store = ServeTlsStore(options, Soon());
    if (store.ok()) pause();
    return 1;
  });
  options.rank = Rank(1);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto store, ConnectTlsStore(options, Soon()));
  kill(zero, SIGSTOP);
  const absl::Time start = absl::Now();
  const auto silent = StatusIs(
      absl::StatusCode::kDeadlineExceeded,
      AllOf(HasSubstr(absl::StrCat("pid ", zero)), HasSubstr("not answer")));
  EXPECT_THAT(Barrier(*store, "b", start + absl::Milliseconds(100)), silent);
  EXPECT_THAT(store->Get("a", start + absl::Milliseconds(200)), silent);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  kill(zero, SIGKILL);
  EXPECT_EQ(WaitForProcess(zero), -SIGKILL);
}

TEST(TlsStoreTest, ReportsOrderlyExitOfRankZero) {
  Stores stores;
  ASSERT_NO_FATAL_FAILURE(OpenAll(2, true, &stores));
  stores[0].reset();
  EXPECT_THAT(stores[1]->Get("never", Soon()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 0 (host "),
                             HasSubstr("has left the job"))));
}

TEST(TlsStoreTest, RankZeroStaysUntilItsLastGatherIsRead) {
  for (int round = 0; round < 20; ++round) {
    Stores stores;
    ASSERT_NO_FATAL_FAILURE(OpenAll(4, false, &stores));
    RunThreads(4, [&](int i) {
      if (i == 3) absl::SleepFor(absl::Milliseconds(5));
      TESSERA_EXPECT_OK(Barrier(*stores[i], "last", Soon()));
      stores[i].reset();
    });
  }
}

TEST(TlsStoreTest, RejectsUseInForkedChild) {
  Stores stores;
  ASSERT_NO_FATAL_FAILURE(OpenAll(2, true, &stores));
  const pid_t child = StartProcess([&] {
    for (auto& store : stores) {
      if (!absl::IsFailedPrecondition(store->Set("a", "b"))) return 1;
      store.reset();  // Does not wait: no thread runs in this process.
    }
    return 0;
  });
  EXPECT_EQ(WaitForProcess(child), 0);
  TESSERA_EXPECT_OK(stores[1]->Set("a", "b"));
}

}  // namespace
}  // namespace tessera::collectives
