// OptimizerKind: which optimizer steps a ShardedState.
#ifndef TESSERA_ZERO3_STATE_OPTIMIZER_KIND_H_
#define TESSERA_ZERO3_STATE_OPTIMIZER_KIND_H_

#include "offload/optimizer/sgd.h"

namespace tessera::zero3 {

enum class OptimizerKind {
  kAdamW,  // offload/optimizer/adamw.h
  kSgd,    // offload/optimizer/sgd.h
};

// How many moments it keeps of each element: AdamW two, SGD with momentum the
// first, SGD without none.
inline int MomentCount(OptimizerKind kind, const offload::SgdOptions& sgd) {
  if (kind == OptimizerKind::kAdamW) return 2;
  return sgd.momentum == 0 ? 0 : 1;
}

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_OPTIMIZER_KIND_H_
