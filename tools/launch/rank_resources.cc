#include "tools/launch/rank_resources.h"

#include <cerrno>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/os/processors.h"

namespace tessera::tools {

namespace {

// The hardware threads of the CPU's core, in the kernel's format. If the kernel
// has no such file, each CPU is a core.
std::string ThreadSiblings(int cpu) {
  const absl::StatusOr<std::string> siblings =
      ReadFile(absl::StrCat("/sys/devices/system/cpu/cpu", cpu,
                            "/topology/thread_siblings_list"),
               4096);
  if (!siblings.ok()) return absl::StrCat(cpu);
  return std::string(absl::StripAsciiWhitespace(*siblings));
}

}  // namespace

std::vector<std::vector<int>> GroupByCore(
    const std::vector<int>& cpus,
    absl::FunctionRef<std::string(int cpu)> core_of) {
  std::vector<std::vector<int>> cores;
  std::map<std::string, size_t> number_of;
  for (const int cpu : cpus) {
    const auto [core, is_new] =
        number_of.try_emplace(core_of(cpu), cores.size());
    if (is_new) cores.emplace_back();
    cores[core->second].push_back(cpu);
  }
  return cores;
}

absl::StatusOr<std::vector<std::vector<int>>> CoresForRanks(int64_t count) {
  std::vector<std::vector<int>> cores =
      GroupByCore(AllowedProcessors(), ThreadSiblings);
  if (static_cast<int64_t>(cores.size()) < count) {
    return absl::OutOfRangeError(absl::StrCat(
        count, " ranks need a core each, but this process may use ",
        cores.size(), "; start fewer ranks or do not bind them"));
  }
  cores.resize(static_cast<size_t>(count));
  return cores;
}

absl::StatusOr<std::unique_ptr<DescriptorLimit>> DescriptorLimit::Raise(
    rlim_t count) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read the descriptor limit");
  }
  if (limit.rlim_max < count) {
    return absl::ResourceExhaustedError(absl::StrCat(
        count, " descriptors are needed, but only ", limit.rlim_max,
        " are allowed; raise the hard limit (ulimit -Hn)"));
  }
  std::unique_ptr<DescriptorLimit> result(new DescriptorLimit(limit));
  if (limit.rlim_cur < count) {
    limit.rlim_cur = count;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
      return absl::ErrnoToStatus(errno, "cannot raise the descriptor limit");
    }
  }
  return result;
}

DescriptorLimit::~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &original_); }

}  // namespace tessera::tools
