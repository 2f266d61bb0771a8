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
#ifndef TESSERA_OFFLOAD_PRESSURE_MEMORY_FILES_H_
#define TESSERA_OFFLOAD_PRESSURE_MEMORY_FILES_H_

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

// Where a hierarchy that may count memory is mounted.
struct CgroupMount {
  bool v2 = false;
  std::string root;   // the part of the hierarchy that is mounted
  std::string point;  // where
  friend bool operator==(const CgroupMount&, const CgroupMount&) = default;
};
// /proc/self/mountinfo, other mounts passed over.
absl::StatusOr<std::vector<CgroupMount>> ParseCgroupMounts(
    std::string_view text);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_MEMORY_FILES_H_
