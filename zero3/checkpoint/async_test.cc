// Tests that a checkpoint is written while training continues.
#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/accounting.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/testing/files.h"
#include "zero3/checkpoint/testing/state.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using testing::AllOk;
using testing::CheckLatestSmall;
using testing::CheckSmall;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HookedCalls;
using testing::NewDirectory;
using testing::OnRanks;
using testing::RankGroups;
using testing::SmallModel;
using testing::ToyModel;

// Every write waits until the gate opens.
class GatedCalls {
 public:
  HookedCalls calls{[this](std::string_view call, const std::string&) {
    if (call == "write") gate.WaitForNotification();
    return absl::OkStatus();
  }};
  absl::Notification gate;
};

TEST(AsyncTest, SavesStateAtStartWhileTrainingContinues) {
  for (int stage = 0; stage < 4; ++stage) {
    const std::string directory = NewDirectory("async");
    GatedCalls gated;
    testing::BitCollector at_start, loaded;
    std::atomic<int> trained = 0;
    const ShardedStateOptions options = {.stage = stage};
    TESSERA_ASSERT_OK(
        AllOk(OnRanks(2, 1, [&](const RankGroups& groups) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(
              auto state, ShardedState::Create(ToyModel(DType::kBF16), options,
                                               groups.of_state()));
          TESSERA_ASSIGN_OR_RETURN(
              auto writer, CheckpointWriter::Create(groups.of_checkpoint(),
                                                    {.directory = directory,
                                                     .files = &gated.calls}));
          TESSERA_RETURN_IF_ERROR(testing::FillFirst(*state));
          TESSERA_RETURN_IF_ERROR(testing::TrainSteps(*state, groups, 2, 0, 3));
          TESSERA_RETURN_IF_ERROR(at_start.Add(*state));
          const PendingCheckpoint pending = writer->Start(*state, {});
          TESSERA_RETURN_IF_ERROR(testing::TrainSteps(*state, groups, 2, 3, 7));
          EXPECT_FALSE(pending.IsDone());
          EXPECT_EQ(pending.TimeTaken(), absl::ZeroDuration());
          if (++trained == 2) gated.gate.Notify();
          EXPECT_THAT(pending.Wait(),
                      IsOkAndHolds(absl::StrCat(directory, "/step-00000003")));
          EXPECT_TRUE(pending.IsDone());
          EXPECT_GT(pending.TimeTaken(), absl::ZeroDuration());
          EXPECT_EQ(state->steps(), 7);
          TESSERA_RETURN_IF_ERROR(
              LoadCheckpoint(*pending.Wait(), groups.of_checkpoint(), *state)
                  .status());
          return loaded.Add(*state);
        })));
    EXPECT_EQ(loaded.bits(), at_start.bits());
  }
}

TEST(AsyncTest, SnapshotsCountWhileTheyLive) {
  const std::string directory = NewDirectory("async");
  auto memory = std::make_shared<offload::Accounting>("snapshots", 10'000);
  GatedCalls gated;
  TESSERA_ASSERT_OK(
      AllOk(OnRanks(1, 1, [&](const RankGroups& groups) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(SmallModel(), {}, groups.of_state()));
        TESSERA_ASSIGN_OR_RETURN(
            auto writer, CheckpointWriter::Create(groups.of_checkpoint(),
                                                  {.directory = directory,
                                                   .snapshot_memory = memory,
                                                   .files = &gated.calls}));
        const PendingCheckpoint pending = writer->Start(*state, {});
        // bf16 with master and moments; f32 with moments.
        EXPECT_EQ(memory->usage().current, 13 * 14 + 3 * 12);
        gated.gate.Notify();
        TESSERA_RETURN_IF_ERROR(pending.Wait().status());
        EXPECT_EQ(memory->usage().current, 0);
        // Saves without a copy.
        memory->ResetPeaks();
        TESSERA_RETURN_IF_ERROR(writer->Save(*state, {}).status());
        EXPECT_EQ(memory->usage().peak, 0);
        return absl::OkStatus();
      })));
}

TEST(AsyncTest, EveryRankReportsTooLittleSnapshotMemory) {
  const std::string directory = NewDirectory("async");
  TESSERA_ASSERT_OK(
      AllOk(OnRanks(3, 1, [&](const RankGroups& groups) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(SmallModel(), {}, groups.of_state()));
        TESSERA_ASSIGN_OR_RETURN(
            auto writer,
            CheckpointWriter::Create(
                groups.of_checkpoint(),
                {.directory = directory,
                 .snapshot_memory = std::make_shared<offload::Accounting>(
                     "snapshots", groups.rank == 2 ? 7 : 10'000)}));
        EXPECT_THAT(writer->Start(*state, {}).Wait(),
                    StatusIs(absl::StatusCode::kResourceExhausted,
                             AllOf(HasSubstr("rank 2 of"),
                                   HasSubstr("checkpoint snapshot"))));
        // Streaming allocates no snapshot memory.
        return writer->Save(*state, {}).status();
      })));
  EXPECT_THAT(CompleteCheckpoints(directory),
              IsOkAndHolds(::testing::SizeIs(1)));
}

TEST(AsyncTest, WriterSerializesCheckpointsAndWaitsForLast) {
  const std::string directory = NewDirectory("async");
  TESSERA_ASSERT_OK(
      AllOk(OnRanks(3, 1, [&](const RankGroups& groups) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(SmallModel(), {}, groups.of_state()));
        TESSERA_ASSIGN_OR_RETURN(
            auto writer,
            CheckpointWriter::Create(groups.of_checkpoint(),
                                     {.directory = directory, .keep = 3}));
        for (int64_t step = 1; step <= 9; ++step) {
          TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, step));
          writer->Start(*state, {{"step", absl::StrCat(step)}});
        }
        return absl::OkStatus();
      })));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto complete,
                               CompleteCheckpoints(directory));
  ASSERT_EQ(complete.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(complete[static_cast<size_t>(i)].step, 9 - i);
    EXPECT_THAT(CheckSmall(complete[static_cast<size_t>(i)].path, 9 - i),
                IsOk());
  }
  EXPECT_THAT(ListDirectory(directory),
              IsOkAndHolds(ElementsAre("step-00000007", "step-00000008",
                                       "step-00000009")));
}

// The writer works again after an error.
TEST(AsyncTest, AFailedCheckpointDoesNotStopTheNext) {
  const std::string directory = NewDirectory("async");
  std::atomic<bool> fails = true;
  HookedCalls calls([&](std::string_view call, const std::string& path) {
    return fails && call == "sync" && absl::StrContains(path, "rank-00001")
               ? absl::DataLossError("planted")
               : absl::OkStatus();
  });
  TESSERA_ASSERT_OK(
      AllOk(OnRanks(2, 1, [&](const RankGroups& groups) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(SmallModel(), {}, groups.of_state()));
        TESSERA_ASSIGN_OR_RETURN(
            auto writer, CheckpointWriter::Create(
                             groups.of_checkpoint(),
                             {.directory = directory, .files = &calls}));
        TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, 1));
        EXPECT_THAT(writer->Start(*state, {}).Wait(),
                    StatusIs(absl::StatusCode::kDataLoss,
                             HasSubstr("rank 1 of world/checkpoint: planted")));
        TESSERA_RETURN_IF_ERROR(groups.world->Barrier());
        fails = false;
        TESSERA_RETURN_IF_ERROR(groups.world->Barrier());
        TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, 2));
        return writer->Start(*state, {}).Wait().status();
      })));
  EXPECT_THAT(CheckLatestSmall(directory), IsOkAndHolds(2));
}

}  // namespace
}  // namespace tessera::zero3
