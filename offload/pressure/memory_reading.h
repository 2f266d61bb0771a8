// MemoryReading: how full memory is, against each limit that counts.
//
//   TESSERA_ASSIGN_OR_RETURN(MemoryReading reading, source.Read());
//   if (reading.pressure() > 0.9) Shrink(reading.tightest()->source);
#ifndef TESSERA_OFFLOAD_PRESSURE_MEMORY_READING_H_
#define TESSERA_OFFLOAD_PRESSURE_MEMORY_READING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/pressure/memory_files.h"

namespace tessera::offload {

struct MemoryLimit {
  // used / limit; 1 for a limit of nothing.
  double pressure() const {
    return limit <= 0 ? 1
                      : static_cast<double>(used) / static_cast<double>(limit);
  }

  std::string source;       // "cgroup /sys/fs/cgroup/job memory.max"
  int64_t used = 0;         // bytes, without what the kernel can take back
  int64_t reclaimable = 0;  // which is this: clean page cache
  int64_t limit = 0;
};

struct MemoryReading {
  // The limit nearest to its end; null where there is none.
  const MemoryLimit* tightest() const {
    const MemoryLimit* most = nullptr;
    for (const MemoryLimit& limit : limits) {
      if (most == nullptr || limit.pressure() > most->pressure()) {
        most = &limit;
      }
    }
    return most;
  }
  // 0 without a limit.
  double pressure() const {
    return limits.empty() ? 0 : tightest()->pressure();
  }

  std::vector<MemoryLimit> limits;
  std::optional<PressureStall> stall;  // the control group's, else the system's
  int64_t resident = 0;                // of this process
  // Of this control group, since it exists: kills for lack of memory, and
  // times at which memory.high or memory.max made it wait.
  int64_t oom_kills = 0;
  int64_t throttled = 0;
  // What was there and could not be read, and why.
  std::vector<std::string> unread;
};

// Where readings come from. Safe for concurrent use.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual absl::StatusOr<MemoryReading> Read() = 0;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_MEMORY_READING_H_
