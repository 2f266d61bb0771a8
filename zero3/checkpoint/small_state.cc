#include "zero3/checkpoint/small_state.h"

#include "base/status_macros.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/rank_threads.h"
#include "zero3/checkpoint/state_bits.h"

namespace tessera::zero3::testing {

ModelParameters SmallModel() {
  return *ModelParameters::Builder()
              .Add({.name = "weight", .shape = {13}, .dtype = DType::kBF16})
              .Add({.name = "bias", .shape = {3}})
              .Build();
}

std::vector<absl::Status> SaveSmall(const CheckpointWriterOptions& options,
                                    int64_t ranks, int64_t seed) {
  return OnRanks(ranks, 1, [&](const RankGroups& groups) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(
        auto state, ShardedState::Create(SmallModel(), {}, groups.of_state()));
    TESSERA_RETURN_IF_ERROR(Stamp(*state, seed));
    return SaveCheckpoint(groups.of_checkpoint(), options, *state).status();
  });
}

absl::Status CheckSmall(const std::string& path, int64_t seed) {
  return OnRanks(1, 1, [&](const RankGroups& groups) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(
        auto state, ShardedState::Create(SmallModel(), {}, groups.of_state()));
    TESSERA_RETURN_IF_ERROR(
        LoadCheckpoint(path, groups.of_checkpoint(), *state).status());
    return CheckStamp(*state, seed);
  })[0];
}

absl::StatusOr<int64_t> CheckLatestSmall(const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
                           LatestCheckpoint(directory));
  TESSERA_RETURN_IF_ERROR(CheckSmall(latest.path, latest.step));
  return latest.step;
}

}  // namespace tessera::zero3::testing
