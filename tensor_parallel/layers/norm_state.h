// NormState: what a norm keeps of a forward for its backward, by row.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_NORM_STATE_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_NORM_STATE_H_

#include <cstdint>

#include "tensor_parallel/layers/tensor_pool.h"

namespace tessera::tensor_parallel {

struct NormState {
  // `pool` must outlive the state.
  explicit NormState(TensorPool& pool) : mean(pool), inverse(pool) {}

  int64_t bytes() const { return mean.bytes() + inverse.bytes(); }
  void Clear() {
    mean.Release();
    inverse.Release();
  }

  PooledTensor mean;     // Of LayerNorm alone. [rows], statistics.
  PooledTensor inverse;  // 1 / the root. [rows], statistics.
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_NORM_STATE_H_
