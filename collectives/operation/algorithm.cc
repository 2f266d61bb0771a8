#include "collectives/operation/algorithm.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::collectives {
namespace {

constexpr std::array<std::string_view, kAllAlgorithms.size()> kNames = {
    "engine",       "ring",  "tree",  "recursive_doubling", "halving_doubling",
    "hierarchical", "chain", "bruck", "pairwise",
};

}  // namespace

std::string_view AlgorithmName(Algorithm algorithm) {
  const auto index = static_cast<size_t>(algorithm);
  return index < kNames.size() ? kNames[index] : "invalid";
}

absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view text) {
  for (Algorithm algorithm : kAllAlgorithms) {
    if (AlgorithmName(algorithm) == text) return algorithm;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no algorithm is named \"", text.substr(0, 64),
                   "\"; there are ", absl::StrJoin(kNames, ", ")));
}

}  // namespace tessera::collectives
