// RunStep: one pass over a range by the best instruction set of the processor.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_STEP_KERNEL_H_
#define TESSERA_OFFLOAD_OPTIMIZER_STEP_KERNEL_H_

#include "offload/optimizer/step_job.h"

namespace tessera::offload {

// In the calling thread. The result has the same bits for every instruction
// set, and for every partition of a range (at blocks, where there are any).
void RunStep(const StepJob& job);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_STEP_KERNEL_H_
