// The loops of cross_entropy.h. Internal.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_CROSS_ENTROPY_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_CROSS_ENTROPY_KERNELS_H_

#include <cstdint>
#include <span>

#include "base/dtype/dtype.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {

struct CrossEntropyJob {
  enum class Step { kMax, kSumExp, kPick, kGradient };
  Step step = Step::kMax;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  IndexRange held = {};
  ConstRowsView logits = {};
  ConstRowsView largest = {};  // Statistics, as the next two.
  ConstRowsView sum = {};
  RowsView result = {};  // Of kGradient: the logits.
  std::span<const int64_t> targets = {};
  std::span<const double> scales = {};
};

// By the best instruction set that this processor has.
void RunCrossEntropy(const CrossEntropyJob& job);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_CROSS_ENTROPY_KERNELS_H_
