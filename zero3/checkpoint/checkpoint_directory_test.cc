#include "zero3/checkpoint/checkpoint_directory.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointDirectoryTest : public ::testing::Test {
 protected:
  CheckpointDirectoryTest()
      : path_(absl::StrCat(
            std::getenv("TEST_TMPDIR"), "/",
            ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        directory_(FileCalls::System(), path_) {
    std::filesystem::remove_all(path_);
  }

  std::string ManifestOf(int64_t step, const CheckpointMetadata& metadata) {
    CheckpointPart part = {
        .layout = *StateLayout::Create(ModelParameters(), {}),
        .metadata = metadata,
        .files = {{.bytes = 5}}};
    return *FormatManifest({.step = step, .parts = {part}});
  }

  absl::Status Save(int64_t step, const std::string& bytes = "12345",
                    const CheckpointMetadata& metadata = {}) {
    absl::Status status = directory_.Begin(step);
    status.Update(WriteFile(
        absl::StrCat(directory_.writing_path(step), "/rank-00000.state"),
        bytes));
    status.Update(directory_.Commit(step, ManifestOf(step, metadata)));
    return status;
  }

  std::string PathOf(int64_t step) {
    return absl::StrCat(path_, "/", CheckpointName(step));
  }

  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const auto complete = CompleteCheckpoints(path_);
    EXPECT_THAT(complete, IsOk());
    for (const FoundCheckpoint& found : *complete) steps.push_back(found.step);
    return steps;
  }

  const std::string path_;
  CheckpointDirectory directory_;
};

TEST_F(CheckpointDirectoryTest, ListsOnlyCommittedCheckpoints) {
  TESSERA_ASSERT_OK(directory_.Begin(3));
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_THAT(LatestCheckpoint(path_),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no complete checkpoint, of 0")));
  TESSERA_ASSERT_OK(Save(2));
  TESSERA_ASSERT_OK(Save(123456789));
  EXPECT_THAT(Steps(), ElementsAre(123456789, 2));
  EXPECT_THAT(LatestCheckpoint(path_),
              IsOkAndHolds(FoundCheckpoint{123456789, PathOf(123456789)}));
  // Uncommitted checkpoints are deleted.
  EXPECT_THAT(ListDirectory(path_),
              IsOkAndHolds(ElementsAre("step-00000002", "step-123456789")));
}

TEST_F(CheckpointDirectoryTest, DiscardRemovesUncommittedFiles) {
  TESSERA_ASSERT_OK(directory_.Begin(1));
  TESSERA_ASSERT_OK(
      WriteFile(absl::StrCat(directory_.writing_path(1), "/x"), "x"));
  TESSERA_ASSERT_OK(directory_.Discard(1));
  TESSERA_ASSERT_OK(directory_.Discard(1));
  EXPECT_THAT(ListDirectory(path_), IsOkAndHolds(IsEmpty()));
}

TEST_F(CheckpointDirectoryTest, ReplacesSameStep) {
  TESSERA_ASSERT_OK(Save(1, "first"));
  TESSERA_ASSERT_OK(Save(1, "other"));
  EXPECT_THAT(ReadFile(absl::StrCat(PathOf(1), "/rank-00000.state"), 100),
              IsOkAndHolds("other"));
  EXPECT_THAT(ListDirectory(path_), IsOkAndHolds(ElementsAre("step-00000001")));
}

TEST_F(CheckpointDirectoryTest, SkipsTornCheckpointsWithReason) {
  TESSERA_ASSERT_OK(Save(1));
  TESSERA_ASSERT_OK(Save(2, "123"));  // The manifest says 5 bytes.
  TESSERA_ASSERT_OK(Save(3));
  std::filesystem::remove(absl::StrCat(PathOf(3), "/manifest.json"));
  TESSERA_ASSERT_OK(Save(4));
  std::filesystem::remove(absl::StrCat(PathOf(4), "/rank-00000.state"));
  TESSERA_ASSERT_OK(Save(5));
  std::filesystem::rename(PathOf(5), PathOf(6));  // Another step's name.
  std::filesystem::create_directory(absl::StrCat(path_, "/step-7"));
  TESSERA_ASSERT_OK(WriteFile(absl::StrCat(path_, "/step-00000008"), ""));
  EXPECT_THAT(Steps(), ElementsAre(1));
  EXPECT_THAT(LatestCheckpoint(path_),
              IsOkAndHolds(FoundCheckpoint{1, PathOf(1)}));
  std::filesystem::remove_all(PathOf(1));
  EXPECT_THAT(
      LatestCheckpoint(path_),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("of 5"), HasSubstr("its manifest names step 5"),
                     HasSubstr("cannot find"))));
}

TEST_F(CheckpointDirectoryTest, RemovesOneStep) {
  for (const int64_t step : {1, 2, 3}) TESSERA_ASSERT_OK(Save(step));
  TESSERA_ASSERT_OK(directory_.Remove(2));
  TESSERA_ASSERT_OK(directory_.Remove(2));
  EXPECT_THAT(ListDirectory(path_),
              IsOkAndHolds(ElementsAre("step-00000001", "step-00000003")));
}

TEST_F(CheckpointDirectoryTest, PruneKeepsNewestCheckpoints) {
  for (int64_t step = 1; step <= 6; ++step) TESSERA_ASSERT_OK(Save(step));
  TESSERA_ASSERT_OK(directory_.Prune(6, 4));
  EXPECT_THAT(Steps(), ElementsAre(6, 5, 4, 3));
  // Incomplete checkpoints do not count and are not deleted.
  std::filesystem::remove(absl::StrCat(PathOf(5), "/manifest.json"));
  TESSERA_ASSERT_OK(directory_.Prune(6, 2));
  EXPECT_THAT(Steps(), ElementsAre(6, 4));
  EXPECT_TRUE(std::filesystem::exists(PathOf(5)));
  // Saved again after a rollback: it stays although others have later steps.
  TESSERA_ASSERT_OK(Save(2));
  TESSERA_ASSERT_OK(directory_.Prune(2, 2));
  EXPECT_THAT(Steps(), ElementsAre(6, 2));
  TESSERA_ASSERT_OK(directory_.Prune(2, 1));
  EXPECT_THAT(Steps(), ElementsAre(2));
  TESSERA_ASSERT_OK(directory_.Prune(2, 1));
  EXPECT_THAT(Steps(), ElementsAre(2));
}

TEST_F(CheckpointDirectoryTest, PruneKeepsNewestAndLeastNumber) {
  const auto save = [&](int64_t step, const std::string& loss) {
    return Save(step, "12345",
                loss.empty() ? CheckpointMetadata()
                             : CheckpointMetadata{{"loss", loss}});
  };
  const auto least = [&] { return LeastCheckpoint(path_, "loss"); };
  TESSERA_ASSERT_OK(save(1, ""));
  EXPECT_THAT(least(), StatusIs(absl::StatusCode::kNotFound,
                                HasSubstr("no checkpoint with a number as "
                                          "\"loss\", of 1 complete")));
  TESSERA_ASSERT_OK(save(2, "1.5"));
  TESSERA_ASSERT_OK(save(3, "nan"));
  TESSERA_ASSERT_OK(save(4, "x"));
  TESSERA_ASSERT_OK(save(5, "2"));
  TESSERA_ASSERT_OK(save(6, "-inf"));
  EXPECT_THAT(least(), IsOkAndHolds(FoundCheckpoint{2, PathOf(2)}));
  TESSERA_ASSERT_OK(directory_.Prune(6, 2, "loss"));
  EXPECT_THAT(Steps(), ElementsAre(6, 5, 2));
  TESSERA_ASSERT_OK(directory_.Prune(6, 2, "other"));
  EXPECT_THAT(Steps(), ElementsAre(6, 5));
  // Of equal ones the newest; among the newest it takes no other's place.
  TESSERA_ASSERT_OK(save(7, "2"));
  TESSERA_ASSERT_OK(save(8, "3"));
  EXPECT_THAT(least(), IsOkAndHolds(FoundCheckpoint{7, PathOf(7)}));
  TESSERA_ASSERT_OK(directory_.Prune(8, 2, "loss"));
  EXPECT_THAT(Steps(), ElementsAre(8, 7));
  // An incomplete one is not the least.
  TESSERA_ASSERT_OK(save(9, "0.5"));
  TESSERA_ASSERT_OK(save(10, "4"));
  std::filesystem::remove(absl::StrCat(PathOf(9), "/rank-00000.state"));
  EXPECT_THAT(least(), IsOkAndHolds(FoundCheckpoint{7, PathOf(7)}));
  TESSERA_ASSERT_OK(directory_.Prune(10, 1, "loss"));
  EXPECT_THAT(Steps(), ElementsAre(10, 7));
}

TEST_F(CheckpointDirectoryTest, RemovesOnlyLeftovers) {
  TESSERA_ASSERT_OK(Save(1));
  for (const char* name :
       {"step-00000002.writing", "step-00000003.removing", "mine.writing"}) {
    const std::string path = absl::StrCat(path_, "/", name);
    std::filesystem::create_directory(path);
    TESSERA_ASSERT_OK(WriteFile(absl::StrCat(path, "/file"), "x"));
  }
  TESSERA_ASSERT_OK(Save(4));
  EXPECT_THAT(ListDirectory(path_),
              IsOkAndHolds(ElementsAre("mine.writing", "step-00000001",
                                       "step-00000004")));
}

TEST_F(CheckpointDirectoryTest, ReturnsNotFoundForMissingDirectories) {
  EXPECT_THAT(CompleteCheckpoints(path_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path_)));
  EXPECT_THAT(LatestCheckpoint(path_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path_)));
  EXPECT_THAT(ReadManifest(path_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path_)));
}

}  // namespace
}  // namespace tessera::zero3
