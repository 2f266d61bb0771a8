#include "collectives/bootstrap/fd_passing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

UniqueFd MakeMemory(size_t bytes) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

std::atomic<int>* Map(const UniqueFd& fd, size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  return memory == MAP_FAILED ? nullptr
                              : static_cast<std::atomic<int>*>(memory);
}

std::vector<Rank> Everybody(int size) {
  std::vector<Rank> ranks;
  for (int i = 0; i < size; ++i) ranks.emplace_back(i);
  return ranks;
}

// Each process sets its bit in memory created by the first process; all
// processes see all bits.
int ShareMemory(Store& store, const std::vector<Rank>& members) {
  constexpr size_t kBytes = 8192;
  UniqueFd mine;
  if (store.rank() == members[0]) mine = MakeMemory(kBytes);
  const auto fd = ShareFd(store, members, "memory", std::move(mine), Soon());
  if (!fd.ok() || (fcntl(fd->get(), F_GETFD) & FD_CLOEXEC) == 0) return 1;
  std::atomic<int>* memory = Map(*fd, kBytes);
  if (memory == nullptr) return 2;
  memory[1000] += 1 << store.rank().value();
  if (!Barrier(store, "written", Soon()).ok()) return 3;
  const int bits = memory[1000];
  munmap(memory, kBytes);
  return bits == (1 << members.size()) - 1 ? 0 : 4;
}

class ShareFdProcessTest : public ::testing::TestWithParam<int> {};

TEST_P(ShareFdProcessTest, ReallySharesMemory) {
  const int size = GetParam(), before = CountDescriptors();
  std::vector<Rank> members = Everybody(size);
  std::shuffle(members.begin(), members.end(), std::mt19937_64(size));
  std::vector<pid_t> children;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(auto sockets, MakeInheritedSockets(size));
    for (int i = 0; i < size; ++i) {
      children.push_back(StartProcess([&] {
        if (!sockets[i].PassOn()) return 10;
        auto store =
            OpenInheritedStore(sockets[i].value, Rank(i), size, Soon());
        for (UniqueFd& socket : sockets[i].sockets) socket.Release();
        return store.ok() ? ShareMemory(**store, members) : 11;
      }));
    }
  }
  for (const pid_t child : children) EXPECT_EQ(WaitForProcess(child), 0);
  EXPECT_EQ(CountDescriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShareFdProcessTest,
                         ::testing::Values(1, 2, 3, 5, 9));

class ShareFdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(stores_, MakeInProcessStores(3));
  }
  std::vector<std::unique_ptr<Store>> stores_;
};

TEST_F(ShareFdTest, ReportsMissingDescriptorToEveryMember) {
  RunThreads(3, [&](int i) {
    EXPECT_THAT(ShareFd(*stores_[i], Everybody(3), "none", UniqueFd(), Soon()),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(absl::StrCat("\"none\" on rank ", i)),
                               HasSubstr("rank 0 has no descriptor"))));
  });
}

TEST_F(ShareFdTest, NamesLateMember) {
  const int before = CountDescriptors();
  const absl::Time deadline = absl::Now() + absl::Milliseconds(200);
  RunThreads(2, [&](int i) {
    const auto fd =
        ShareFd(*stores_[i], Everybody(3), "late", MakeMemory(1), deadline);
    if (i == 0) {
      EXPECT_THAT(fd, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               HasSubstr("1 of 3 members have not asked for "
                                         "it: rank 2")));
    } else {
      TESSERA_EXPECT_OK(fd.status());
    }
  });
  EXPECT_GE(absl::Now(), deadline);
  EXPECT_LT(absl::Now(), deadline + absl::Seconds(3));
  EXPECT_EQ(CountDescriptors(), before);
}

TEST_F(ShareFdTest, NamesDepartedMemberImmediately) {
  stores_[2].reset();
  const absl::Time start = absl::Now();
  EXPECT_THAT(ShareFd(*stores_[0], Everybody(3), "gone", MakeMemory(1), Soon()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 2 (host "), HasSubstr("left"))));
  stores_[0].reset();
  EXPECT_THAT(ShareFd(*stores_[1], Everybody(3), "other", UniqueFd(), Soon()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 0 (host "), HasSubstr("left"))));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(ShareFdTest, RejectsInvalidMembers) {
  for (const std::vector<Rank>& members :
       {std::vector<Rank>{}, {Rank(1)}, {Rank(0), Rank(0)}}) {
    EXPECT_THAT(ShareFd(*stores_[0], members, "x", UniqueFd(), Soon()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("distinct ranks that include this one, 0")));
  }
}

// The names of all abstract sockets that ShareFd created in this network
// namespace.
std::vector<std::string> ListeningNames() {
  std::ifstream file("/proc/net/unix");
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find("@tessera-");
    if (at != std::string::npos) names.push_back(line.substr(at + 1));
  }
  return names;
}

TEST_F(ShareFdTest, UnauthorizedClientsGetNoDescriptor) {
  std::atomic<bool> done = false;
  std::atomic<int> connected = 0, received = 0;
  // Any process can find the socket; this one sends wrong data or none.
  std::thread stranger([&] {
    std::mt19937_64 random(1);
    std::vector<UniqueFd> kept;
    while (!done) {
      for (const std::string& name : ListeningNames()) {
        auto address = SocketAddress::Abstract(name);
        auto socket = Connect(*address, Deadline::After(absl::Seconds(1)));
        if (!socket.ok()) continue;
        ++connected;
        std::string request(random() % 100, 'a');
        SendAll(*socket, request, Deadline::After(absl::Seconds(1)))
            .IgnoreError();
        const auto fd =
            ReceiveFd(*socket, "x", Deadline::After(absl::Milliseconds(1)));
        if (fd.ok() || absl::IsPermissionDenied(fd.status())) ++received;
        if (kept.size() < 100) kept.push_back(*std::move(socket));
      }
    }
  });
  RunThreads(3, [&](int i) {
    if (i == 2) {  // Lets the stranger connect first.
      while (connected < 20) absl::SleepFor(absl::Milliseconds(1));
    }
    UniqueFd mine;
    if (i == 0) mine = MakeMemory(4096);
    TESSERA_EXPECT_OK(
        ShareFd(*stores_[i], Everybody(3), "s", std::move(mine), Soon())
            .status());
  });
  done = true;
  stranger.join();
  EXPECT_GE(connected, 20);
  EXPECT_EQ(received, 0);
}

TEST(SendFdTest, AcceptsOnlyOneDescriptorWithToken) {
  const Deadline deadline = Deadline::After(absl::Seconds(5));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto pair, SocketPair());
  const UniqueFd memory = MakeMemory(1);
  const int before = CountDescriptors();
  TESSERA_ASSERT_OK(SendFd(pair.first, memory, "token", deadline));
  TESSERA_EXPECT_OK(ReceiveFd(pair.second, "token", deadline).status());
  TESSERA_ASSERT_OK(SendFd(pair.first, memory, "other", deadline));
  EXPECT_THAT(ReceiveFd(pair.second, "token", deadline),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("the wrong token")));
  TESSERA_ASSERT_OK(SendAll(pair.first, "token", deadline));
  EXPECT_THAT(ReceiveFd(pair.second, "token", deadline),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("sent 0 descriptors")));
  EXPECT_THAT(SendFd(pair.first, memory, std::string(65, 't'), deadline),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      ReceiveFd(pair.second, "token", Deadline::After(absl::Milliseconds(10))),
      StatusIs(absl::StatusCode::kDeadlineExceeded));
  pair.first.Reset();
  EXPECT_THAT(ReceiveFd(pair.second, "token", deadline),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(CountDescriptors(), before - 1);
}

}  // namespace
}  // namespace tessera::collectives
