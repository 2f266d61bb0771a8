// ForEachInstructionSet runs tests of kernels on every instruction set of this
// processor.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_TESTING_INSTRUCTION_SETS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_TESTING_INSTRUCTION_SETS_H_

#include <cstdint>
#include <functional>

#include "hwy/highway.h"

namespace tessera::tensor_parallel::cpu {

// Runs `body` once for every instruction set of this processor for which
// kernels are compiled.
inline void ForEachInstructionSet(const std::function<void()>& body) {
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0;
       left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_TESTING_INSTRUCTION_SETS_H_
