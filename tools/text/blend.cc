#include "tools/text/blend.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/text/text_hash.h"

namespace tessera::text {

absl::StatusOr<Blend> Blend::Create(std::span<const double> weights) {
  // Sets the resolution, and so the smallest weight; small enough that products
  // with 2^62 fit.
  constexpr double kUnits = 1e9;
  double sum = 0;
  for (const double weight : weights) sum += weight;
  std::vector<int64_t> sums = {0};
  for (const double weight : weights) {
    const double units = std::round(weight / sum * kUnits);
    // Negated, so that NaN is rejected as well.
    if (!(weight > 0 && std::isfinite(sum) && units >= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight ", sums.size() - 1, " is ", weight, " of ", sum,
                       "; it must be positive and finite, and 1e-9 of the sum "
                       "or more"));
    }
    sums.push_back(sums.back() + static_cast<int64_t>(units));
  }
  if (weights.empty()) {
    return absl::InvalidArgumentError("a blend of nothing; give 1 weight");
  }
  return Blend(std::move(sums));
}

uint64_t Blend::fingerprint() const {
  uint64_t mixed = 0;
  for (const int64_t sum : sums_) {
    mixed = Scramble(mixed ^ static_cast<uint64_t>(sum));
  }
  return mixed;
}

// Halves the range of sources until one is left. The left half of a range gets
// its share of the first n samples, rounded to nearest, so sample `index`
// belongs to the left half if it increases that number.
Blend::Place Blend::At(int64_t index) const {
  size_t begin = 0, end = sums_.size() - 1;
  while (end - begin > 1) {
    const size_t middle = (begin + end) / 2;
    const __int128 left = sums_[middle] - sums_[begin];
    const __int128 all = sums_[end] - sums_[begin];
    const auto before = [&](int64_t n) {
      return static_cast<int64_t>((2 * left * n + all) / (2 * all));
    };
    const int64_t of_left = before(index);
    if (before(index + 1) > of_left) {
      end = middle;
      index = of_left;
    } else {
      begin = middle;
      index -= of_left;
    }
  }
  return {begin, index};
}

}  // namespace tessera::text
