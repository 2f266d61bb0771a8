// TreeKind: the trees that reductions and broadcasts run along, and the size
// from which on messages are worth cutting up.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_TREE_KIND_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_TREE_KIND_H_

#include <cstdint>

namespace tessera::collectives {

// Messages of up to this many bytes are worth more steps saved than bytes.
inline constexpr int64_t kSmallMessageBytes = 16 << 10;

enum class TreeKind : uint8_t {
  kBinomial,  // Fewest steps, for what is small.
  kDouble,    // Each of two binary trees carries half.
  kChain,
};

// kBinomial where `bytes` is small or there is no room for two trees, else
// kDouble: what Algorithm::kTree takes, for reduce, broadcast and all-reduce.
constexpr TreeKind TreeKindFor(int64_t bytes, int64_t ranks) {
  return bytes <= kSmallMessageBytes || ranks <= 2 ? TreeKind::kBinomial
                                                   : TreeKind::kDouble;
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_TREE_KIND_H_
