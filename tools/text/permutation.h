// Permutation: the order of the samples of an epoch.
#ifndef TESSERA_TOOLS_TEXT_PERMUTATION_H_
#define TESSERA_TOOLS_TEXT_PERMUTATION_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace tessera::text {

// A pseudo-random order of n items that is computed instead of stored.
//
//   TESSERA_ASSIGN_OR_RETURN(auto order, Permutation::Create(n, /*key=*/7));
//   order(0);  // order(0), ..., order(n - 1) are 0, ..., n - 1, shuffled.
//
// Uses a Feistel network over a x b >= n cells, with a and b near sqrt(n), and
// skips the at most about sqrt(n) cells past the end. An element takes constant
// time. It is good enough for shuffling, not for encryption. Source: Black and
// Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, methods 2 and 3.
class Permutation {
 public:
  // InvalidArgument if `size` is not in [0, 2^62]. The same key gives the same
  // order on every machine and in every version of Tessera.
  static absl::StatusOr<Permutation> Create(int64_t size, uint64_t key);

  int64_t size() const { return size_; }

  // The element at `index`, which is in [0, size()).
  int64_t operator()(int64_t index) const;

 private:
  Permutation(int64_t size, uint64_t key, uint64_t rows, uint64_t columns)
      : size_(size), key_(key), rows_(rows), columns_(columns) {}

  uint64_t Walk(uint64_t cell) const;

  int64_t size_;
  uint64_t key_;
  uint64_t rows_, columns_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_PERMUTATION_H_
