// Layer split: which layers of a model each pipeline stage holds.
//
//   SplitEvenly(10, 4);                 // [0,3) [3,6) [6,8) [8,10)
//   SplitByCost(costs, 2);              // 1 1 1 5 1: [0,3) [3,5), at most 6
//   SplitByCounts(10, counts);          // 1 4 4 1: [0,1) [1,5) [5,9) [9,10)
//
// A split is one range of consecutive layers for each stage, in order, that
// together hold every layer once. With several chunks a rank, split over
// pp * chunks stages and see options/stage_placement.h for the ranks.
#ifndef TESSERA_TOPOLOGY_CONFIG_LAYER_SPLIT_H_
#define TESSERA_TOPOLOGY_CONFIG_LAYER_SPLIT_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::topology {

// The layers [begin, end).
struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
  friend std::ostream& operator<<(std::ostream& os, const LayerRange& range) {
    return os << "[" << range.begin << "," << range.end << ")";
  }
};

// Whether more stages than layers are an error.
enum class EmptyStages { kRefused, kAllowed };

// A split has at most this many stages.
inline constexpr int64_t kMaxStages = int64_t{1} << 20;

// Stages of equal size, the first layers % stages of them one layer larger.
// InvalidArgument where `stages` lies outside [1, kMaxStages], `layers` is
// negative, or there are fewer layers than stages and that is refused.
absl::StatusOr<std::vector<LayerRange>> SplitEvenly(
    int64_t layers, int64_t stages, EmptyStages empty = EmptyStages::kRefused);

// Stages of the given sizes. InvalidArgument where they do not add up to
// `layers`, one is negative, or one is 0 and that is refused.
absl::StatusOr<std::vector<LayerRange>> SplitByCounts(
    int64_t layers, std::span<const int64_t> counts,
    EmptyStages empty = EmptyStages::kRefused);

// The split whose most loaded stage costs least, exactly; a stage's load is the
// sum of its layers' costs. Among those, each stage in turn ends where it first
// reaches an equal share of what is left, as far as the optimum lets it, so
// that equal whole costs give SplitEvenly. No stage is empty unless there are
// more stages than layers; then the last ones are.
//
// Costs are of any unit, 0 included. O(layers + stages * log(layers / stages))
// time, times at most 64. InvalidArgument as SplitEvenly, and where a cost is
// negative or no finite number or the costs add up to more than the type holds.
absl::StatusOr<std::vector<LayerRange>> SplitByCost(
    std::span<const int64_t> costs, int64_t stages,
    EmptyStages empty = EmptyStages::kRefused);

// With doubles, a load is the difference of two running sums (added up in
// extended precision, then rounded), and the optimum is exact for these.
absl::StatusOr<std::vector<LayerRange>> SplitByCost(
    std::span<const double> costs, int64_t stages,
    EmptyStages empty = EmptyStages::kRefused);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_LAYER_SPLIT_H_
