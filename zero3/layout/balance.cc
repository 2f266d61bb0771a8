#include "zero3/layout/balance.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

absl::Status Check(std::span<const int64_t> weights, int64_t ranks) {
  if (ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks is ", ranks, "; allowed: 1 or more"));
  }
  int64_t sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weight ", i, " is ", weights[i], "; allowed: 0 or more"));
    }
    if (__builtin_add_overflow(sum, weights[i], &sum)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the weights exceed 2^63-1 in all at number ", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<topology::Rank>> BalanceLargestFirst(
    std::span<const int64_t> weights, int64_t ranks) {
  TESSERA_RETURN_IF_ERROR(Check(weights, ranks));
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  // No more ranks than weights can be used.
  const int64_t used = std::min(ranks, static_cast<int64_t>(weights.size()));
  using Load = std::pair<int64_t, topology::Rank>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int64_t rank = 0; rank < used; ++rank) {
    loads.push({0, topology::Rank(rank)});
  }
  std::vector<topology::Rank> owners(weights.size());
  for (const size_t i : order) {
    const auto [load, rank] = loads.top();
    loads.pop();
    owners[i] = rank;
    loads.push({load + weights[i], rank});
  }
  return owners;
}

}  // namespace tessera::zero3
