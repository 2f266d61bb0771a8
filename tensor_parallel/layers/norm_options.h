// NormOptions: what both norms are made of.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_NORM_OPTIONS_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_NORM_OPTIONS_H_

#include <cstdint>

#include "base/dtype/dtype.h"

namespace tessera::tensor_parallel {

struct NormOptions {
  int64_t width = 0;
  double epsilon = 1e-5;
  DType dtype = DType::kF32;
  // Each rank has some of the tokens: gradients of weights are to be summed.
  bool sequence_parallel = false;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_NORM_OPTIONS_H_
