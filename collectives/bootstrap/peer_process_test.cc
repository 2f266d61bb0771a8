#include "collectives/bootstrap/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::HasSubstr;

constexpr char kId[] =
    "3f0c1d2e-0000-4000-8000-0123456789ab:4026531836:4026531840";

TEST(HostIdTest, IsStableForThisProcess) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HostId a, HostId::Self());
  TESSERA_ASSERT_OK_AND_ASSIGN(const HostId b, HostId::Self());
  EXPECT_EQ(a, b);
  EXPECT_LE(a.ToString().size(), 100u);
  EXPECT_THAT(HostId::Parse(a.ToString()), IsOkAndHolds(a));
}

TEST(HostIdTest, DistinguishesMachinesAndNamespaces) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HostId id, HostId::Parse(kId));
  EXPECT_EQ(id.ToString(), kId);
  for (const size_t at : {size_t{0}, size_t{45}, std::string(kId).size() - 1}) {
    std::string other = kId;
    other[at] = other[at] == '1' ? '2' : '1';
    TESSERA_ASSERT_OK_AND_ASSIGN(const HostId other_id, HostId::Parse(other));
    EXPECT_NE(other_id, id) << other;
  }
}

TEST(HostIdTest, RejectsOtherTexts) {
  const std::string id = kId;
  for (const std::string& text :
       {std::string(), std::string("a:1:2"), id + ":3", id + "x", " " + id,
        id.substr(1), std::string(100'000, ':'), "z" + id.substr(1)}) {
    EXPECT_THAT(HostId::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("is not a host id")));
  }
}

TEST(HostNameTest, IsShort) {
  EXPECT_FALSE(HostName().empty());
  EXPECT_LE(HostName().size(), 64u);
}

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PeerProcessTest, ReadsBack) {
  TESSERA_ASSERT_OK_AND_ASSIGN(PeerProcess self, PeerProcess::Self());
  EXPECT_EQ(self.pid, getpid());
  EXPECT_GT(self.start_ticks, 0u);
  EXPECT_THAT(PeerProcess::Parse(self.ToString()), IsOkAndHolds(self));
  self.host_name = "a name with spaces";
  EXPECT_THAT(PeerProcess::Parse(self.ToString()), IsOkAndHolds(self));
  EXPECT_LE(self.ToString().size(), 300u);
}

TEST(PeerProcessTest, RejectsOtherTexts) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const PeerProcess self, PeerProcess::Self());
  const std::string text = self.ToString();
  for (const std::string& wrong :
       {std::string(), std::string("1 2 3 4"), " " + text, "-" + text,
        "0" + text, text + std::string(100, 'x'), std::string(10'000, ' ')}) {
    EXPECT_THAT(PeerProcess::Parse(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << wrong;
  }
}

TEST(PidFdTest, ReportsProcessDeath) {
  const int before = CountDescriptors();
  {
    const pid_t child = StartProcess([] {
      pause();
      return 0;
    });
    TESSERA_ASSERT_OK_AND_ASSIGN(const UniqueFd pidfd, OpenPidFd(child));
    EXPECT_NE(fcntl(pidfd.get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_FALSE(IsDead(pidfd));
    kill(child, SIGKILL);
    pollfd one = {pidfd.get(), POLLIN, 0};
    EXPECT_EQ(poll(&one, 1, 10'000), 1);
    EXPECT_TRUE(IsDead(pidfd));  // Also before it is reaped.
    WaitForProcess(child);
    EXPECT_TRUE(IsDead(pidfd));
    EXPECT_THAT(OpenPidFd(child),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("has ended")));
  }
  EXPECT_EQ(CountDescriptors(), before);
}

TEST(PidFdTest, DistinguishesReusedPid) {
  TESSERA_ASSERT_OK_AND_ASSIGN(PeerProcess self, PeerProcess::Self());
  TESSERA_ASSERT_OK_AND_ASSIGN(const UniqueFd pidfd, OpenPidFd(self));
  EXPECT_FALSE(IsDead(pidfd));
  --self.start_ticks;
  EXPECT_THAT(OpenPidFd(self), StatusIs(absl::StatusCode::kNotFound));
}

TEST(PidFdTest, RejectsProcessOfAnotherHost) {
  TESSERA_ASSERT_OK_AND_ASSIGN(PeerProcess self, PeerProcess::Self());
  TESSERA_ASSERT_OK_AND_ASSIGN(
      self.host, HostId::Parse("00000000-0000-0000-0000-000000000000:1:1"));
  self.host_name = "far";
  EXPECT_THAT(OpenPidFd(self), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        AllOf(HasSubstr("is on host far"),
                                              HasSubstr("cannot be watched"))));
}

// Another process writes to memory of this one.
TEST(OpenDescriptorTest, ReallySharesMemory) {
  const int before = CountDescriptors();
  {
    const UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(memory.get(), 8192), 0);
    TESSERA_ASSERT_OK_AND_ASSIGN(const PeerProcess self, PeerProcess::Self());
    const pid_t child = StartProcess([&] {
      const auto file = OpenDescriptorOf(self, memory.get());
      if (!file.ok() || file->get() == memory.get()) return 1;
      if ((fcntl(file->get(), F_GETFD) & FD_CLOEXEC) == 0) return 2;
      void* const mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE,
                                MAP_SHARED, file->get(), 0);
      if (mapped == MAP_FAILED) return 3;
      static_cast<char*>(mapped)[5000] = 'x';
      return 0;
    });
    EXPECT_EQ(WaitForProcess(child), 0);
    char written = 0;
    EXPECT_EQ(pread(memory.get(), &written, 1, 5000), 1);
    EXPECT_EQ(written, 'x');
    EXPECT_EQ(CountDescriptors(), before + 1);
  }
  EXPECT_EQ(CountDescriptors(), before);
}

TEST(OpenDescriptorTest, RejectsReusedPidAndMissingDescriptor) {
  const int before = CountDescriptors();
  TESSERA_ASSERT_OK_AND_ASSIGN(PeerProcess self, PeerProcess::Self());
  EXPECT_THAT(OpenDescriptorOf(self, 987'654),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/fd/987654")));
  const UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
  --self.start_ticks;
  EXPECT_THAT(OpenDescriptorOf(self, memory.get()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has ended")));
  EXPECT_EQ(CountDescriptors(), before + 1);
}

TEST(ExchangeProcessesTest, ReturnsProcessOfEveryMember) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores, MakeInProcessStores(3));
  TESSERA_ASSERT_OK_AND_ASSIGN(const PeerProcess self, PeerProcess::Self());
  const std::vector<Rank> members = {Rank(2), Rank(0)};
  RunThreads(2, [&](int i) {
    Store& store = *stores[members[i].value()];
    EXPECT_THAT(
        ExchangeProcesses(store, members, "a", absl::Now() + absl::Seconds(20)),
        IsOkAndHolds(std::vector<PeerProcess>{self, self}));
  });
}

}  // namespace

}  // namespace tessera::collectives
