// ClockOffset: what to add to this rank's MonotonicNanos to have rank 0's.
//
//   TESSERA_ASSIGN_OR_RETURN(const int64_t offset, ClockOffset(world));
#ifndef TESSERA_TOOLS_TRAIN_REPORT_CLOCK_OFFSET_H_
#define TESSERA_TOOLS_TRAIN_REPORT_CLOCK_OFFSET_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace tessera::train {

// A name of the system that this process runs on, which changes at every boot:
// its processes share a clock. Empty where there is none.
std::string_view BootId();

// A collective. Exactly 0 for ranks with rank 0's `system`. For others the
// shortest of eight round trips, each taken for as long in both directions
// (Cristian, Probabilistic clock synchronization, 1989): wrong by half of it at
// most. `now` is this rank's clock.
absl::StatusOr<int64_t> ClockOffset(
    collectives::Communicator& world, std::string_view system = BootId(),
    const std::function<int64_t()>& now = collectives::MonotonicNanos);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_CLOCK_OFFSET_H_
