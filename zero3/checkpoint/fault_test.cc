// Damaged, truncated and missing files, full disks and failing ranks: every
// rank gets a clear error, and complete checkpoints stay valid.
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/testing/files.h"
#include "zero3/checkpoint/testing/state.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using testing::AllOk;
using testing::CheckLatestSmall;
using testing::CheckSmall;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HookedCalls;
using testing::NewDirectory;
using testing::OnRanks;
using testing::RankGroups;
using testing::SaveSmall;

// A checkpoint of the small state, written by `ranks` ranks.
std::string SavedAt(int64_t ranks, int64_t seed) {
  const std::string directory = NewDirectory("fault");
  EXPECT_THAT(AllOk(SaveSmall({.directory = directory, .block_elements = 4},
                              ranks, seed)),
              IsOk());
  return absl::StrCat(directory, "/", CheckpointName(seed));
}

// Overwrites in place, without waiting for the disk.
void Overwrite(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(FaultTest, DetectsFlippedBytesOfShardsAndNamesFile) {
  const std::string path = SavedAt(2, 6);
  for (const char* name : {"rank-00000.state", "rank-00001.state"}) {
    const std::string file = absl::StrCat(path, "/", name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string whole,
                                 ReadFile(file, 1 << 20));
    ASSERT_LT(whole.size(), 3000u);
    for (size_t i = 0; i < whole.size(); ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      Overwrite(file, damaged);
      ASSERT_THAT(VerifyCheckpoint(path),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file)))
          << i;
      ASSERT_THAT(CheckSmall(path, 6),
                  StatusIs(absl::StatusCode::kDataLoss,
                           AllOf(HasSubstr(file), HasSubstr("at offset"),
                                 HasSubstr("load an earlier checkpoint"))))
          << i;
    }
    Overwrite(file, whole);
  }
  TESSERA_EXPECT_OK(CheckSmall(path, 6));
}

TEST(FaultTest, NamesParameterAndElementsOfDamagedBlock) {
  const std::string path = SavedAt(1, 6);
  const std::string file = absl::StrCat(path, "/rank-00000.state");
  TESSERA_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFile(file, 1 << 20));
  bytes[32 + 8] = static_cast<char>(bytes[32 + 8] + 1);  // In the second block.
  Overwrite(file, bytes);
  EXPECT_THAT(CheckSmall(path, 6),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("at offset 40: elements 4 to 8 of the value "
                                 "of parameter \"weight\" do not have their")));
}

TEST(FaultTest, DetectsFlippedBytesOfManifest) {
  const std::string path = SavedAt(1, 6);
  const std::string file = absl::StrCat(path, "/", kManifestName);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string whole,
                               ReadFile(file, 1 << 20));
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    Overwrite(file, damaged);
    ASSERT_THAT(VerifyCheckpoint(path),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file)));
  }
  EXPECT_THAT(LatestCheckpoint(std::filesystem::path(path).parent_path()),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("no complete checkpoint, of 1"),
                             HasSubstr("its checksum is wrong"))));
}

TEST(FaultTest, FallsBackIfFilesAreTruncatedOrMissing) {
  const std::string path = SavedAt(2, 6);
  const std::string directory = std::filesystem::path(path).parent_path();
  TESSERA_ASSERT_OK(AllOk(SaveSmall({.directory = directory}, 1, 4)));
  const std::string file = absl::StrCat(path, "/rank-00001.state");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string whole,
                               ReadFile(file, 1 << 20));
  for (size_t size = 0; size < whole.size(); size += 7) {
    Overwrite(file, whole.substr(0, size));
    ASSERT_THAT(CheckSmall(path, 6), StatusIs(absl::StatusCode::kDataLoss,
                                              HasSubstr("the manifest says")));
    ASSERT_THAT(CheckLatestSmall(directory), IsOkAndHolds(4));
  }
  std::filesystem::remove(file);
  EXPECT_THAT(CheckSmall(path, 6),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(file)));
  EXPECT_THAT(CheckLatestSmall(directory), IsOkAndHolds(4));
  Overwrite(file, whole);
  EXPECT_THAT(CheckLatestSmall(directory), IsOkAndHolds(6));
  Overwrite(absl::StrCat(path, "/notes"), "x");
  EXPECT_THAT(VerifyCheckpoint(path),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"notes\"")));
}

TEST(FaultTest, RejectsFilesOfOtherCheckpoints) {
  const std::string path = SavedAt(2, 6);
  const auto copy_from = [&](const std::string& other, const char* name) {
    std::filesystem::copy_file(
        absl::StrCat(other, "/", name), absl::StrCat(path, "/rank-00000.state"),
        std::filesystem::copy_options::overwrite_existing);
    return CheckSmall(path, 6);
  };
  EXPECT_THAT(copy_from(SavedAt(2, 5), "rank-00000.state"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("rank 0 of 2 at step 5")));
  // The same step with different contents.
  const std::string other = NewDirectory("fault");
  TESSERA_ASSERT_OK(
      AllOk(OnRanks(2, 1, [&](const RankGroups& groups) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(testing::SmallModel(), {}, groups.of_state()));
        TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, 9));
        TESSERA_RETURN_IF_ERROR(state->FinishRestoring(6));
        return SaveCheckpoint(groups.of_checkpoint(),
                              {.directory = other, .block_elements = 4}, *state)
            .status();
      })));
  EXPECT_THAT(copy_from(absl::StrCat(other, "/", CheckpointName(6)),
                        "rank-00000.state"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("not the file that the manifest describes")));
}

// The large parameter belongs to rank 1, whose file exceeds the size limit.
TEST(FaultTest, FullDiskFailsOnEveryRankWithoutLoss) {
  signal(SIGXFSZ, SIG_IGN);
  const std::string directory = NewDirectory("fault");
  TESSERA_ASSERT_OK(AllOk(SaveSmall({.directory = directory}, 3, 4)));
  const ModelParameters model = *ModelParameters::Builder()
                                     .Add({.name = "small", .shape = {5}})
                                     .Add({.name = "large", .shape = {200000}})
                                     .Build();
  const auto save = [&] {
    return OnRanks(3, 1, [&](const RankGroups& groups) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(
          auto state,
          ShardedState::Create(model, {.layout = LayoutKind::kRoundRobin},
                               groups.of_state()));
      TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, 7));
      return SaveCheckpoint(groups.of_checkpoint(), {.directory = directory},
                            *state)
          .status();
    });
  };
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit = {1 << 20, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::vector<absl::Status> failed = save();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  EXPECT_THAT(failed, Each(StatusIs(absl::StatusCode::kResourceExhausted,
                                    AllOf(HasSubstr("step 7 was not written"),
                                          HasSubstr("rank 1 of"),
                                          HasSubstr("rank-00001.state")))));
  EXPECT_THAT(ListDirectory(directory),
              IsOkAndHolds(ElementsAre("step-00000004")));
  EXPECT_THAT(CheckLatestSmall(directory), IsOkAndHolds(4));
  TESSERA_EXPECT_OK(AllOk(save()));
  TESSERA_EXPECT_OK(
      VerifyCheckpoint(absl::StrCat(directory, "/", CheckpointName(7))));
}

// Each call of each rank fails once.
TEST(FaultTest, FailedCallFailsOnEveryRankWithoutLoss) {
  const std::string directory = NewDirectory("fault");
  TESSERA_ASSERT_OK(AllOk(SaveSmall({.directory = directory}, 1, 1)));
  int refused = 0;
  for (const char* call : {"create", "write", "sync", "close", "make_directory",
                           "sync_directory", "rename"}) {
    for (const char* place : {"rank-00000", "rank-00001", "manifest", "step"}) {
      HookedCalls calls([&](std::string_view name, const std::string& path) {
        const std::string file = std::filesystem::path(path).filename();
        return name == call && absl::StartsWith(file, place)
                   ? absl::DataLossError("planted")
                   : absl::OkStatus();
      });
      const auto results =
          SaveSmall({.directory = directory, .files = &calls}, 2, 2);
      if (AllOk(results).ok()) {
        std::filesystem::remove_all(
            absl::StrCat(directory, "/", CheckpointName(2)));
        continue;
      }
      ++refused;
      EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kDataLoss,
                                         HasSubstr("planted"))))
          << call << " " << place;
      EXPECT_THAT(ListDirectory(directory),
                  IsOkAndHolds(ElementsAre("step-00000001")))
          << call << " " << place;
    }
  }
  EXPECT_EQ(refused, 3 * 4 + 3);
  EXPECT_THAT(CheckLatestSmall(directory), IsOkAndHolds(1));
}

TEST(FaultTest, MissingRankEndsWaitAtTimeout) {
  const std::string directory = NewDirectory("fault");
  const auto results =
      OnRanks(3, 1, [&](const RankGroups& groups) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(testing::SmallModel(), {}, groups.of_state()));
        TESSERA_ASSIGN_OR_RETURN(
            auto writer,
            CheckpointWriter::Create(
                groups.of_checkpoint(),
                {.directory = directory, .timeout = absl::Milliseconds(300)}));
        TESSERA_RETURN_IF_ERROR(writer->Save(*state, {}).status());
        TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, 3));
        if (groups.rank == 1) return absl::OkStatus();
        return writer->Save(*state, {}).status();
      });
  TESSERA_EXPECT_OK(results[1]);
  for (const int rank : {0, 2}) {
    EXPECT_FALSE(results[static_cast<size_t>(rank)].ok());
    EXPECT_THAT(std::string(results[static_cast<size_t>(rank)].message()),
                HasSubstr("step 3 was not written; earlier ones are intact"));
  }
  EXPECT_THAT(CompleteCheckpoints(directory),
              IsOkAndHolds(ElementsAre(FoundCheckpoint{
                  0, absl::StrCat(directory, "/step-00000000")})));
}

// If one rank disagrees with the others, nothing is written or changed.
TEST(FaultTest, NamesDisagreeingRanks) {
  const std::string directory = NewDirectory("fault");
  const std::string four = SavedAt(1, 4), five = SavedAt(1, 5);
  const auto results =
      OnRanks(2, 1, [&](const RankGroups& groups) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(testing::SmallModel(), {}, groups.of_state()));
        TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, 9));
        const auto loaded = LoadCheckpoint(groups.rank == 0 ? four : five,
                                           groups.of_checkpoint(), *state);
        if (!absl::IsFailedPrecondition(loaded.status()) ||
            !absl::StrContains(loaded.status().message(),
                               "rank 0 step 4 with the manifest")) {
          return absl::UnknownError(loaded.status().ToString());
        }
        TESSERA_RETURN_IF_ERROR(testing::CheckStamp(*state, 9));
        const auto lost = LoadCheckpoint(groups.rank == 0 ? four : "/nowhere",
                                         groups.of_checkpoint(), *state);
        if (!absl::IsNotFound(lost.status()) ||
            !absl::StrContains(lost.status().message(), "rank 1 of world")) {
          return absl::UnknownError(lost.status().ToString());
        }
        return testing::CheckStamp(*state, 9);
      });
  TESSERA_EXPECT_OK(AllOk(results));
}

TEST(FaultTest, LoadingAnotherModelChangesNothing) {
  const std::string path = SavedAt(2, 6);
  const ModelParameters other =
      *ModelParameters::Builder()
           .Add({.name = "weight", .shape = {14}, .dtype = DType::kBF16})
           .Add({.name = "gain", .shape = {3}})
           .Build();
  TESSERA_EXPECT_OK(
      AllOk(OnRanks(2, 1, [&](const RankGroups& groups) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto state, ShardedState::Create(other, {}, groups.of_state()));
        TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, 9));
        const absl::Status status =
            LoadCheckpoint(path, groups.of_checkpoint(), *state).status();
        for (const char* text :
             {"missing in the checkpoint: \"gain\"",
              "only in the checkpoint: \"bias\"",
              "\"weight\" is bf16 [13] in the checkpoint and bf16 [14] here"}) {
          if (!absl::StrContains(status.message(), text)) {
            return absl::UnknownError(status.ToString());
          }
        }
        return testing::CheckStamp(*state, 9);
      })));
}

TEST(FaultTest, RejectsWrongOptionsAndGroups) {
  const std::string directory = NewDirectory("fault");
  TESSERA_EXPECT_OK(
      AllOk(OnRanks(1, 1, [&](const RankGroups& groups) -> absl::Status {
        const auto message = [](const CheckpointGroups& checkpoint,
                                const CheckpointWriterOptions& options) {
          return std::string(
              CheckpointWriter::Create(checkpoint, options).status().message());
        };
        const CheckpointGroups whole = groups.of_checkpoint();
        EXPECT_THAT(message({}, {.directory = "x"}), HasSubstr("shard group"));
        EXPECT_THAT(message(whole, {}), HasSubstr("directory is empty"));
        EXPECT_THAT(message(whole, {.directory = "x", .keep = -1}),
                    HasSubstr("keep is -1"));
        EXPECT_THAT(message(whole, {.directory = "x", .block_elements = 0}),
                    HasSubstr("block_elements is 0"));
        EXPECT_THAT(
            message(whole, {.directory = "x", .timeout = absl::Seconds(-1)}),
            HasSubstr("timeout is -1s"));
        CheckpointGroups named = whole;
        named.part = "../up";
        EXPECT_THAT(message(named, {.directory = "x"}),
                    HasSubstr("part \"../up\""));
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(testing::SmallModel(), {}, groups.of_state()));
        EXPECT_THAT(LoadCheckpoint("x", {}, *state),
                    StatusIs(absl::StatusCode::kInvalidArgument));
        EXPECT_THAT(SaveCheckpoint(whole, {.directory = directory}, *state,
                                   {{"bad", "\xff"}}),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("must be UTF-8")));
        EXPECT_THAT(
            SaveCheckpoint(
                whole, {.directory = absl::StrCat(directory, "/a/b")}, *state),
            StatusIs(absl::StatusCode::kNotFound, HasSubstr("/a/b")));
        return absl::OkStatus();
      })));
  EXPECT_THAT(ListDirectory(directory), IsOkAndHolds(ElementsAre()));
}

}  // namespace
}  // namespace tessera::zero3
