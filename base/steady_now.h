// SteadyNow: the time since the machine started (CLOCK_MONOTONIC), for
// durations and deadlines, which changes of the wall clock must not affect.
//
//   const absl::Duration begin = SteadyNow();
//   ...
//   time_taken = SteadyNow() - begin;
#ifndef TESSERA_BASE_STEADY_NOW_H_
#define TESSERA_BASE_STEADY_NOW_H_

#include <chrono>

#include "absl/time/time.h"

namespace tessera {

inline absl::Duration SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace tessera

#endif  // TESSERA_BASE_STEADY_NOW_H_
