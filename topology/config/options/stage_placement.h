// Stage placement: which rank of a pipeline runs which virtual stage.
//
//   // 2 ranks with 2 chunks each: stages 0 1 2 3
//   RankOfStage(2, 2, 2, StagePlacement::kLoop);    // 0: rank 0 has 0 and 2
//   RankOfStage(2, 2, 2, StagePlacement::kLinear);  // 1: rank 0 has 0 and 1
//   RankOfStage(2, 2, 2, StagePlacement::kVee);     // 1: rank 0 has 0 and 3
//
// A pipeline of pp ranks with `chunks` chunks each has pp * chunks stages. With
// one chunk all placements are the same.
#ifndef TESSERA_TOPOLOGY_CONFIG_OPTIONS_STAGE_PLACEMENT_H_
#define TESSERA_TOPOLOGY_CONFIG_OPTIONS_STAGE_PLACEMENT_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "topology/config/options/named_enum.h"

namespace tessera::topology {

enum class StagePlacement {
  kLinear,  // rank r holds the stages from r * chunks: stage / chunks
  kLoop,    // stages go round the ranks: stage % pp; arXiv 2104.04473
  kVee,     // to the last rank and back, to and fro; arXiv 2405.15362
};

template <>
struct EnumNames<StagePlacement> {
  static constexpr std::string_view kWhat = "stage placement";
  static constexpr auto kTable = std::to_array<NamedValue<StagePlacement>>({
      {"linear", StagePlacement::kLinear},
      {"loop", StagePlacement::kLoop},
      {"vee", StagePlacement::kVee},
  });
};

// pp * chunks. InvalidArgument where one is below 1 or the product exceeds
// 2^63-1.
absl::StatusOr<int64_t> StageCount(int64_t pp, int64_t chunks);

// The coordinate along pp of the rank that runs `stage`, and which of the
// rank's chunks it is, from 0. InvalidArgument as StageCount, and where there
// is no such stage.
absl::StatusOr<int64_t> RankOfStage(int64_t stage, int64_t pp, int64_t chunks,
                                    StagePlacement placement);
absl::StatusOr<int64_t> ChunkOfStage(int64_t stage, int64_t pp, int64_t chunks,
                                     StagePlacement placement);

// The stage that is chunk `chunk` of the rank with coordinate `rank` along pp:
// the inverse of the two above. Ascends with `chunk`.
absl::StatusOr<int64_t> StageOfChunk(int64_t rank, int64_t chunk, int64_t pp,
                                     int64_t chunks, StagePlacement placement);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_OPTIONS_STAGE_PLACEMENT_H_
