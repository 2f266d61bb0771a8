#include "offload/pressure/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "offload/pressure/memory_files.h"

namespace tessera::offload {
namespace {

constexpr int kMostLevels = 64;  // of control groups, upwards

int64_t Value(const KeyedNumbers& numbers, std::string_view key) {
  const auto found = numbers.find(key);
  return found == numbers.end() ? 0 : found->second;
}

// In doubles, as hostile numbers may not overflow.
int64_t Reclaimable(const KeyedNumbers& stat, std::string_view prefix,
                    int64_t used) {
  const auto get = [&](std::string_view key) {
    return static_cast<double>(Value(stat, absl::StrCat(prefix, key)));
  };
  const double file = get("active_file") + get("inactive_file");
  const double dirty = prefix.empty()
                           ? get("file_dirty") + get("file_writeback")
                           : get("dirty") + get("writeback");
  const double bytes = std::max(file - dirty, 0.0) +
                       (prefix.empty() ? get("slab_reclaimable") : 0);
  return static_cast<int64_t>(
      std::clamp(bytes, 0.0, static_cast<double>(used)));
}

// The group's directories from its own to the mount's, nearest first.
std::vector<std::string> Directories(const CgroupMount& mount,
                                     std::string_view group) {
  // A group outside of what is mounted (another namespace) shows as the mount.
  std::vector<std::string_view> parts;
  if (mount.root == "/" || absl::ConsumePrefix(&group, mount.root)) {
    parts = absl::StrSplit(group, '/', absl::SkipEmpty());
  }
  for (const std::string_view part : parts) {
    if (part == "..") {
      parts.clear();
      break;
    }
  }
  std::vector<std::string> directories;
  for (int level = 0; level < kMostLevels; ++level) {
    directories.push_back(absl::StrCat(mount.point, parts.empty() ? "" : "/",
                                       absl::StrJoin(parts, "/")));
    if (parts.empty()) break;
    parts.pop_back();
  }
  return directories;
}

}  // namespace

class SystemMemory::Reader {
 public:
  Reader(const std::string& root, int64_t page_bytes)
      : root_(root), page_bytes_(page_bytes) {}

  MemoryReading Run() {
    ReadMachine();
    ReadProcess();
    ReadGroups();
    if (!reading_.stall.has_value()) {
      reading_.stall = Get("/proc/pressure/memory", ParsePressureStall);
    }
    return std::move(reading_);
  }

 private:
  // Nothing where there is no such file.
  template <typename Parse>
  auto Get(const std::string& path, Parse parse)
      -> std::optional<typename decltype(parse(""))::value_type> {
    const absl::StatusOr<std::string> text =
        ReadFile(root_ + path, kMaxMemoryFileBytes);
    if (!text.ok()) {
      if (!absl::IsNotFound(text.status())) NoteUnread(path, text.status());
      return std::nullopt;
    }
    auto value = parse(*text);
    if (value.ok()) return *std::move(value);
    NoteUnread(path, value.status());
    return std::nullopt;
  }

  void NoteUnread(const std::string& path, const absl::Status& status) {
    reading_.unread.push_back(absl::StrCat(path, ": ", status.message()));
  }

  void Add(std::string source, int64_t used, int64_t limit,
           int64_t reclaimable = 0) {
    if (limit == kNoLimit) return;
    reading_.limits.push_back(
        {std::move(source), used - reclaimable, reclaimable, limit});
  }

  void ReadMachine() {
    if (const auto info = Get("/proc/meminfo", ParseMemoryInfo)) {
      Add("machine", info->total - info->available, info->total);
    }
  }

  void ReadProcess() {
    const auto memory = Get("/proc/self/statm", [this](std::string_view text) {
      return ParseProcessMemory(text, page_bytes_);
    });
    if (!memory.has_value()) return;
    reading_.resident = memory->resident;
    if (const auto limits = Get("/proc/self/limits", ParseProcessLimits)) {
      Add("RLIMIT_AS", memory->address_space, limits->address_space);
      Add("RLIMIT_DATA", memory->data, limits->data);
    }
  }

  void ReadGroups() {
    const auto membership = Get("/proc/self/cgroup", ParseCgroupMembership);
    const auto mounts = Get("/proc/self/mountinfo", ParseCgroupMounts);
    if (!membership.has_value() || !mounts.has_value()) return;
    for (const CgroupMount& mount : *mounts) {
      const auto& group = mount.v2 ? membership->v2 : membership->v1;
      if (!group.has_value()) continue;
      const std::vector<std::string> directories = Directories(mount, *group);
      for (const std::string& directory : directories) {
        mount.v2 ? ReadV2(directory) : ReadV1(directory);
      }
      if (mount.v2) ReadOwn(directories.front());
    }
  }

  void ReadV2(const std::string& directory) {
    const auto current = Get(directory + "/memory.current", ParseMemoryLimit);
    if (!current.has_value()) return;
    const int64_t max =
        Get(directory + "/memory.max", ParseMemoryLimit).value_or(kNoLimit);
    const int64_t high =
        Get(directory + "/memory.high", ParseMemoryLimit).value_or(kNoLimit);
    const auto stat = Get(directory + "/memory.stat", ParseKeyedNumbers)
                          .value_or(KeyedNumbers());
    Add(absl::StrCat("cgroup ", directory,
                     high < max ? " memory.high" : " memory.max"),
        *current, std::min(max, high), Reclaimable(stat, "", *current));
  }

  void ReadV1(const std::string& directory) {
    const auto usage =
        Get(directory + "/memory.usage_in_bytes", ParseMemoryLimit);
    if (!usage.has_value()) return;
    const auto limit =
        Get(directory + "/memory.limit_in_bytes", ParseMemoryLimit);
    const auto stat = Get(directory + "/memory.stat", ParseKeyedNumbers)
                          .value_or(KeyedNumbers());
    Add(absl::StrCat("cgroup ", directory, " memory.limit_in_bytes"), *usage,
        limit.value_or(kNoLimit), Reclaimable(stat, "total_", *usage));
  }

  void ReadOwn(const std::string& directory) {
    if (const auto stall =
            Get(directory + "/memory.pressure", ParsePressureStall)) {
      reading_.stall = stall;
    }
    if (const auto events =
            Get(directory + "/memory.events", ParseKeyedNumbers)) {
      reading_.oom_kills = Value(*events, "oom_kill");
      const auto high = static_cast<uint64_t>(Value(*events, "high"));
      const auto max = static_cast<uint64_t>(Value(*events, "max"));
      reading_.throttled = static_cast<int64_t>(
          std::min(high + max, static_cast<uint64_t>(kNoLimit)));
    }
  }

  const std::string& root_;
  const int64_t page_bytes_;
  MemoryReading reading_;
};

SystemMemory::SystemMemory(std::string root, int64_t page_bytes)
    : root_(std::move(root)),
      page_bytes_(page_bytes > 0 ? page_bytes : sysconf(_SC_PAGESIZE)) {}

absl::StatusOr<MemoryReading> SystemMemory::Read() {
  MemoryReading reading = Reader(root_, page_bytes_).Run();
  if (!reading.limits.empty()) return reading;
  return absl::NotFoundError(absl::StrCat(
      "no memory limit can be read under \"", root_,
      "/proc\" (it must be mounted)", reading.unread.empty() ? "" : ": ",
      absl::StrJoin(reading.unread, "; ")));
}

}  // namespace tessera::offload
