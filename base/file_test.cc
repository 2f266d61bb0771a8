#include "base/file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Creates an empty directory for the test.
std::string NewDirectory() {
  std::string path = ::testing::TempDir() + "/file_test.XXXXXX";
  return mkdtemp(path.data());
}

size_t EntriesIn(const std::string& directory) {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator(directory),
                    std::filesystem::directory_iterator()));
}

TEST(FileTest, ReadsBackWrittenContents) {
  const std::string path = NewDirectory() + "/f";
  for (const std::string& contents :
       {std::string(), std::string("a"), std::string(300'000, '\0')}) {
    TESSERA_ASSERT_OK(WriteFile(path, contents));
    EXPECT_THAT(ReadFile(path, 300'000), IsOkAndHolds(contents));
  }
}

TEST(FileTest, LeavesOneFileWithTheUsualMode) {
  const std::string directory = NewDirectory();
  TESSERA_ASSERT_OK(WriteFile(directory + "/f", "x"));
  TESSERA_ASSERT_OK(WriteFile(directory + "/f", "y"));
  EXPECT_EQ(EntriesIn(directory), 1u);
  const mode_t mask = umask(0);
  umask(mask);
  struct stat info;
  ASSERT_EQ(stat((directory + "/f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
}

TEST(FileTest, RejectsTooLargeFile) {
  const std::string path = NewDirectory() + "/f";
  TESSERA_ASSERT_OK(WriteFile(path, "12345"));
  EXPECT_THAT(ReadFile(path, 5), IsOkAndHolds("12345"));
  EXPECT_THAT(ReadFile(path, 4), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("4 bytes")));
}

TEST(FileTest, NamesUnreadableOrUnwritablePath) {
  EXPECT_THAT(ReadFile("/nonexistent/f", 1),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("cannot open \"/nonexistent/f\"")));
  EXPECT_THAT(WriteFile("/nonexistent/f", "x"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("make a new file beside \"/nonexistent/f\"")));
  EXPECT_THAT(ReadFile("/", 1), Not(IsOk()));
}

TEST(FileTest, FailedWriteKeepsOldFileAndNoTemporary) {
  const std::string directory = NewDirectory();
  const std::string path = directory + "/f";
  TESSERA_ASSERT_OK(WriteFile(path, "old"));
  // The system refuses to write beyond this size.
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteFile(path, std::string(5000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(status, Not(IsOk()));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot write \"" + path));
  EXPECT_THAT(ReadFile(path, 100), IsOkAndHolds("old"));
  EXPECT_EQ(EntriesIn(directory), 1u);
}

TEST(FileTest, KeepsTheModeOfTheFileItReplaces) {
  const std::string path = NewDirectory() + "/f";
  TESSERA_ASSERT_OK(WriteFile(path, "x"));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  TESSERA_ASSERT_OK(WriteFile(path, "y"));
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(FileTest, DoesNotReplaceDirectory) {
  const std::string directory = NewDirectory();
  ASSERT_TRUE(std::filesystem::create_directories(directory + "/f/full"));
  EXPECT_THAT(std::string(WriteFile(directory + "/f", "x").message()),
              HasSubstr("\"" + directory + "/f\": it is a directory"));
  EXPECT_TRUE(std::filesystem::is_directory(directory + "/f/full"));
  EXPECT_EQ(EntriesIn(directory), 1u);
}

TEST(FileTest, SkipsLeftoverTemporaryFiles) {
  const std::string path = NewDirectory() + "/f";
  for (int i = 0; i < 100; ++i) {
    std::ofstream(path + "." + std::to_string(getpid()) + "." +
                  std::to_string(i) + ".tmp")
        << "left";
  }
  TESSERA_ASSERT_OK(WriteFile(path, "new"));
  EXPECT_THAT(ReadFile(path, 9), IsOkAndHolds("new"));
}

TEST(FileTest, ReadersNeverSeePartialFile) {
  const std::string path = NewDirectory() + "/f";
  TESSERA_ASSERT_OK(WriteFile(path, std::string(100'000, 'a')));
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) {
      TESSERA_EXPECT_OK(
          WriteFile(path, std::string(100'000, i % 2 ? 'a' : 'b')));
    }
    done = true;
  });
  while (!done) {
    const auto contents = ReadFile(path, 1'000'000);
    ASSERT_THAT(contents, IsOk());
    ASSERT_EQ(*contents, std::string(100'000, contents->front()));
  }
  writer.join();
}

}  // namespace
}  // namespace tessera
