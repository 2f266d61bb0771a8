#include "collectives/bootstrap/inherited_sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "collectives/bootstrap/testing/store_suite.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

// Opens sockets in this process as if it had inherited them; a store takes
// ownership of the descriptors in `values`.
std::vector<std::string> Inherit(int size) {
  auto all = MakeInheritedSockets(size);
  EXPECT_THAT(all, IsOk());
  std::vector<std::string> values;
  for (InheritedSockets& mine : *all) {
    EXPECT_TRUE(mine.PassOn());
    for (UniqueFd& socket : mine.sockets) socket.Release();
    values.push_back(mine.value);
  }
  return values;
}

void CloseAll(std::string_view value) {
  for (std::string_view fd : absl::StrSplit(value, ',', absl::SkipEmpty())) {
    close(std::stoi(std::string(fd)));
  }
}

class InheritedSuiteTest : public ::testing::TestWithParam<int> {};

TEST_P(InheritedSuiteTest, PassesStoreConformance) {
  const int size = GetParam(), before = CountDescriptors();
  {
    const std::vector<std::string> values = Inherit(size);
    Stores stores(size);
    RunThreads(size, [&](int i) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          stores[i], OpenInheritedStore(values[i], Rank(i), size, Soon()));
    });
    CheckSetAndGet(stores);
    CheckAllGather(stores, size);
    CheckThreads(stores);
    CheckDeadline(stores);
    if (size >= 3) CheckLeaving(stores);
    // Rank 0 waits for ranks that still read.
    while (!stores.empty()) stores.pop_back();
  }
  EXPECT_EQ(CountDescriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Sizes, InheritedSuiteTest, ::testing::Range(1, 10));

TEST(InheritedSocketsTest, ServeProcessesAndReportDeaths) {
  const int before = CountDescriptors();
  constexpr int kSize = 4;
  std::vector<pid_t> children;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(auto sockets, MakeInheritedSockets(kSize));
    for (int i = 0; i < kSize; ++i) {
      children.push_back(StartProcess([&] {
        // Without exec, the other ranks' ends must be closed explicitly.
        for (int other = 0; other < kSize; ++other) {
          if (other != i) sockets[other].sockets.clear();
        }
        if (!sockets[i].PassOn()) return 1;
        auto store =
            OpenInheritedStore(sockets[i].value, Rank(i), kSize, Soon());
        if (!store.ok()) return 2;
        for (UniqueFd& socket : sockets[i].sockets) socket.Release();
        const auto all = AllGather(**store, "a", absl::StrCat(i), Soon());
        if (!all.ok() || (*all)[kSize - 1] != "3") return 3;
        if (i == kSize - 1) raise(SIGKILL);
        const absl::Status gone = Barrier(**store, "b", Soon());
        return absl::IsUnavailable(gone) &&
                       absl::StrContains(gone.message(), "rank 3 (host ")
                   ? 0
                   : 4;
      }));
    }
  }
  for (int i = 0; i < kSize; ++i) {
    EXPECT_EQ(WaitForProcess(children[i]), i == kSize - 1 ? -SIGKILL : 0) << i;
  }
  EXPECT_EQ(CountDescriptors(), before);
}

TEST(InheritedSocketsTest, NameRankThatDiedBeforeJoining) {
  std::vector<std::string> values = Inherit(3);
  CloseAll(values[2]);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto zero, OpenInheritedStore(values[0], Rank(0), 3, Soon()));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto one, OpenInheritedStore(values[1], Rank(1), 3, Soon()));
  RunThreads(2, [&](int i) {
    EXPECT_THAT(
        Barrier(i == 0 ? *zero : *one, "b", Soon()),
        StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2 is lost")));
  });
}

TEST(InheritedSocketsTest, CanBeOpenedOnlyOnce) {
  const std::vector<std::string> values = Inherit(2);
  const auto used = StatusIs(
      absl::StatusCode::kFailedPrecondition,
      AllOf(HasSubstr(absl::StrCat("TESSERA_INHERITED_SOCKETS=\"", values[0])),
            HasSubstr("has joined its job already")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto zero, OpenInheritedStore(values[0], Rank(0), 2, Soon()));
  EXPECT_NE(fcntl(std::stoi(values[0]), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_THAT(OpenInheritedStore(values[0], Rank(0), 2, Soon()), used);
  // The first join is unchanged.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto one, OpenInheritedStore(values[1], Rank(1), 2, Soon()));
  TESSERA_EXPECT_OK(one->Set("a", "b"));
  zero.reset();
  EXPECT_THAT(OpenInheritedStore(values[0], Rank(0), 2, Soon()), used);
}

TEST(InheritedSocketsTest, RejectInvalidDescriptorLists) {
  for (const char* value :
       {"", ",", "3", "3,4,5", "3,3", "a,4", "3,", ",3", "3,,4", "-1,4", "03,4",
        " 3,4", "3;4", "99999999999,4"}) {
    EXPECT_THAT(OpenInheritedStore(value, Rank(0), 3, Soon()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("list of 2 different descriptor"),
                               HasSubstr("of rank 0 of 3"))))
        << value;
  }
  EXPECT_THAT(OpenInheritedStore("3", Rank(3), 3, Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(OpenInheritedStore(std::string(100'000, '7'), Rank(1), 3, Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

void ExpectNoSocket(int fd) {
  const std::string value = absl::StrCat(fd);
  EXPECT_THAT(OpenInheritedStore(value, Rank(1), 2, Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("not a connected unix stream socket")));
  EXPECT_EQ(fcntl(fd, F_GETFD), 0);  // Open and unchanged.
  close(fd);
}

TEST(InheritedSocketsTest, RejectDescriptorsOfWrongKind) {
  EXPECT_THAT(OpenInheritedStore("987", Rank(1), 2, Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("descriptor 987 is not open")));
  ExpectNoSocket(open("/dev/null", O_RDWR));
  ExpectNoSocket(socket(AF_INET, SOCK_STREAM, 0));
  ExpectNoSocket(socket(AF_UNIX, SOCK_STREAM, 0));
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
  close(pair[1]);
  ExpectNoSocket(pair[0]);
  // One invalid descriptor does not affect the valid ones.
  const std::vector<std::string> values = Inherit(2);
  EXPECT_THAT(
      OpenInheritedStore(absl::StrCat(values[0], ",987"), Rank(0), 3, Soon()),
      StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(fcntl(std::stoi(values[0]), F_GETFD), 0);
  CloseAll(values[0]);
  CloseAll(values[1]);
}

TEST(InheritedSocketsTest, RejectGarbageFromPeer) {
  const std::vector<std::string> values = Inherit(2);
  std::string line;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto zero, OpenInheritedStore(values[0], Rank(0), 2, Soon(),
                                    [&](std::string said) { line = said; }));
  ASSERT_EQ(write(std::stoi(values[1]), "hello", 5), 5);
  EXPECT_THAT(Barrier(*zero, "b", Soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
  zero.reset();
  EXPECT_THAT(line, HasSubstr("not a message of the store's protocol"));
  CloseAll(values[1]);
}

TEST(InheritedSocketsTest, RejectRankOnSocketOfAnother) {
  const std::vector<std::string> values = Inherit(3);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto zero, OpenInheritedStore(values[0], Rank(0), 3, Soon()));
  EXPECT_THAT(OpenInheritedStore(values[1], Rank(2), 3, Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 2 used the socket of rank 1")));
  CloseAll(values[2]);
}

TEST(InheritedSocketsTest, WaitForRankZeroUntilTheDeadline) {
  const std::vector<std::string> values = Inherit(2);
  EXPECT_THAT(OpenInheritedStore(values[1], Rank(1), 2,
                                 absl::Now() + absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 of 2 cannot reach rank 0")));
  CloseAll(values[0]);
}

TEST(InheritedSocketsTest, RejectInvalidSizes) {
  EXPECT_THAT(MakeInheritedSockets(0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("for 0 ranks; use 1 to")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto one, MakeInheritedSockets(1));
  EXPECT_EQ(one[0].value, "");
}

}  // namespace
}  // namespace tessera::collectives
