#include "topology/config/layer_split.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "topology/config/running_loads.h"

namespace tessera::topology {
namespace {

using Ranges = std::vector<LayerRange>;
template <typename Cost>
using Loads = internal::RunningLoads<Cost>;

absl::Status CheckSizes(int64_t layers, int64_t stages, EmptyStages empty) {
  if (stages < 1 || stages > kMaxStages) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot split layers over ", stages,
                     " stages; choose from 1 to ", kMaxStages, " stages"));
  }
  if (layers < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a model has no ", layers, " layers; give a number of at least 0"));
  }
  if (layers < stages && empty == EmptyStages::kRefused) {
    return absl::InvalidArgumentError(absl::StrCat(
        layers, " layers leave ", stages - layers, " of ", stages,
        " stages empty; ",
        layers == 0 ? std::string("give at least as many layers as stages")
                    : absl::StrCat("choose at most ", layers, " stages"),
        ", or allow empty stages"));
  }
  return absl::OkStatus();
}

// The optimal split of `loads` over 1 <= stages <= layers.
template <typename Cost>
Ranges Split(const Loads<Cost>& loads, int64_t stages) {
  const Cost limit = loads.LeastLimit(stages);
  // earliest[s]: the first layer from which stages s and later hold the rest.
  std::vector<int64_t> earliest(stages + 1, loads.layers());
  for (int64_t stage = stages - 1; stage >= 0; --stage) {
    earliest[stage] = loads.ReachBack(earliest[stage + 1], limit);
  }
  Ranges ranges(stages);
  int64_t begin = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t later = stages - stage - 1;
    // Every later stage gets a layer, and no more than fits into it.
    const int64_t low = std::max(earliest[stage + 1], begin + 1);
    const int64_t high =
        std::min(loads.Reach(begin, limit), loads.layers() - later);
    const int64_t end = loads.FairEnd(begin, low, high, later + 1);
    ranges[stage] = {begin, end};
    begin = end;
  }
  return ranges;
}

absl::Status BadCost(size_t layer, double cost) {
  return absl::InvalidArgumentError(absl::StrCat(
      "layer ", layer, " costs ", cost, "; give finite costs of at least 0"));
}

absl::Status TooCostly(size_t layer) {
  return absl::InvalidArgumentError(
      absl::StrCat("the costs up to layer ", layer,
                   " add up to more than fits; give them in a larger unit"));
}

absl::StatusOr<Loads<int64_t>> AddUp(std::span<const int64_t> costs) {
  std::vector<int64_t> sums(costs.size() + 1);
  for (size_t i = 0; i < costs.size(); ++i) {
    if (costs[i] < 0) return BadCost(i, static_cast<double>(costs[i]));
    if (__builtin_add_overflow(sums[i], costs[i], &sums[i + 1])) {
      return TooCostly(i);
    }
  }
  return Loads<int64_t>(std::move(sums));
}

absl::StatusOr<Loads<double>> AddUp(std::span<const double> costs) {
  std::vector<double> sums(costs.size() + 1);
  long double sum = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (!(costs[i] >= 0) || std::isinf(costs[i])) return BadCost(i, costs[i]);
    sum += costs[i];
    sums[i + 1] = static_cast<double>(sum);
    if (std::isinf(sums[i + 1])) return TooCostly(i);
  }
  return Loads<double>(std::move(sums));
}

template <typename Cost>
absl::StatusOr<Ranges> SplitCosts(std::span<const Cost> costs, int64_t stages,
                                  EmptyStages empty) {
  const auto layers = static_cast<int64_t>(costs.size());
  TESSERA_RETURN_IF_ERROR(CheckSizes(layers, stages, empty));
  TESSERA_ASSIGN_OR_RETURN(const auto loads, AddUp(costs));
  Ranges ranges;
  if (layers > 0) ranges = Split(loads, std::min(stages, layers));
  ranges.resize(stages, LayerRange{layers, layers});
  return ranges;
}

}  // namespace

absl::StatusOr<Ranges> SplitEvenly(int64_t layers, int64_t stages,
                                   EmptyStages empty) {
  TESSERA_RETURN_IF_ERROR(CheckSizes(layers, stages, empty));
  Ranges ranges(stages);
  int64_t begin = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t end =
        begin + layers / stages + (stage < layers % stages ? 1 : 0);
    ranges[stage] = {begin, end};
    begin = end;
  }
  return ranges;
}

absl::StatusOr<Ranges> SplitByCounts(int64_t layers,
                                     std::span<const int64_t> counts,
                                     EmptyStages empty) {
  TESSERA_RETURN_IF_ERROR(
      CheckSizes(layers, static_cast<int64_t>(counts.size()), empty));
  const int64_t least = empty == EmptyStages::kRefused ? 1 : 0;
  Ranges ranges;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    if (count < least) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", ranges.size(), " is to hold ", count,
                       " layers; give it at least ", least));
    }
    if (count > layers - begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", ranges.size(), " is to hold ", count,
                       " layers but only ", layers - begin, " of ", layers,
                       " are left; the counts must add up to ", layers));
    }
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  if (begin != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the counts of ", counts.size(), " stages add up to ",
                     begin, " layers and leave out ", layers - begin,
                     "; they must add up to ", layers));
  }
  return ranges;
}

absl::StatusOr<Ranges> SplitByCost(std::span<const int64_t> costs,
                                   int64_t stages, EmptyStages empty) {
  return SplitCosts(costs, stages, empty);
}

absl::StatusOr<Ranges> SplitByCost(std::span<const double> costs,
                                   int64_t stages, EmptyStages empty) {
  return SplitCosts(costs, stages, empty);
}

}  // namespace tessera::topology
