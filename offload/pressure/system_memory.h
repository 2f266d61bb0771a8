// SystemMemory: what Linux says about memory, for this process.
//
//   SystemMemory system;
//   TESSERA_ASSIGN_OR_RETURN(MemoryReading reading, system.Read());
//
// Limits, each left out where it is not set:
// - of the machine: MemTotal; used is MemTotal - MemAvailable;
// - of the control group and each above it, version 2 (the smaller of
//   memory.max and memory.high against memory.current) or 1
//   (memory.limit_in_bytes against memory.usage_in_bytes); used is without the
//   reclaimable page cache: file pages on the LRU lists that are neither dirty
//   nor in writeback, and reclaimable slab (version 2);
// - of the process: RLIMIT_AS against its address space, RLIMIT_DATA against
//   its data.
#ifndef TESSERA_OFFLOAD_PRESSURE_SYSTEM_MEMORY_H_
#define TESSERA_OFFLOAD_PRESSURE_SYSTEM_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "offload/pressure/memory_reading.h"

namespace tessera::offload {

// Each Read opens a dozen small files, some tens of microseconds. Has no state.
class SystemMemory final : public MemorySource {
 public:
  // Every path is read behind `root`, so that a recorded tree can stand in for
  // the machine. `page_bytes`: 0 for this machine's.
  explicit SystemMemory(std::string root = "", int64_t page_bytes = 0);

  // NotFound where not one limit can be read; files that are there and
  // unreadable or in no known format are told in `unread`.
  absl::StatusOr<MemoryReading> Read() override;

 private:
  class Reader;

  const std::string root_;
  const int64_t page_bytes_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_SYSTEM_MEMORY_H_
