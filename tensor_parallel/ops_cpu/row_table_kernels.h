// The loops of row_table.h. Internal.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ROW_TABLE_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ROW_TABLE_KERNELS_H_

#include <cstdint>
#include <span>

#include "base/dtype/dtype.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"

namespace tessera::tensor_parallel::cpu {

// Adds some rows of `gradient` to the one row of `target`.
struct AddRowsJob {
  DType dtype = DType::kF32;
  DType target_type = DType::kF32;
  int64_t n = 0;
  ConstRowsView gradient = {};
  std::span<const int64_t> rows = {};
  RowsView target = {};
};

// By the best instruction set that this processor has.
void RunAddRows(const AddRowsJob& job);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ROW_TABLE_KERNELS_H_
