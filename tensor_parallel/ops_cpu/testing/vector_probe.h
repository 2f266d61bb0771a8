// Gives tests access to block-inl.h and exp-inl.h with the instruction set that
// the test chose.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_TESTING_VECTOR_PROBE_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_TESTING_VECTOR_PROBE_H_

#include <cstdint>

#include "base/dtype/small_float.h"
#include "tensor_parallel/ops_cpu/kernels.h"

namespace tessera::tensor_parallel::cpu {

// y[i] = exp(x[i]), by ExpFor<T>.
template <typename T>
void ProbeExp(const StatisticOf<T>* x, StatisticOf<T>* y, int64_t count);

// Rounds to 16 bits and converts back.
void ProbeRound(const float* x, BF16* y, int64_t count);
void ProbeRound(const float* x, F16* y, int64_t count);
void ProbeWiden(const BF16* x, float* y, int64_t count);
void ProbeWiden(const F16* x, float* y, int64_t count);

// The sum and the largest value of one block with `count` valid values.
struct BlockSummary {
  float sum = 0;
  float largest = 0;
};
BlockSummary ProbeBlock(const float* x, int64_t count);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_TESTING_VECTOR_PROBE_H_
