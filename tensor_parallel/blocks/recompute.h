// Recompute: what a block computes again in its backward instead of keeping it
// (Chen et al., arXiv 1604.06174; selective: Korthikanti et al., arXiv
// 2205.05198, section 5). Outputs and gradients are the same to the last bit.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_RECOMPUTE_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_RECOMPUTE_H_

#include <ostream>
#include <string_view>

namespace tessera::tensor_parallel {

enum class Recompute {
  kNone,       // Nothing: everything is kept.
  kSelective,  // The core of the attention: its output is not kept.
  kFull,       // Everything: only the block's input is kept.
};

// "none", "selective", "full".
constexpr std::string_view RecomputeName(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "unknown";
}

inline std::ostream& operator<<(std::ostream& os, Recompute recompute) {
  return os << RecomputeName(recompute);
}

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_RECOMPUTE_H_
