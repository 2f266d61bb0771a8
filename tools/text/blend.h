// Blend: the order in which samples of several corpora follow each other.
#ifndef TESSERA_TOOLS_TEXT_BLEND_H_
#define TESSERA_TOOLS_TEXT_BLEND_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::text {

// Interleaves several sources of samples in proportion to their weights.
//
//   TESSERA_ASSIGN_OR_RETURN(Blend blend, Blend::Create({{0.7, 0.3}}));
//   // The source of sample 1000, and the index within that source.
//   Blend::Place place = blend.At(1000);
//
// At() takes any index and O(log(sources)) time. Among the first n samples, the
// number from source s differs from weight[s] * n by at most (1 +
// ceil(log2(sources))) / 2; they are its samples 0, 1, 2, ... in order.
class Blend {
 public:
  struct Place {
    size_t source = 0;
    int64_t index = 0;  // Within the source.

    friend bool operator==(const Place&, const Place&) = default;
  };

  // Normalises the weights to a sum of 1. InvalidArgument if there are none, or
  // if a weight is not positive and finite or is below 1e-9 of the sum.
  static absl::StatusOr<Blend> Create(std::span<const double> weights);

  // `index` is in [0, 2^62].
  Place At(int64_t index) const;

  // A hash of the weights.
  uint64_t fingerprint() const;

 private:
  explicit Blend(std::vector<int64_t> sums) : sums_(std::move(sums)) {}

  // Prefix sums of the weights as integers: one before each source, then the
  // total.
  std::vector<int64_t> sums_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_BLEND_H_
