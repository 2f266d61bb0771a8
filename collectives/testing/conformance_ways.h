// The ways in which the conformance suite has an operation carried out.
#ifndef TESSERA_COLLECTIVES_TESTING_CONFORMANCE_WAYS_H_
#define TESSERA_COLLECTIVES_TESTING_CONFORMANCE_WAYS_H_

#include <optional>
#include <vector>

#include "collectives/algorithms/supports.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// The engine's choice and every algorithm by name.
inline std::vector<std::optional<Algorithm>> WaysOf(OpKind kind, bool uneven) {
  std::vector<std::optional<Algorithm>> ways = {std::nullopt};
  for (Algorithm algorithm : kAllAlgorithms) {
    if (algorithm != Algorithm::kEngine && Supports(algorithm, kind, uneven)) {
      ways.push_back(algorithm);
    }
  }
  return ways;
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_CONFORMANCE_WAYS_H_
