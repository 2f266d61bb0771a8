// The loops of activation.h. Internal.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ACTIVATION_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ACTIVATION_KERNELS_H_

#include <cstdint>

#include "base/dtype/dtype.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"

namespace tessera::tensor_parallel::cpu {

struct SwiGluJob {
  bool backward = false;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t n = 0;
  ConstRowsView gate = {};
  ConstRowsView up = {};
  ConstRowsView gradient = {};
  RowsView y = {};  // Forward.
  RowsView gate_gradient = {};
  RowsView up_gradient = {};
};

// By the best instruction set that this processor has.
void RunSwiGlu(const SwiGluJob& job);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ACTIVATION_KERNELS_H_
