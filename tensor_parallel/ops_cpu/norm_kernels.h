// The loops of norms.h. Internal.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_NORM_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_NORM_KERNELS_H_

#include <cstdint>

#include "base/dtype/dtype.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"

namespace tessera::tensor_parallel::cpu {

struct NormJob {
  enum class Step { kForward, kInputGradient, kWeightGradient };
  Step step = Step::kForward;
  bool centred = false;  // LayerNorm, with mean and bias.
  DType dtype = DType::kF32;
  DType target_type = DType::kF32;  // Of the weight's gradient.
  double epsilon = 0;
  int64_t rows = 0;
  int64_t n = 0;
  ConstRowsView gradient = {};
  ConstRowsView x = {};
  ConstRowsView weight = {};
  ConstRowsView bias = {};
  // Statistics, written by kForward alone.
  RowsView mean = {};
  RowsView inverse = {};
  RowsView y = {};  // Or the gradient that is asked for.
};

// By the best instruction set that this processor has.
void RunNorm(const NormJob& job);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_NORM_KERNELS_H_
