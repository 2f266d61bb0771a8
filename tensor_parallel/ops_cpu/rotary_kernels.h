// The loops of rotary.h. Internal.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ROTARY_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ROTARY_KERNELS_H_

#include <cstdint>

#include "base/dtype/dtype.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"

namespace tessera::tensor_parallel::cpu {

// All heads of a token.
struct RotaryJob {
  DType dtype = DType::kF32;
  bool inverse = false;
  int64_t heads = 0;
  int64_t d = 0;
  const void* table = nullptr;  // Statistics: d/2 cosines, then d/2 sines.
  RowsView x = {};
};

// By the best instruction set that this processor has.
void RunRotary(const RotaryJob& job);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ROTARY_KERNELS_H_
