// StageMap: which rank holds which stage of a model.
//
//   StageMap::Loop(4, 2)->RankOf(5);     // 1: stages 1 and 5 are rank 1's
//
//   linear    stage s on rank s
//   loop      chunk c of rank r is stage c p + r (interleaved 1F1B, arXiv
//             2104.04473, section 2.2)
//   zigzag    chunks go forth and back, so that the first and the last stage
//             are rank 0's; with two chunks a V (arXiv 2401.10241, section 6)
//   two-way   stage s is held by ranks s and p - 1 - s: micro-batches enter at
//             both ends (DualPipe, arXiv 2412.19437, section 3.2.1)
#ifndef TESSERA_PIPELINE_SCHEDULE_STAGE_MAP_H_
#define TESSERA_PIPELINE_SCHEDULE_STAGE_MAP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::pipeline {

class StageMap {
 public:
  // One stage, one rank.
  StageMap() : rank_of_({0}) {}

  // InvalidArgument where a count is less than 1 or there are more than
  // kMostStages stages.
  static constexpr int64_t kMostStages = int64_t{1} << 20;
  static absl::StatusOr<StageMap> Linear(int64_t ranks);
  static absl::StatusOr<StageMap> Loop(int64_t ranks, int64_t chunks);
  static absl::StatusOr<StageMap> Zigzag(int64_t ranks, int64_t chunks);
  static absl::StatusOr<StageMap> TwoWay(int64_t ranks);

  // Any other map: the rank of each stage. InvalidArgument if a rank below the
  // largest has no stage.
  static absl::StatusOr<StageMap> Of(std::vector<int32_t> rank_of_stage);
  // The same for a two-way map: the rank of each stage for micro-batches that
  // enter at the front; those that enter at the back use rank p - 1 - r.
  static absl::StatusOr<StageMap> TwoWayOf(std::vector<int32_t> rank_of_stage);

  // Divides each stage s into parts[s] consecutive stages of the same rank or
  // ranks; one of no parts is left out, and a rank may then have none.
  // InvalidArgument unless `parts` has one entry for each stage, of which one
  // is above 0.
  absl::StatusOr<StageMap> Split(std::span<const int64_t> parts) const;

  int64_t ranks() const { return ranks_; }
  int64_t stages() const { return static_cast<int64_t>(rank_of_.size()); }
  bool two_way() const { return two_way_; }

  // The rank of `stage`, for micro-batches that enter at the front.
  int32_t RankOf(int32_t stage) const {
    return rank_of_[static_cast<size_t>(stage)];
  }
  // For those that enter at the back: the same unless the map is two-way.
  int32_t RankFromBack(int32_t stage) const {
    return two_way_ ? static_cast<int32_t>(ranks_) - 1 - RankOf(stage)
                    : RankOf(stage);
  }

  // The stages that a rank holds, ascending.
  std::vector<int32_t> StagesOf(int32_t rank) const;

  friend bool operator==(const StageMap&, const StageMap&) = default;

 private:
  StageMap(std::vector<int32_t> rank_of, int64_t ranks, bool two_way)
      : rank_of_(std::move(rank_of)), ranks_(ranks), two_way_(two_way) {}

  std::vector<int32_t> rank_of_;
  int64_t ranks_ = 1;
  bool two_way_ = false;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SCHEDULE_STAGE_MAP_H_
