#include "base/os/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() : directory_(::testing::TempDir() + "/atomic_XXXXXX") {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }

  size_t Entries() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(directory_),
                      std::filesystem::directory_iterator()));
  }

  std::string path() const { return directory_ + "/f"; }

  std::string directory_;
};

TEST_F(AtomicFileTest, AppearsWithCommit) {
  TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(path()));
  TESSERA_ASSERT_OK(file.Write(4, Bytes("late")));
  TESSERA_ASSERT_OK(file.Write(0, Bytes("not ")));
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_FALSE(file.committed());
  TESSERA_ASSERT_OK(file.Commit());
  EXPECT_TRUE(file.committed());
  EXPECT_EQ(Contents(path()), "not late");
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(AtomicFileTest, KeepsOldFileWithoutCommit) {
  std::ofstream(path()) << "old";
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(path()));
    TESSERA_ASSERT_OK(file.Write(0, Bytes("new")));
    EXPECT_EQ(Contents(path()), "old");
  }
  EXPECT_EQ(Contents(path()), "old");
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(AtomicFileTest, KeepsTheModeOfTheOldFile) {
  std::ofstream(path()) << "old";
  ASSERT_EQ(chmod(path().c_str(), 0640), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(path()));
  TESSERA_ASSERT_OK(file.Commit());
  struct stat info;
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(AtomicFileTest, ReservedBytesAreZero) {
  TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(path(), 8));
  TESSERA_ASSERT_OK(file.Write(2, Bytes("x")));
  TESSERA_ASSERT_OK(file.Commit());
  EXPECT_EQ(Contents(path()), std::string("\0\0x\0\0\0\0\0", 8));
}

TEST_F(AtomicFileTest, TwoWritersDoNotMix) {
  TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile a, AtomicFile::Create(path()));
  TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile b, AtomicFile::Create(path()));
  TESSERA_ASSERT_OK(a.Write(0, Bytes("first")));
  TESSERA_ASSERT_OK(b.Write(0, Bytes("2nd")));
  TESSERA_ASSERT_OK(a.Commit());
  EXPECT_EQ(Contents(path()), "first");
  TESSERA_ASSERT_OK(b.Commit());
  EXPECT_EQ(Contents(path()), "2nd");
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(AtomicFileTest, MovesWithItsTemporaryFile) {
  TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(path()));
  {
    AtomicFile moved = std::move(file);
    TESSERA_ASSERT_OK(moved.Write(0, Bytes("moved")));
    TESSERA_ASSERT_OK(moved.Commit());
  }
  EXPECT_EQ(Contents(path()), "moved");
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(AtomicFileTest, ErrorsNameThePath) {
  EXPECT_THAT(AtomicFile::Create("/nonexistent/f"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("make a new file beside \"/nonexistent/f\"")));
  ASSERT_TRUE(std::filesystem::create_directory(path()));
  EXPECT_THAT(AtomicFile::Create(path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("\"" + path() + "\": it is a directory")));
  ASSERT_EQ(rmdir(path().c_str()), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(path()));
  ASSERT_TRUE(std::filesystem::create_directories(path() + "/full"));
  EXPECT_THAT(std::string(file.Commit().message()),
              HasSubstr("cannot replace \"" + path() + "\""));
  EXPECT_FALSE(file.committed());
}

void Replace(const std::string& path, std::string_view text) {
  TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  TESSERA_ASSERT_OK(file.Write(0, Bytes(text)));
  TESSERA_ASSERT_OK(file.Commit());
}

TEST_F(AtomicFileTest, FollowsLinks) {
  namespace fs = std::filesystem;
  fs::create_directories(directory_ + "/a/b");
  std::ofstream(directory_ + "/a/target") << "old";
  fs::create_symlink("../target", directory_ + "/a/b/relative");
  fs::create_symlink(directory_ + "/a/b/relative", path());
  Replace(path(), "new");
  EXPECT_TRUE(fs::is_symlink(path()));
  EXPECT_TRUE(fs::is_symlink(directory_ + "/a/b/relative"));
  EXPECT_FALSE(fs::is_symlink(directory_ + "/a/target"));
  EXPECT_EQ(Contents(directory_ + "/a/target"), "new");
  // A link whose target does not exist yet.
  fs::create_symlink("a/missing", directory_ + "/dangling");
  Replace(directory_ + "/dangling", "made");
  EXPECT_TRUE(fs::is_symlink(directory_ + "/dangling"));
  EXPECT_EQ(Contents(directory_ + "/a/missing"), "made");
  fs::create_symlink("nowhere/f", directory_ + "/lost");
  EXPECT_THAT(AtomicFile::Create(directory_ + "/lost"),
              StatusIs(absl::StatusCode::kNotFound));
  fs::create_symlink("loop", directory_ + "/loop");
  EXPECT_FALSE(AtomicFile::Create(directory_ + "/loop").ok());
  EXPECT_TRUE(fs::is_symlink(directory_ + "/loop"));
}

TEST_F(AtomicFileTest, WritesToPipesInOrder) {
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  const UniqueFd reader(open(path().c_str(), O_RDONLY | O_NONBLOCK));
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile file,
                                 AtomicFile::Create(path(), 4));
    TESSERA_ASSERT_OK(file.Write(0, Bytes("one ")));
    TESSERA_ASSERT_OK(file.Write(4, Bytes("two")));
    EXPECT_THAT(file.Write(3, Bytes("x")),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("device or pipe")));
    TESSERA_ASSERT_OK(file.Commit());
    EXPECT_TRUE(file.committed());
  }
  char text[16] = {};
  EXPECT_EQ(read(reader.get(), text, sizeof(text)), 7);
  EXPECT_STREQ(text, "one two");
  EXPECT_TRUE(std::filesystem::is_fifo(path()));
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(AtomicFileTest, WritesToTerminals) {
  const UniqueFd terminal(posix_openpt(O_RDWR | O_NOCTTY));
  ASSERT_TRUE(terminal.valid());
  ASSERT_EQ(grantpt(terminal.get()), 0);
  ASSERT_EQ(unlockpt(terminal.get()), 0);
  const std::string device = ptsname(terminal.get());
  const UniqueFd other_end(open(device.c_str(), O_RDWR | O_NOCTTY));
  std::filesystem::create_symlink(device, path());
  Replace(path(), "shown");
  char text[16] = {};
  EXPECT_EQ(read(terminal.get(), text, sizeof(text)), 5);
  EXPECT_STREQ(text, "shown");
  EXPECT_TRUE(std::filesystem::is_character_file(device));
  EXPECT_TRUE(std::filesystem::is_symlink(path()));
}

TEST_F(AtomicFileTest, WritesDirectlyToRedirectedStandardOutput) {
  const UniqueFd log(
      open(path().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd before(dup(STDOUT_FILENO));
  dup2(log.get(), STDOUT_FILENO);
  ASSERT_EQ(write(STDOUT_FILENO, "a", 1), 1);
  Replace(path(), "b");
  Replace("/proc/self/fd/1", "c");
  ASSERT_EQ(write(STDOUT_FILENO, "d", 1), 1);
  dup2(before.get(), STDOUT_FILENO);
  EXPECT_EQ(Contents(path()), "abcd");
}

TEST_F(AtomicFileTest, SyncsDirectories) {
  TESSERA_EXPECT_OK(SyncDirectory(directory_));
  TESSERA_EXPECT_OK(SyncDirectory("/proc"));  // fsync: EINVAL.
  EXPECT_THAT(SyncDirectory(directory_ + "/missing"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
}

}  // namespace
}  // namespace tessera
