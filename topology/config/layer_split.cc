#include "topology/config/layer_split.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::topology {
namespace {

absl::Status CheckSizes(int64_t layers, int64_t stages) {
  if (stages < 1 || stages > kMaxStages) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers cannot be split over ", stages,
                     " stages; choose from 1 to ", kMaxStages, " stages"));
  }
  if (layers >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a model cannot have ", layers, " layers; give a number of at least 0"));
}

// Searches over the running sums of costs. The cost of a range never decreases
// when the range grows, even with rounding, which is all that they require.
class Loads {
 public:
  // `sums` ascends from 0 and has one more entry than there are layers.
  explicit Loads(std::vector<double> sums) : sums_(std::move(sums)) {}

  int64_t layers() const { return std::ssize(sums_) - 1; }

  // The last end of a stage from `begin` that costs at most `limit`.
  int64_t Reach(int64_t begin, double limit) const {
    const double before = sums_[static_cast<size_t>(begin)];
    return FirstFrom(begin, layers() + 1,
                     [&](double sum) { return sum - before > limit; }) -
           1;
  }

  // The first begin of a stage up to `end` that costs at most `limit`.
  int64_t ReachBack(int64_t end, double limit) const {
    const double all = sums_[static_cast<size_t>(end)];
    return FirstFrom(0, end, [&](double sum) { return all - sum <= limit; });
  }

  // The first end in [low, high) at which the layers from `begin` cost an equal
  // share of what `stages_left` stages must hold; otherwise `high`.
  int64_t FairEnd(int64_t begin, int64_t low, int64_t high,
                  int64_t stages_left) const {
    const long double before = sums_[static_cast<size_t>(begin)];
    const long double rest = sums_.back() - before;
    return FirstFrom(low, high, [&](double sum) {
      return (sum - before) * static_cast<long double>(stages_left) >= rest;
    });
  }

  // The least limit that `stages` stages do not exceed. Non-negative doubles
  // and their bit patterns have the same order, so that a bisection over the
  // patterns is exact.
  double LeastLimit(int64_t stages) const {
    int64_t bad = -1;
    int64_t good = std::bit_cast<int64_t>(sums_.back());
    while (good - bad > 1) {
      const int64_t middle = bad + (good - bad) / 2;
      (Fits(stages, std::bit_cast<double>(middle)) ? good : bad) = middle;
    }
    return std::bit_cast<double>(good);
  }

 private:
  // The first index in [low, high) whose sum `is_enough`; otherwise `high`.
  template <typename Predicate>
  int64_t FirstFrom(int64_t low, int64_t high, Predicate is_enough) const {
    return std::partition_point(sums_.begin() + low, sums_.begin() + high,
                                [&](double sum) { return !is_enough(sum); }) -
           sums_.begin();
  }

  bool Fits(int64_t stages, double limit) const {
    int64_t begin = 0;
    for (int64_t stage = 0; stage < stages && begin < layers(); ++stage) {
      const int64_t end = Reach(begin, limit);
      if (end == begin) return false;
      begin = end;
    }
    return begin == layers();
  }

  std::vector<double> sums_;
};

// The optimal split over 1 <= stages <= layers.
std::vector<int64_t> Split(const Loads& loads, int64_t stages) {
  const double limit = loads.LeastLimit(stages);
  // earliest[s]: the first layer from which stages s and later hold the rest.
  std::vector<int64_t> earliest(static_cast<size_t>(stages) + 1,
                                loads.layers());
  for (size_t stage = earliest.size() - 1; stage-- > 0;) {
    earliest[stage] = loads.ReachBack(earliest[stage + 1], limit);
  }
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  for (int64_t left = stages; left > 0; --left) {
    // Every later stage gets a layer, and no more than fits into it.
    const int64_t low = std::max(earliest[sizes.size() + 1], begin + 1);
    const int64_t high =
        std::min(loads.Reach(begin, limit), loads.layers() - left + 1);
    const int64_t end = loads.FairEnd(begin, low, high, left);
    sizes.push_back(end - begin);
    begin = end;
  }
  return sizes;
}

absl::StatusOr<Loads> AddUp(std::span<const double> costs) {
  std::vector<double> sums = {0};
  long double sum = 0;
  for (const double cost : costs) {
    sum += cost;
    sums.push_back(static_cast<double>(sum));
    if (cost >= 0 && std::isfinite(sums.back())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", sums.size() - 2, " costs ", cost,
                     ", and the layers up to it ", sums.back(),
                     "; give finite costs of at least 0 with a finite sum"));
  }
  return Loads(std::move(sums));
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> SplitEvenly(int64_t layers,
                                                 int64_t stages) {
  TESSERA_RETURN_IF_ERROR(CheckSizes(layers, stages));
  std::vector<int64_t> sizes(static_cast<size_t>(stages), layers / stages);
  std::fill_n(sizes.begin(), layers % stages, layers / stages + 1);
  return sizes;
}

absl::StatusOr<std::vector<int64_t>> SplitByCounts(
    int64_t layers, std::span<const int64_t> counts) {
  TESSERA_RETURN_IF_ERROR(CheckSizes(layers, std::ssize(counts)));
  int64_t left = layers;
  for (size_t stage = 0; stage < counts.size(); ++stage) {
    if (counts[stage] < 0 || counts[stage] > left) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", stage, " cannot have ", counts[stage],
                       " layers, because ", left, " of ", layers,
                       " are left; give counts that add up to ", layers));
    }
    left -= counts[stage];
  }
  if (left == 0) return std::vector<int64_t>(counts.begin(), counts.end());
  return absl::InvalidArgumentError(
      absl::StrCat("the stages have ", layers - left, " of ", layers,
                   " layers; give counts that add up to ", layers));
}

absl::StatusOr<std::vector<int64_t>> SplitByCost(std::span<const double> costs,
                                                 int64_t stages) {
  const int64_t layers = std::ssize(costs);
  TESSERA_RETURN_IF_ERROR(CheckSizes(layers, stages));
  TESSERA_ASSIGN_OR_RETURN(const Loads loads, AddUp(costs));
  std::vector<int64_t> sizes;
  if (layers > 0) sizes = Split(loads, std::min(stages, layers));
  sizes.resize(static_cast<size_t>(stages), 0);
  return sizes;
}

absl::StatusOr<LayerSplit> LayerSplit::Parse(std::string_view text) {
  LayerSplit split = {.by_cost = text == "cost"};
  if (text == "even" || split.by_cost) return split;
  for (const std::string_view count : absl::StrSplit(text, ',')) {
    split.counts.emplace_back();
    if (absl::SimpleAtoi(count, &split.counts.back()) &&
        split.counts.back() >= 0) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(text), " is not even, cost, or a list of numbers of layers"));
  }
  return split;
}

std::string LayerSplit::ToString() const {
  if (!counts.empty()) return absl::StrJoin(counts, ",");
  return by_cost ? "cost" : "even";
}

absl::StatusOr<std::vector<int64_t>> LayerSplit::LayersPerStage(
    int64_t layers, int64_t stages, std::span<const double> costs) const {
  if (counts.empty() && !by_cost) return SplitEvenly(layers, stages);
  const int64_t given = std::ssize(counts);
  if (!counts.empty() && given == stages) return SplitByCounts(layers, counts);
  if (!counts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", stages, " stages, and ", given,
                     " numbers of layers; give one for each stage"));
  }
  if (std::ssize(costs) == layers) return SplitByCost(costs, stages);
  return absl::InvalidArgumentError(
      absl::StrCat("a split by cost requires the costs of ", layers,
                   " layers; ", costs.size(), " are given"));
}

}  // namespace tessera::topology
