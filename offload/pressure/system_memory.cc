#include "offload/pressure/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace tessera::offload {

namespace {

constexpr size_t kMaxPathBytes = 4096;
constexpr int64_t kUnlimitedFrom = int64_t{1} << 62;

absl::Status Bad(std::string_view file, std::string_view line) {
  return absl::InvalidArgumentError(absl::StrCat(
      file, ": cannot read \"", absl::CHexEscape(line.substr(0, 80)),
      line.size() > 80 ? "...\"" : "\"", "; the kernel writes another format"));
}

using Lines = std::vector<std::string_view>;

absl::StatusOr<Lines> SplitLines(std::string_view file, std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxMemoryFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", text.size(), " bytes; at most ",
                     kMaxMemoryFileBytes, " are read"));
  }
  Lines lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  if (lines.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": empty; the kernel writes at least one line"));
  }
  return lines;
}

Lines Words(std::string_view line) {
  return absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
}

bool ParseCount(std::string_view text, int64_t* value) {
  return !text.empty() && absl::c_all_of(text, absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, value);
}

bool ParseScaled(std::string_view text, int64_t scale, int64_t* value) {
  if (!ParseCount(text, value) || *value > kNoLimit / scale) return false;
  *value *= scale;
  return true;
}

bool ParsePercent(std::string_view text, double* value) {
  return absl::SimpleAtod(text, value) && *value >= 0 && *value <= 100;
}

// mountinfo escapes spaces and similar characters, as \040.
std::string Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = text.substr(i + 1, 3);
    if (text[i] == '\\' && digits.size() == 3 &&
        absl::c_all_of(digits, [](char c) { return c >= '0' && c <= '7'; })) {
      out.push_back(static_cast<char>((digits[0] - '0') * 64 +
                                      (digits[1] - '0') * 8 + digits[2] - '0'));
      i += 3;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

bool IsPath(std::string_view text) {
  return absl::StartsWith(text, "/") && text.size() <= kMaxPathBytes;
}

}  // namespace

absl::StatusOr<MemoryInfo> ParseMemoryInfo(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const Lines lines, SplitLines("meminfo", text));
  std::map<std::string_view, int64_t> bytes;
  for (const std::string_view line : lines) {
    const Lines words = Words(line);
    if (words.size() != 3 || words[2] != "kB") continue;
    if (!ParseScaled(words[1], 1024, &bytes[words[0]])) {
      return Bad("meminfo", line);
    }
  }
  MemoryInfo info{.total = bytes["MemTotal:"]};
  const auto available = bytes.find("MemAvailable:");
  if (available != bytes.end()) {
    info.available = available->second;
  } else {
    // Each is at most 2^53 KiB, so that the sum is one of doubles.
    info.available =
        static_cast<int64_t>(std::min(static_cast<double>(bytes["MemFree:"]) +
                                          static_cast<double>(bytes["Cached:"]),
                                      static_cast<double>(info.total)));
  }
  if (info.total == 0) return Bad("meminfo", lines[0]);
  info.available = std::min(info.available, info.total);
  return info;
}

absl::StatusOr<PressureStall> ParsePressureStall(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const Lines lines, SplitLines("pressure", text));
  PressureStall stall;
  bool some = false;
  for (const std::string_view line : lines) {
    const Lines words = Words(line);
    const bool is_some = words[0] == "some";
    if (!is_some && words[0] != "full") continue;
    double avg10 = -1;
    for (const std::string_view word : words) {
      std::string_view number = word;
      if (absl::ConsumePrefix(&number, "avg10=") &&
          !ParsePercent(number, &avg10)) {
        return Bad("pressure", line);
      }
    }
    if (avg10 < 0) return Bad("pressure", line);
    (is_some ? stall.some_avg10 : stall.full_avg10) = avg10;
    some |= is_some;
  }
  if (!some) return Bad("pressure", lines[0]);
  return stall;
}

absl::StatusOr<int64_t> ParseMemoryLimit(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const Lines lines, SplitLines("limit", text));
  const std::string_view word = absl::StripAsciiWhitespace(lines[0]);
  int64_t limit = 0;
  if (lines.size() == 1 && word == "max") return kNoLimit;
  if (lines.size() != 1 || !ParseCount(word, &limit)) {
    return Bad("limit", lines[0]);
  }
  return limit >= kUnlimitedFrom ? kNoLimit : limit;
}

absl::StatusOr<KeyedNumbers> ParseKeyedNumbers(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const Lines lines, SplitLines("statistics", text));
  KeyedNumbers numbers;
  for (const std::string_view line : lines) {
    const Lines words = Words(line);
    int64_t value = 0;
    if (words.size() != 2 || !ParseCount(words[1], &value)) {
      return Bad("statistics", line);
    }
    numbers[std::string(words[0])] = value;
  }
  return numbers;
}

absl::StatusOr<ProcessMemory> ParseProcessMemory(std::string_view text,
                                                 int64_t page_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const Lines lines, SplitLines("statm", text));
  const Lines words = Words(lines[0]);
  ProcessMemory memory;
  if (page_bytes <= 0 || words.size() < 6 ||
      !ParseScaled(words[0], page_bytes, &memory.address_space) ||
      !ParseScaled(words[1], page_bytes, &memory.resident) ||
      !ParseScaled(words[5], page_bytes, &memory.data)) {
    return Bad("statm", lines[0]);
  }
  return memory;
}

absl::StatusOr<ProcessLimits> ParseProcessLimits(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const Lines lines, SplitLines("limits", text));
  ProcessLimits limits;
  int found = 0;
  for (std::string_view line : lines) {
    const std::string_view whole = line;
    int64_t* const limit =
        absl::ConsumePrefix(&line, "Max address space ") ? &limits.address_space
        : absl::ConsumePrefix(&line, "Max data size ")   ? &limits.data
                                                         : nullptr;
    if (limit == nullptr) continue;
    ++found;
    const Lines words = Words(line);
    if (words.empty() ||
        (words[0] != "unlimited" && !ParseCount(words[0], limit))) {
      return Bad("limits", whole);
    }
  }
  if (found == 0) return Bad("limits", lines[0]);
  return limits;
}

absl::StatusOr<CgroupMembership> ParseCgroupMembership(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const Lines lines, SplitLines("cgroup", text));
  CgroupMembership membership;
  for (const std::string_view line : lines) {
    // The path may hold colons.
    const Lines fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || !IsPath(fields[2])) return Bad("cgroup", line);
    if (fields[0] == "0" && fields[1].empty()) {
      membership.v2 = std::string(fields[2]);
    } else if (absl::c_linear_search(Lines(absl::StrSplit(fields[1], ',')),
                                     "memory")) {
      membership.v1 = std::string(fields[2]);
    }
  }
  return membership;
}

absl::StatusOr<std::vector<CgroupMount>> ParseCgroupMounts(
    std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const Lines lines, SplitLines("mountinfo", text));
  std::vector<CgroupMount> mounts;
  for (const std::string_view line : lines) {
    // id parent device root point options [tags] - type source options
    const Lines words = Words(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) {
      return Bad("mountinfo", line);
    }
    const bool v2 = dash[1] == "cgroup2";
    const bool v1 =
        dash[1] == "cgroup" &&
        absl::c_linear_search(Lines(absl::StrSplit(dash[3], ',')), "memory");
    if (!v1 && !v2) continue;
    CgroupMount mount{v2, Unescape(words[3]), Unescape(words[4])};
    if (!IsPath(mount.root) || !IsPath(mount.point)) {
      return Bad("mountinfo", line);
    }
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

namespace {

constexpr int kMostLevels = 64;  // of control groups, upwards

int64_t Value(const KeyedNumbers& numbers, std::string_view key) {
  const auto found = numbers.find(key);
  return found == numbers.end() ? 0 : found->second;
}

// Uses doubles, so that hostile numbers cannot overflow.
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
  // A group outside of the mount (in another namespace) is treated as the mount
  // itself.
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
  // Returns nothing if the file does not exist.
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
