#include "tools/train/launch/run_directory.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Adds a directory that looks like a complete checkpoint.
void AddCheckpoint(const RunDirectory& run, int64_t step) {
  const std::string path =
      absl::StrCat(run.checkpoints(), "/step-0000000", step);
  fs::create_directories(path);
  TESSERA_ASSERT_OK(WriteFile(path + "/manifest.json", "{}"));
}

TEST(RunDirectoryTest, EmptyNameCreatesTemporaryDirectory) {
  setenv("TMPDIR", testing::TempDir().c_str(), 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunDirectory run,
                               RunDirectory::Create({}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunDirectory other,
                               RunDirectory::Create({}));
  EXPECT_TRUE(fs::is_directory(run.path()));
  EXPECT_TRUE(run.is_temporary());
  EXPECT_NE(run.path(), other.path());
  EXPECT_FALSE(run.CleanUp());
  EXPECT_FALSE(other.CleanUp());
  EXPECT_FALSE(fs::exists(run.path()));
}

TEST(RunDirectoryTest, CleanUpRemovesPartialFiles) {
  const std::string path = testing::TempDir() + "/a/b/run";
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunDirectory run,
                               RunDirectory::Create({.run_dir = path}));
  EXPECT_FALSE(run.is_temporary());
  fs::create_directories(run.exchange());
  fs::create_directories(run.checkpoints() + "/step-00000002.writing/x");
  fs::create_directories(run.checkpoints() + "/step-00000001.removing");
  AddCheckpoint(run, 1);
  EXPECT_TRUE(run.CleanUp());
  EXPECT_FALSE(fs::exists(run.exchange()));
  EXPECT_FALSE(fs::exists(run.checkpoints() + "/step-00000002.writing"));
  EXPECT_FALSE(fs::exists(run.checkpoints() + "/step-00000001.removing"));
  EXPECT_TRUE(fs::exists(run.checkpoints() + "/step-00000001"));
}

TEST(RunDirectoryTest, CheckpointsWithoutValidationAreNotTheBest) {
  const std::string path = testing::TempDir() + "/unvalidated";
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunDirectory run,
                               RunDirectory::Create({.run_dir = path}));
  fs::create_directories(run.checkpoints());
  AddCheckpoint(run, 1);
  EXPECT_THAT(run.BestCheckpoint(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("train with --keep_best"),
                             HasSubstr("of 0 complete"))));
}

TEST(RunDirectoryTest, MakesRelativePathsAbsolute) {
  const fs::path before = fs::current_path();
  fs::current_path(testing::TempDir());
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunDirectory run,
                               RunDirectory::Create({.run_dir = "mine"}));
  fs::current_path(before);
  EXPECT_TRUE(fs::is_directory(testing::TempDir() + "/mine"));
  EXPECT_TRUE(fs::path(run.path()).is_absolute());
}

TEST(RunDirectoryTest, RejectsUnwritableDirectories) {
  const std::string file = testing::TempDir() + "/file";
  TESSERA_ASSERT_OK(WriteFile(file, ""));
  for (const std::string& path : {file, file + "/run"}) {
    const auto run = RunDirectory::Create({.run_dir = path});
    EXPECT_FALSE(run.ok());
    EXPECT_THAT(std::string(run.status().message()),
                AllOf(HasSubstr("--run_dir=" + path), HasSubstr("written")));
  }
  EXPECT_FALSE(RunDirectory::Create({.run_dir = "/proc/self/run"}).ok());
}

}  // namespace
}  // namespace tessera::train
