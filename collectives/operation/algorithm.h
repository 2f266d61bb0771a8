// Algorithm: how an operation is carried out.
#ifndef TESSERA_COLLECTIVES_OPERATION_ALGORITHM_H_
#define TESSERA_COLLECTIVES_OPERATION_ALGORITHM_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::collectives {

// The values are stable: they are sent.
enum class Algorithm : uint8_t {
  kEngine = 0,             // The engine's own, whatever it is.
  kRing = 1,               //
  kTree = 2,               // Double binary tree; binomial for small messages.
  kRecursiveDoubling = 3,  //
  kHalvingDoubling = 4,    // Rabenseifner's.
  kHierarchical = 5,       // Within each host (or socket), then across.
  kChain = 6,              // Pipelined along a chain.
  kBruck = 7,              //
  kPairwise = 8,           // Every rank exchanges with every other in turn.
};

inline constexpr std::array<Algorithm, 9> kAllAlgorithms = {
    Algorithm::kEngine,
    Algorithm::kRing,
    Algorithm::kTree,
    Algorithm::kRecursiveDoubling,
    Algorithm::kHalvingDoubling,
    Algorithm::kHierarchical,
    Algorithm::kChain,
    Algorithm::kBruck,
    Algorithm::kPairwise,
};

// "engine" "ring" "tree" "recursive_doubling" "halving_doubling"
// "hierarchical" "chain" "bruck" "pairwise".
std::string_view AlgorithmName(Algorithm algorithm);

// InvalidArgument lists what is allowed.
absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view text);

inline std::ostream& operator<<(std::ostream& os, Algorithm algorithm) {
  return os << AlgorithmName(algorithm);
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_OPERATION_ALGORITHM_H_
