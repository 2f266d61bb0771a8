// The texts in which Linux tells how much memory there is: /proc/meminfo,
// /proc/self/{statm,limits,cgroup,mountinfo}, and of control groups
// memory.{max,stat,events,pressure}.
//
//   TESSERA_ASSIGN_OR_RETURN(PressureStall stall,
//                            ParsePressureStall(text));
//   if (stall.full_avg10 > 10) ...
//
// Pure functions. Every one takes untrusted text of at most 1 MiB and refuses,
// as InvalidArgument with the line in question, what is not in the format.
// Unknown keys are passed over, as kernels add some.
//
// Source: Linux, Documentation/filesystems/proc.rst, accounting/psi.rst,
// admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
#ifndef TESSERA_OFFLOAD_PRESSURE_SYSTEM_MEMORY_H_
#define TESSERA_OFFLOAD_PRESSURE_SYSTEM_MEMORY_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::offload {

inline constexpr int64_t kMaxMemoryFileBytes = int64_t{1} << 20;
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Bytes.
struct MemoryInfo {
  int64_t total = 0;
  int64_t available = 0;  // at most `total`
  friend bool operator==(const MemoryInfo&, const MemoryInfo&) = default;
};
// /proc/meminfo. Before Linux 3.14 there is no MemAvailable: then free plus
// page cache.
absl::StatusOr<MemoryInfo> ParseMemoryInfo(std::string_view text);

// Percent of time in which some, or all, tasks waited for memory.
struct PressureStall {
  double some_avg10 = 0;
  double full_avg10 = 0;
  friend bool operator==(const PressureStall&, const PressureStall&) = default;
};
// /proc/pressure/memory or memory.pressure.
absl::StatusOr<PressureStall> ParsePressureStall(std::string_view text);

// One number, or "max", as in memory.max. kNoLimit for "max" and for the
// numbers from 2^62 on by which version 1 says so.
absl::StatusOr<int64_t> ParseMemoryLimit(std::string_view text);

// "key value" lines, as in memory.stat and memory.events.
using KeyedNumbers = std::map<std::string, int64_t, std::less<>>;
absl::StatusOr<KeyedNumbers> ParseKeyedNumbers(std::string_view text);

// Bytes of this process.
struct ProcessMemory {
  int64_t address_space = 0;
  int64_t resident = 0;
  int64_t data = 0;
  friend bool operator==(const ProcessMemory&, const ProcessMemory&) = default;
};
// /proc/self/statm. `page_bytes` is a power of two.
absl::StatusOr<ProcessMemory> ParseProcessMemory(std::string_view text,
                                                 int64_t page_bytes);

// kNoLimit: unlimited.
struct ProcessLimits {
  int64_t address_space = kNoLimit;
  int64_t data = kNoLimit;
  friend bool operator==(const ProcessLimits&, const ProcessLimits&) = default;
};
// /proc/self/limits, the soft ones.
absl::StatusOr<ProcessLimits> ParseProcessLimits(std::string_view text);

// The control groups that count a process's memory; paths within their
// hierarchies.
struct CgroupMembership {
  std::optional<std::string> v2;
  std::optional<std::string> v1;  // of the memory controller
  friend bool operator==(const CgroupMembership&,
                         const CgroupMembership&) = default;
};
// /proc/self/cgroup.
absl::StatusOr<CgroupMembership> ParseCgroupMembership(std::string_view text);

// The mount point of a hierarchy that may count memory.
struct CgroupMount {
  bool v2 = false;
  std::string root;   // the part of the hierarchy that is mounted
  std::string point;  // where
  friend bool operator==(const CgroupMount&, const CgroupMount&) = default;
};
// /proc/self/mountinfo, other mounts passed over.
absl::StatusOr<std::vector<CgroupMount>> ParseCgroupMounts(
    std::string_view text);

// MemoryReading: how full memory is, against each limit that counts.
//
//   TESSERA_ASSIGN_OR_RETURN(MemoryReading reading, source.Read());
//   if (reading.pressure() > 0.9) Shrink(reading.tightest()->source);

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
  // The limit nearest to its end; null if there is none.
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
  // Since the control group was created: kills for lack of memory, and the
  // number of times that memory.high or memory.max throttled it.
  int64_t oom_kills = 0;
  int64_t throttled = 0;
  // Files that exist but could not be read, and why.
  std::vector<std::string> unread;
};

// The source of readings. Safe for concurrent use.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual absl::StatusOr<MemoryReading> Read() = 0;
};

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

// Each Read opens a dozen small files, some tens of microseconds. Has no state.
class SystemMemory final : public MemorySource {
 public:
  // Every path is read behind `root`, so that a recorded tree can stand in for
  // the machine. `page_bytes`: 0 for this machine's.
  explicit SystemMemory(std::string root = "", int64_t page_bytes = 0);

  // NotFound if not one limit can be read; files that are there and unreadable
  // or in no known format are told in `unread`.
  absl::StatusOr<MemoryReading> Read() override;

 private:
  class Reader;

  const std::string root_;
  const int64_t page_bytes_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_SYSTEM_MEMORY_H_
