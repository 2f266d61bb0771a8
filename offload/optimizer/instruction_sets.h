// ForEachInstructionSet: a test's body under every instruction set that this
// processor has and that kernels are compiled for, the scalar one included.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_INSTRUCTION_SETS_H_
#define TESSERA_OFFLOAD_OPTIMIZER_INSTRUCTION_SETS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "offload/optimizer/targets.h"
// Must come after targets.h.
#include "hwy/highway.h"

namespace tessera::offload {

// Returns how many there are.
inline int ForEachInstructionSet(absl::FunctionRef<void()> body) {
  int count = 0;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0;
       left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    body();
    ++count;
  }
  hwy::SetSupportedTargetsForTest(0);
  return count;
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_INSTRUCTION_SETS_H_
