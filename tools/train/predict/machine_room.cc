#include "tools/train/predict/machine_room.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "offload/pressure/system_memory.h"

namespace tessera::train {

absl::StatusOr<MachineRoom> ReadMachineRoom(offload::MemorySource& source) {
  TESSERA_ASSIGN_OR_RETURN(const offload::MemoryReading reading, source.Read());
  MachineRoom room;
  room.process = reading.resident;
  for (const offload::MemoryLimit& limit : reading.limits) {
    if (absl::StartsWith(limit.source, "RLIMIT")) continue;
    const int64_t left = std::max<int64_t>(limit.limit - limit.used, 0);
    if (!room.limit.empty() && left >= room.bytes) continue;
    room.bytes = left;
    room.limit = limit.source;
  }
  if (!room.limit.empty()) return room;
  return absl::NotFoundError(
      "neither the machine nor a control group says how much memory there is");
}

absl::StatusOr<MachineRoom> ReadMachineRoom() {
  offload::SystemMemory system;
  TESSERA_ASSIGN_OR_RETURN(MachineRoom room, ReadMachineRoom(system));
  room.processors = AvailableProcessors();
  return room;
}

}  // namespace tessera::train
