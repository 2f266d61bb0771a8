// The small parts: children, cores, limits, program paths, signals, sockets.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/launch/children.h"
#include "tools/launch/core_binding.h"
#include "tools/launch/descriptor_limit.h"
#include "tools/launch/program_path.h"
#include "tools/launch/signals.h"
#include "tools/launch/socket_star.h"

namespace tessera::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ParentInStatTest, ReadsPastAnyName) {
  EXPECT_EQ(ParentInStat("12 (cat) S 7 12 12 0"), 7);
  EXPECT_EQ(ParentInStat("12 (a) S 3 (b) R 9 1"), 9);
  EXPECT_EQ(ParentInStat("12 (a\n) b) Z 4 1"), 4);
  for (const char* text : {"", "12", "12 (cat", "12 (cat)", "12 (cat) S",
                           "12 (cat) S x 1", "12 (cat) S  7"}) {
    EXPECT_EQ(ParentInStat(text), std::nullopt) << text;
  }
}

TEST(ListChildrenTest, HasRunningOnesAndZombies) {
  EXPECT_THAT(ListChildren(), IsOkAndHolds(IsEmpty()));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t runs = fork();
  if (runs == 0) {
    pause();
    _exit(0);
  }
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(ended), &info, WEXITED | WNOWAIT);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<pid_t> children,
                               ListChildren());
  EXPECT_THAT(children, ::testing::UnorderedElementsAre(runs, ended));
  kill(runs, SIGKILL);
  waitpid(runs, nullptr, 0);
  waitpid(ended, nullptr, 0);
  EXPECT_THAT(ListChildren(), IsOkAndHolds(IsEmpty()));
}

TEST(CoreBindingTest, GroupsHardwareThreadsByCore) {
  const auto half = [](int cpu) { return std::to_string(cpu % 4); };
  EXPECT_THAT(GroupByCore({0, 1, 2, 4, 5, 7}, half),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2),
                          ElementsAre(7)));
  EXPECT_THAT(GroupByCore({}, half), IsEmpty());
}

TEST(CoreBindingTest, GivesEachRankACoreOrSaysHowManyThereAre) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto one, CoresForRanks(1));
  ASSERT_EQ(one.size(), 1u);
  EXPECT_FALSE(one[0].empty());
  EXPECT_THAT(CoresForRanks(100000),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("100000 ranks need a core each, but this "
                                 "process may use ")));
}

TEST(DescriptorLimitTest, RaisesTheSoftLimitAndPutsItBack) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = 50;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto raised,
                                 DescriptorLimit::Raise(100));
    EXPECT_EQ(raised->original().rlim_cur, 50u);
    rlimit now;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
    EXPECT_EQ(now.rlim_cur, 100u);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto lower, DescriptorLimit::Raise(10));
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
    EXPECT_EQ(now.rlim_cur, 100u);
  }
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, 50u);
  if (limit.rlim_max == RLIM_INFINITY) return;
  EXPECT_THAT(
      DescriptorLimit::Raise(limit.rlim_max + 1),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("ulimit -Hn")));
}

class FindProgramTest : public ::testing::Test {
 protected:
  FindProgramTest() : directory_(testing::TempDir() + "/path_XXXXXX") {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }

  std::string Make(const std::string& name, mode_t mode) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n";
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  std::string directory_;
};

TEST_F(FindProgramTest, SearchesThePathInOrder) {
  const std::string path = Make("tool", 0755);
  EXPECT_THAT(FindProgram("tool", "/nowhere:" + directory_ + ":/bin"),
              IsOkAndHolds(path));
  EXPECT_THAT(FindProgram("sh", directory_ + ":/bin"), IsOkAndHolds("/bin/sh"));
  EXPECT_THAT(FindProgram(path, ""), IsOkAndHolds(path));
}

TEST_F(FindProgramTest, AnEmptyDirectoryIsTheWorkingDirectory) {
  Make("tool", 0755);
  char before[4096];
  ASSERT_NE(getcwd(before, sizeof(before)), nullptr);
  ASSERT_EQ(chdir(directory_.c_str()), 0);
  EXPECT_THAT(FindProgram("tool", "/nowhere:"), IsOkAndHolds("./tool"));
  EXPECT_THAT(FindProgram("./tool", ""), IsOkAndHolds("./tool"));
  ASSERT_EQ(chdir(before), 0);
}

TEST_F(FindProgramTest, SaysWhyThereIsNone) {
  const std::string plain = Make("plain", 0644);
  const auto refused = [](std::string_view message) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr(std::string(message)));
  };
  EXPECT_THAT(FindProgram("", "/bin"), refused("the name is empty"));
  EXPECT_THAT(FindProgram("zzz", "/bin"),
              refused("not found in PATH=/bin; a program of this directory is "
                      "./zzz"));
  EXPECT_THAT(FindProgram(plain, ""), refused("is it executable (chmod +x)?"));
  EXPECT_THAT(FindProgram("plain", directory_), refused("chmod +x"));
  EXPECT_THAT(FindProgram(directory_, ""), refused("Is a directory"));
  EXPECT_THAT(FindProgram(directory_ + "/none", ""), refused("No such file"));
  const auto long_name = FindProgram(std::string(100000, 'x'), "/bin");
  EXPECT_LT(long_name.status().message().size(), 600u);
}

TEST(SignalNameTest, NamesWhatHasAName) {
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
    raise(SIGHUP);   // Not asked for: has no effect later.
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

TEST(SocketStarTest, ConnectsRankZeroWithEachOtherInOrder) {
  for (size_t ranks = 1; ranks <= 9; ++ranks) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto sockets, MakeSocketStar(ranks));
    ASSERT_EQ(sockets.size(), ranks);
    ASSERT_EQ(sockets[0].size(), ranks - 1);
    for (size_t rank = 1; rank < ranks; ++rank) {
      ASSERT_EQ(sockets[rank].size(), 1u);
      const char sent = static_cast<char>(rank);
      char received = 0;
      ASSERT_EQ(write(sockets[rank][0].get(), &sent, 1), 1);
      ASSERT_EQ(recv(sockets[0][rank - 1].get(), &received, 1, MSG_DONTWAIT),
                1);
      EXPECT_EQ(received, sent);
    }
  }
}

TEST(SocketStarTest, TooFewDescriptorsAreAnError) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit low = {20, 20};
    setrlimit(RLIMIT_NOFILE, &low);
    const auto sockets = MakeSocketStar(100);
    _exit(absl::IsResourceExhausted(sockets.status()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tessera::tools
