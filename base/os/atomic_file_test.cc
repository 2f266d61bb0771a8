#include "base/os/atomic_file.h"

#include <sys/stat.h>

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
  ASSERT_TRUE(std::filesystem::create_directories(path() + "/full"));
  TESSERA_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(path()));
  EXPECT_THAT(std::string(file.Commit().message()),
              HasSubstr("cannot replace \"" + path() + "\""));
}

}  // namespace
}  // namespace tessera
