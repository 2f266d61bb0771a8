// The loops of elementwise.h. Internal.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ELEMENTWISE_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ELEMENTWISE_KERNELS_H_

#include <cstdint>

#include "base/dtype/dtype.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"

namespace tessera::tensor_parallel::cpu {

struct ElementwiseJob {
  enum class Step {
    kAddToRows,  // y[i] += x[0]
    kAdd,        // y[i] += x[i]
    kScale,      // y[i] *= factor
    kCast,       // y[i] = x[i]
    kSumRows,    // y[0] += the sum of x[i]
    kDots,       // y[0][i] = the sum of x[i] * z[i]
  };
  Step step = Step::kAdd;
  DType x_type = DType::kF32;
  DType y_type =
      DType::kF32;  // That of statistics, or x_type; of z under kDots.
  int64_t rows = 0;
  int64_t n = 0;
  double factor = 1;
  ConstRowsView x = {};
  ConstRowsView z = {};
  RowsView y = {};
};

// By the best instruction set that this processor has.
void RunElementwise(const ElementwiseJob& job);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ELEMENTWISE_KERNELS_H_
