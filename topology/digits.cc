#include "topology/digits.h"

#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::topology {

Digits::Digits(std::span<const Digit> digits) {
  absl::InlinedVector<Digit, 4> sorted(digits.begin(), digits.end());
  absl::c_sort(sorted, [](const Digit& a, const Digit& b) {
    return a.stride < b.stride;
  });
  for (const Digit& digit : sorted) {
    if (digit.size == 1) continue;
    count_ *= digit.size;
    if (!digits_.empty() &&
        digits_.back().stride * digits_.back().size == digit.stride) {
      digits_.back().size *= digit.size;
    } else {
      digits_.push_back(digit);
    }
  }
}

absl::StatusOr<std::vector<Digits>> Digits::Split(
    std::span<const int64_t> sizes) const {
  std::vector<Digits> parts;
  size_t next = 0;
  Digit rest;  // What is left of digits_[next - 1].
  for (const int64_t size : sizes) {
    std::vector<Digit> part;
    int64_t wanted = size;
    while (wanted > 1) {
      if (rest.size == 1) {
        if (next == digits_.size()) break;
        rest = digits_[next++];
      }
      const int64_t taken = std::gcd(wanted, rest.size);
      // A digit that is only partly taken must not go on in the same part.
      if (taken != wanted && taken != rest.size) break;
      part.push_back({rest.stride, taken});
      rest = {rest.stride * taken, rest.size / taken};
      wanted /= taken;
    }
    if (wanted != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("a part of size ", size,
                       " does not end where one of the parted axes does"));
    }
    parts.emplace_back(part);
  }
  if (rest.size != 1 || next != digits_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the parts do not multiply to ", count_));
  }
  return parts;
}

Digits Union(const Digits& a, const Digits& b) {
  absl::InlinedVector<Digit, 8> all(a.digits_.begin(), a.digits_.end());
  all.insert(all.end(), b.digits_.begin(), b.digits_.end());
  return Digits(all);
}

}  // namespace tessera::topology
