#include "topology/config/options/stage_placement.h"

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::topology {
namespace {

absl::Status CheckIndex(std::string_view what, int64_t index, int64_t size) {
  if (index >= 0 && index < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there is no ", what, " ", index,
                   size == 1 ? "; the only one is 0"
                             : absl::StrCat("; choose from 0 to ", size - 1)));
}

absl::Status CheckStage(int64_t stage, int64_t pp, int64_t chunks) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t stages, StageCount(pp, chunks));
  return CheckIndex("stage", stage, stages);
}

// Where in its pass over the ranks, and on which pass, a stage comes.
int64_t MirroredOnOddPasses(int64_t place, int64_t pass, int64_t pp) {
  return pass % 2 == 0 ? place : pp - 1 - place;
}

}  // namespace

absl::StatusOr<int64_t> StageCount(int64_t pp, int64_t chunks) {
  int64_t stages = 0;
  if (pp < 1 || chunks < 1 || __builtin_mul_overflow(pp, chunks, &stages)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no pipeline has ", pp, " ranks with ", chunks,
        " chunks each; give at least 1 of both and at most 2^63-1 stages"));
  }
  return stages;
}

absl::StatusOr<int64_t> RankOfStage(int64_t stage, int64_t pp, int64_t chunks,
                                    StagePlacement placement) {
  TESSERA_RETURN_IF_ERROR(CheckStage(stage, pp, chunks));
  switch (placement) {
    case StagePlacement::kLinear:
      return stage / chunks;
    case StagePlacement::kLoop:
      return stage % pp;
    case StagePlacement::kVee:
      return MirroredOnOddPasses(stage % pp, stage / pp, pp);
  }
  return absl::InvalidArgumentError("unknown stage placement");
}

absl::StatusOr<int64_t> ChunkOfStage(int64_t stage, int64_t pp, int64_t chunks,
                                     StagePlacement placement) {
  TESSERA_RETURN_IF_ERROR(CheckStage(stage, pp, chunks));
  switch (placement) {
    case StagePlacement::kLinear:
      return stage % chunks;
    case StagePlacement::kLoop:
    case StagePlacement::kVee:
      return stage / pp;
  }
  return absl::InvalidArgumentError("unknown stage placement");
}

absl::StatusOr<int64_t> StageOfChunk(int64_t rank, int64_t chunk, int64_t pp,
                                     int64_t chunks, StagePlacement placement) {
  TESSERA_RETURN_IF_ERROR(StageCount(pp, chunks).status());
  TESSERA_RETURN_IF_ERROR(CheckIndex("pipeline rank", rank, pp));
  TESSERA_RETURN_IF_ERROR(CheckIndex("chunk", chunk, chunks));
  switch (placement) {
    case StagePlacement::kLinear:
      return rank * chunks + chunk;
    case StagePlacement::kLoop:
      return chunk * pp + rank;
    case StagePlacement::kVee:
      return chunk * pp + MirroredOnOddPasses(rank, chunk, pp);
  }
  return absl::InvalidArgumentError("unknown stage placement");
}

}  // namespace tessera::topology
