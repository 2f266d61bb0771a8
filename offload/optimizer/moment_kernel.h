// Moments of any 32-bit-or-less format to f32 and back, without a step.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_MOMENT_KERNEL_H_
#define TESSERA_OFFLOAD_OPTIMIZER_MOMENT_KERNEL_H_

#include <cstdint>

#include "offload/optimizer/step_job.h"

namespace tessera::offload {

// `is_signed`: a first moment. Elements [0, count), not f64.
void DecodeMoments(const MomentPointer& moment, bool is_signed, int64_t count,
                   float* values);
void EncodeMoments(const MomentPointer& moment, bool is_signed, int64_t count,
                   const float* values);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_MOMENT_KERNEL_H_
