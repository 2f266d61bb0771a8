// MachineRoom: how much memory this machine has for a run.
//
//   TESSERA_ASSIGN_OR_RETURN(const MachineRoom room, ReadMachineRoom());
//   if (needed > room.bytes) ...
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_MACHINE_ROOM_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_MACHINE_ROOM_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "offload/pressure/memory_reading.h"

namespace tessera::train {

struct MachineRoom {
  int64_t bytes = 0;       // That may be taken, by all processes together.
  std::string limit = "";  // Whose: "machine", "cgroup /job memory.max".
  // Resident, of a process before it has a rank's state.
  int64_t process = 0;
  int64_t processors = 0;  // That ranks share; 0: as many as they are.
};

// This process, and the tightest limit of the machine (MemAvailable) and of the
// control groups; limits of single processes do not count. Errors are the
// source's; NotFound where it has no such limit.
absl::StatusOr<MachineRoom> ReadMachineRoom(offload::MemorySource& source);
absl::StatusOr<MachineRoom> ReadMachineRoom();

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_MACHINE_ROOM_H_
