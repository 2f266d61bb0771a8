#include "tools/launch/core_binding.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/os/processors.h"

namespace tessera::tools {
namespace {

// The hardware threads of the CPU's core, as Linux writes them; where it does
// not, each CPU is a core.
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

}  // namespace tessera::tools
