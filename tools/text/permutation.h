// Permutation: an order of n things that is computed, not stored.
//
//   TESSERA_ASSIGN_OR_RETURN(auto order, Permutation::Create(n, /*key=*/7));
//   order(0), order(1), ..., order(n - 1);   // each of 0 ... n - 1 once
//
// A Feistel network over a x b >= n cells, a and b near the root of n, whose
// few cells past the end are walked over: at most about sqrt(n) of n. A value
// of a few words; any element in time that does not depend on n. It shuffles
// well enough for training and hides nothing. Source: Black and Rogaway,
// Ciphers with Arbitrary Finite Domains, CT-RSA 2002, methods 2 and 3.
#ifndef TESSERA_TOOLS_TEXT_PERMUTATION_H_
#define TESSERA_TOOLS_TEXT_PERMUTATION_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace tessera::text {

class Permutation {
 public:
  // InvalidArgument where `size` is not in [0, 2^62]. The same key gives the
  // same order, everywhere and in every version of Tessera.
  static absl::StatusOr<Permutation> Create(int64_t size, uint64_t key);

  int64_t size() const { return size_; }

  // Where `index`, which is in [0, size()), is sent.
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
