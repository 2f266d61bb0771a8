// SystemMemory: reads from Linux how full memory is (MemoryReading), against
// the limits of the machine, of control groups and of the process. Also the
// parsers of the files that it reads: /proc/meminfo,
// /proc/self/{statm,limits,cgroup, mountinfo}, and
// memory.{max,stat,events,pressure} of control groups.
//
//   SystemMemory system;
//   TESSERA_ASSIGN_OR_RETURN(MemoryReading reading, system.Read());
//
// The parsers are pure functions of untrusted text of at most 1 MiB. For text
// that is not in the format they return InvalidArgument with the line. They
// ignore unknown keys, since new kernels add some.
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
// Parses /proc/meminfo. Before Linux 3.14, which added MemAvailable,
// `available` is free memory plus page cache.
absl::StatusOr<MemoryInfo> ParseMemoryInfo(std::string_view text);

// The percentages of time in which some, or all, tasks waited for memory.
struct PressureStall {
  double some_avg10 = 0;
  double full_avg10 = 0;
  friend bool operator==(const PressureStall&, const PressureStall&) = default;
};
// Parses /proc/pressure/memory or memory.pressure.
absl::StatusOr<PressureStall> ParsePressureStall(std::string_view text);

// Parses one number or "max", as in memory.max. Returns kNoLimit for "max" and
// for numbers from 2^62 on, which mean "unlimited" in version 1.
absl::StatusOr<int64_t> ParseMemoryLimit(std::string_view text);

// "key value" lines, as in memory.stat and memory.events.
using KeyedNumbers = std::map<std::string, int64_t, std::less<>>;
absl::StatusOr<KeyedNumbers> ParseKeyedNumbers(std::string_view text);

// The memory of this process, in bytes.
struct ProcessMemory {
  int64_t address_space = 0;
  int64_t resident = 0;
  int64_t data = 0;
  friend bool operator==(const ProcessMemory&, const ProcessMemory&) = default;
};
// Parses /proc/self/statm. `page_bytes` is a power of two.
absl::StatusOr<ProcessMemory> ParseProcessMemory(std::string_view text,
                                                 int64_t page_bytes);

// The limits of this process, in bytes.
struct ProcessLimits {
  int64_t address_space = kNoLimit;
  int64_t data = kNoLimit;
  friend bool operator==(const ProcessLimits&, const ProcessLimits&) = default;
};
// Parses the soft limits in /proc/self/limits.
absl::StatusOr<ProcessLimits> ParseProcessLimits(std::string_view text);

// The control groups that count a process's memory; paths within their
// hierarchies.
struct CgroupMembership {
  std::optional<std::string> v2;
  std::optional<std::string> v1;  // of the memory controller
  friend bool operator==(const CgroupMembership&,
                         const CgroupMembership&) = default;
};
// Parses /proc/self/cgroup.
absl::StatusOr<CgroupMembership> ParseCgroupMembership(std::string_view text);

// The mount point of a hierarchy that may count memory.
struct CgroupMount {
  bool v2 = false;
  std::string root;   // the part of the hierarchy that is mounted
  std::string point;  // where
  friend bool operator==(const CgroupMount&, const CgroupMount&) = default;
};
// Parses /proc/self/mountinfo, and ignores other mounts.
absl::StatusOr<std::vector<CgroupMount>> ParseCgroupMounts(
    std::string_view text);

// A limit of memory, and how much of it is used.
struct MemoryLimit {
  // used / limit; 1 if the limit is 0.
  double pressure() const {
    return limit <= 0 ? 1
                      : static_cast<double>(used) / static_cast<double>(limit);
  }

  std::string source;       // "cgroup /sys/fs/cgroup/job memory.max"
  int64_t used = 0;         // bytes, without `reclaimable`
  int64_t reclaimable = 0;  // bytes of clean page cache
  int64_t limit = 0;
};

// The usage of memory relative to each limit that applies.
//
//   TESSERA_ASSIGN_OR_RETURN(MemoryReading reading, source.Read());
//   if (reading.pressure() > 0.9) Shrink(reading.tightest()->source);
struct MemoryReading {
  // The limit with the highest pressure; null if there is none.
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
  std::optional<PressureStall> stall;  // of the control group or the system
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

// Reads the memory limits of this process from Linux.
//
//   SystemMemory system;
//   TESSERA_ASSIGN_OR_RETURN(MemoryReading reading, system.Read());
//
// The limits, except those that are not set:
// - of the machine: MemTotal; used is MemTotal - MemAvailable;
// - of the control group and each above it, version 2 (the smaller of
//   memory.max and memory.high against memory.current) or 1
//   (memory.limit_in_bytes against memory.usage_in_bytes); used is without the
//   reclaimable page cache: file pages on the LRU lists that are neither dirty
//   nor in writeback, and reclaimable slab (version 2);
// - of the process: RLIMIT_AS against its address space, RLIMIT_DATA against
//   its data.

// Each Read opens a dozen small files, which takes some tens of microseconds.
// Stateless.
class SystemMemory final : public MemorySource {
 public:
  // All paths are relative to `root`, so that a recorded tree can replace the
  // machine's files. If `page_bytes` is 0, uses the page size of this machine.
  explicit SystemMemory(std::string root = "", int64_t page_bytes = 0);

  // NotFound if no limit can be read. Files that exist but are unreadable or in
  // an unknown format are listed in `unread`.
  absl::StatusOr<MemoryReading> Read() override;

 private:
  class Reader;

  const std::string root_;
  const int64_t page_bytes_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_SYSTEM_MEMORY_H_
