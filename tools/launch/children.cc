#include "tools/launch/children.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/os/unique_fd.h"

namespace tessera::tools {
namespace {

std::optional<pid_t> ParentOf(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];  // The parent stands within the first 50 bytes or so.
  const ssize_t size = file.valid() ? read(file.get(), text, sizeof(text)) : -1;
  if (size < 0) return std::nullopt;  // It has just ended.
  return ParentInStat({text, static_cast<size_t>(size)});
}

}  // namespace

std::optional<pid_t> ParentInStat(std::string_view stat) {
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  const std::vector<std::string_view> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ');
  pid_t parent = 0;
  if (fields.size() < 3 || !absl::SimpleAtoi(fields[2], &parent)) {
    return std::nullopt;
  }
  return parent;
}

absl::StatusOr<std::vector<pid_t>> ListChildren() {
  std::vector<pid_t> children;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry->path().filename().native(), &pid) &&
        ParentOf(pid) == getpid()) {
      children.push_back(pid);
    }
  }
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot list the processes in /proc: ", error.message()));
  }
  std::sort(children.begin(), children.end());
  return children;
}

Subreaper::Subreaper() {
  prctl(PR_GET_CHILD_SUBREAPER, &previous_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, previous_); }

}  // namespace tessera::tools
