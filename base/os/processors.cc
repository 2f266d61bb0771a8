#include "base/os/processors.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  std::string text(4096, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// The quota of cgroup v1's two files; 0 if there is no quota.
int64_t QuotaV1() {
  int64_t quota = 0, period = 0;
  const std::string directory = "/sys/fs/cgroup/cpu/cpu.cfs_";
  if (!absl::SimpleAtoi(ReadSmallFile(directory + "quota_us"), &quota) ||
      !absl::SimpleAtoi(ReadSmallFile(directory + "period_us"), &period)) {
    return 0;
  }
  return quota > 0 && period > 0 ? (quota + period - 1) / period : 0;
}

// The smallest quota from this process's cgroup v2 up to the root; 0 if there
// is none.
int64_t QuotaV2() {
  std::string path;
  const std::string groups = ReadSmallFile("/proc/self/cgroup");
  for (std::string_view line : absl::StrSplit(groups, '\n')) {
    if (line.substr(0, 3) == "0::") path = std::string(line.substr(3));
  }
  int64_t least = 0;
  while (true) {
    const int64_t quota = ParseCpuMax(
        ReadSmallFile(absl::StrCat("/sys/fs/cgroup", path, "/cpu.max")));
    if (quota > 0) least = least == 0 ? quota : std::min(least, quota);
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.size() <= 1) return least;
    path.resize(slash);
  }
}

}  // namespace

int64_t ParseCpuMax(std::string_view text) {
  const std::vector<std::string_view> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
  int64_t quota = 0, period = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &quota) ||
      !absl::SimpleAtoi(parts[1], &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return (quota + period - 1) / period;
}

std::vector<int> AllowedProcessors() {
  std::vector<int> processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

std::optional<int64_t> SocketOf(const std::vector<int>& processors,
                                const std::string& directory) {
  std::optional<int64_t> socket;
  for (int processor : processors) {
    int64_t id = 0;
    const std::string text = ReadSmallFile(absl::StrCat(
        directory, "/cpu", processor, "/topology/physical_package_id"));
    // -1 is the kernel's "unknown".
    if (!absl::SimpleAtoi(text, &id) || id < 0) return std::nullopt;
    if (socket.has_value() && *socket != id) return std::nullopt;
    socket = id;
  }
  return socket;
}

std::vector<int> ShareOfProcessors(const std::vector<int>& processors,
                                   int64_t index, int64_t count) {
  const auto size = static_cast<int64_t>(processors.size());
  if (size == 0) return {};
  if (size < count) return {processors[static_cast<size_t>(index % size)]};
  return {processors.begin() + index * size / count,
          processors.begin() + (index + 1) * size / count};
}

absl::Status BindThisThread(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int processor : processors) CPU_SET(processor, &set);
  if (sched_setaffinity(0, sizeof(set), &set) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(
      errno, absl::StrCat("binding to ", processors.size(), " processors"));
}

int64_t AvailableProcessors() {
  auto processors = static_cast<int64_t>(AllowedProcessors().size());
  if (processors == 0) processors = 1;
  for (int64_t quota : {QuotaV1(), QuotaV2()}) {
    if (quota > 0) processors = std::min(processors, quota);
  }
  return processors;
}

}  // namespace tessera
