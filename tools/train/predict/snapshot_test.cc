// Compares the predicted and the counted memory of checkpoint copies.
#include <cstdint>
#include <map>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "offload/tier/accounting.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/testing/mesh_run.h"

namespace tessera::train {
namespace {

using testing::IdentityOf;
using testing::NewRunDirectory;
using testing::OnRanks;
using testing::SmallRun;

// The peak memory of a checkpoint's copies, by rank.
absl::StatusOr<std::map<int64_t, int64_t>> CountCopies(
    const RunOptions& options, const std::string& directory) {
  absl::Mutex mutex;
  std::map<int64_t, int64_t> counted;
  TESSERA_RETURN_IF_ERROR(
      OnRanks(options, [&](TrainRank& rank) -> absl::Status {
        const auto memory = std::make_shared<offload::Accounting>(
            "snapshots", offload::kUnlimited);
        TESSERA_ASSIGN_OR_RETURN(
            const auto checkpoints,
            RunCheckpoints::Create(rank, {.directory = directory,
                                          .identity = IdentityOf(options),
                                          .snapshot_memory = memory}));
        TESSERA_RETURN_IF_ERROR(checkpoints->Start());
        TESSERA_RETURN_IF_ERROR(checkpoints->Wait().status());
        const absl::MutexLock lock(&mutex);
        counted[rank.world().rank().value()] = memory->usage().peak;
        return absl::OkStatus();
      }));
  return counted;
}

void ExpectAsCounted(const RunOptions& options) {
  SCOPED_TRACE(::testing::Message() << "stage " << options.state.stage);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto counted, CountCopies(options, NewRunDirectory("snapshots")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const PipelinePlan plan,
                               PipelinePlan::Create(options));
  ASSERT_EQ(static_cast<int64_t>(counted.size()), options.mesh.world_size());
  for (const auto& [number, bytes] : counted) {
    RankPlace place;
    place.tp = number % options.mesh.tp;
    place.dp = number / options.mesh.tp % options.mesh.dp;
    place.pp = number / options.mesh.tp / options.mesh.dp;
    TESSERA_ASSERT_OK_AND_ASSIGN(const RankPrediction rank,
                                 PredictRank(plan, place, {}));
    EXPECT_EQ(rank.state.snapshot, bytes) << "rank " << number;
    EXPECT_GT(bytes, 0);
  }
}

TEST(SnapshotTest, MatchesCheckpointCopy) {
  for (const int stage : {0, 1, 3}) {
    RunOptions options = SmallRun();
    options.mesh = {.dp = 2, .pp = 2, .tp = 2};
    options.state.stage = stage;
    ExpectAsCounted(options);
    options.dtype = DType::kBF16;
    ExpectAsCounted(options);
  }
}

}  // namespace
}  // namespace tessera::train
