// LayerSplit: how the layers of a model are divided among pipeline stages.
//
//   SplitEvenly(10, 4);                          // 3, 3, 2, 2
//   SplitByCost({{1, 1, 1, 5, 1}}, 2);           // 3, 2: costs 3 and 6
//   LayerSplit split = *LayerSplit::Parse("1,4,4,1");
//   split.LayersPerStage(10, 4);                 // 1, 4, 4, 1
//
// A split is the number of layers of each stage. Stages hold consecutive
// layers, in the order of the model. With several chunks per pipeline rank
// there are pp x chunks stages.
#ifndef TESSERA_TOPOLOGY_CONFIG_LAYER_SPLIT_H_
#define TESSERA_TOPOLOGY_CONFIG_LAYER_SPLIT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::topology {

// A split has at most this many stages.
inline constexpr int64_t kMaxStages = int64_t{1} << 20;

// Stages of equal size; the first layers % stages of them have one layer more,
// so that the last ones are empty if there are more stages than layers.
// InvalidArgument if `stages` is not in [1, kMaxStages] or `layers` is
// negative.
absl::StatusOr<std::vector<int64_t>> SplitEvenly(int64_t layers,
                                                 int64_t stages);

// The given sizes. InvalidArgument if one is negative or they do not add up to
// `layers`, and as SplitEvenly.
absl::StatusOr<std::vector<int64_t>> SplitByCounts(
    int64_t layers, std::span<const int64_t> counts);

// The split whose most expensive stage costs least; a stage costs the sum of
// its layers. The optimum is exact if the sums of costs are exact in double.
// Among the optimal splits, each stage in turn ends where it first reaches an
// equal share of the rest, so that equal costs give SplitEvenly. No stage is
// empty unless there are more stages than layers; then the last ones are.
//
// Costs have any unit and may be 0. O(stages log(layers)) time, multiplied by
// at most 64. InvalidArgument as SplitEvenly, and if a cost is negative,
// infinite or NaN, or the sum of the costs is infinite.
absl::StatusOr<std::vector<int64_t>> SplitByCost(std::span<const double> costs,
                                                 int64_t stages);

// The choice of a split. Even by default.
struct LayerSplit {
  bool by_cost = false;
  // The layers of each stage; replaces the other choices unless empty.
  std::vector<int64_t> counts = {};

  friend bool operator==(const LayerSplit&, const LayerSplit&) = default;

  // Reads "even", "cost", or the counts "1,4,4,1", and back.
  static absl::StatusOr<LayerSplit> Parse(std::string_view text);
  std::string ToString() const;

  // The layers of each stage. A split by cost requires the cost of each layer;
  // others ignore it. InvalidArgument as the functions above, and if the number
  // of counts or costs is wrong.
  absl::StatusOr<std::vector<int64_t>> LayersPerStage(
      int64_t layers, int64_t stages, std::span<const double> costs = {}) const;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_LAYER_SPLIT_H_
