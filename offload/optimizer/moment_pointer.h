// What a kernel takes of a MomentSpan.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_MOMENT_POINTER_H_
#define TESSERA_OFFLOAD_OPTIMIZER_MOMENT_POINTER_H_

#include "offload/optimizer/moment.h"
#include "offload/optimizer/step_job.h"

namespace tessera::offload {

static_assert(static_cast<int>(MomentType::kF64) ==
                  static_cast<int>(StoredMoment::kF64) &&
              static_cast<int>(MomentType::kF32) ==
                  static_cast<int>(StoredMoment::kF32) &&
              static_cast<int>(MomentType::kBF16) ==
                  static_cast<int>(StoredMoment::kBF16) &&
              static_cast<int>(MomentType::kBlockwise8) ==
                  static_cast<int>(StoredMoment::kBlockwise8));

inline MomentPointer PointerTo(const MomentSpan& moment) {
  return {.type = static_cast<StoredMoment>(moment.format.type),
          .block = moment.format.block,
          .values = moment.values,
          .largest = moment.largest.data()};
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_MOMENT_POINTER_H_
