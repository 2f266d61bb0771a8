#include "collectives/bootstrap/host_id.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

constexpr size_t kMaxText = 100;

// A namespace's number, the same for all of its processes.
absl::StatusOr<uint64_t> NamespaceNumber(const char* path) {
  struct stat info = {};
  if (stat(path, &info) == 0) return static_cast<uint64_t>(info.st_ino);
  return absl::UnavailableError(
      absl::StrCat("cannot tell this process's namespaces: ", path,
                   " is missing; mount /proc"));
}

bool IsBootId(std::string_view text) {
  if (text.size() != 36) return false;
  for (const char c : text) {
    if (!absl::ascii_isxdigit(c) && c != '-') return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<HostId> HostId::Self() {
  constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
  TESSERA_ASSIGN_OR_RETURN(const std::string boot, ReadFile(kBootId, 1024),
                           absl::UnavailableError(_.message()));
  TESSERA_ASSIGN_OR_RETURN(const uint64_t pids,
                           NamespaceNumber("/proc/self/ns/pid"));
  TESSERA_ASSIGN_OR_RETURN(const uint64_t network,
                           NamespaceNumber("/proc/self/ns/net"));
  return Parse(
      absl::StrCat(absl::StripAsciiWhitespace(boot), ":", pids, ":", network));
}

absl::StatusOr<HostId> HostId::Parse(std::string_view text) {
  const std::vector<std::string_view> parts =
      absl::StrSplit(text.substr(0, kMaxText + 1), ':');
  uint64_t pids = 0, network = 0;
  if (parts.size() == 3 && IsBootId(parts[0]) &&
      absl::SimpleAtoi(parts[1], &pids) &&
      absl::SimpleAtoi(parts[2], &network) &&
      absl::StrCat(parts[0], ":", pids, ":", network) == text) {
    return HostId(std::string(text));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", absl::CHexEscape(text.substr(0, kMaxText)), "\" is no host id"));
}

std::string HostName() {
  char name[65] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "?";
  return absl::CHexEscape(name).substr(0, 64);
}

}  // namespace tessera::collectives
