// What a rank waits for that waits for ever.
#ifndef TESSERA_PIPELINE_SIMULATE_STUCK_H_
#define TESSERA_PIPELINE_SIMULATE_STUCK_H_

#include "absl/status/status.h"
#include "pipeline/proof/place.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/results.h"

namespace tessera::pipeline {

enum class Messages : uint8_t {
  kImplied,     // The schedule has none.
  kBeside,      // A computation waits until its message has been sent.
  kRendezvous,  // Sends and receives wait for each other.
};

// FailedPrecondition: "rank 0, action 1 (0B0) waits for ever for 1B0".
absl::Status WaitsForEver(const Schedule& schedule, Place place,
                          const Results& results, Messages messages);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_STUCK_H_
