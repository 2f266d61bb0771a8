#include "collectives/bootstrap/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_macros.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // The same on every architecture.
#endif

namespace tessera::collectives {

namespace {

constexpr size_t kMaxText = 100;

// The number of a namespace; equal for all of its processes.
absl::StatusOr<uint64_t> NamespaceNumber(const char* path) {
  struct stat info = {};
  if (stat(path, &info) == 0) return static_cast<uint64_t>(info.st_ino);
  return absl::UnavailableError(
      absl::StrCat("cannot determine this process's namespaces: ", path,
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
      "\"", absl::CHexEscape(text.substr(0, kMaxText)), "\" is not a host id"));
}

std::string HostName() {
  char name[65] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "?";
  return absl::CHexEscape(name).substr(0, 64);
}

namespace {

constexpr size_t kMaxHostNameBytes = 64;

// Field 22 of the stat file of the main thread (QEMU's user mode shows a
// process another /proc/PID/stat of its own than to its peers). The command's
// name, field 2, may hold anything, so fields are counted after the last ")".
absl::StatusOr<uint64_t> StartTicks(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/task/", pid, "/stat");
  TESSERA_ASSIGN_OR_RETURN(const std::string stat, ReadFile(path, 4096));
  const size_t name_end = stat.rfind(')');
  if (name_end != std::string::npos && name_end + 2 < stat.size()) {
    const std::vector<std::string_view> fields =
        absl::StrSplit(std::string_view(stat).substr(name_end + 2), ' ');
    uint64_t ticks = 0;
    if (fields.size() > 19 && absl::SimpleAtoi(fields[19], &ticks)) {
      return ticks;
    }
  }
  return absl::UnavailableError(
      absl::StrCat(path, " does not contain the start time of the process"));
}

absl::Status EndedError(pid_t pid) {
  return absl::NotFoundError(absl::StrCat("process ", pid, " has ended"));
}

}  // namespace

absl::StatusOr<PeerProcess> PeerProcess::Self() {
  PeerProcess self;
  self.pid = getpid();
  TESSERA_ASSIGN_OR_RETURN(self.start_ticks, StartTicks(self.pid),
                           absl::UnavailableError(_.message()));
  TESSERA_ASSIGN_OR_RETURN(self.host, HostId::Self());
  self.host_name = HostName();
  return self;
}

std::string PeerProcess::ToString() const {
  return absl::StrCat(pid, " ", start_ticks, " ", host.ToString(), " ",
                      host_name);
}

absl::StatusOr<PeerProcess> PeerProcess::Parse(std::string_view text) {
  const std::vector<std::string_view> parts =
      absl::StrSplit(text.substr(0, 400), absl::MaxSplits(' ', 3));
  PeerProcess process;
  if (parts.size() == 4 && absl::SimpleAtoi(parts[0], &process.pid) &&
      process.pid > 0 && absl::SimpleAtoi(parts[1], &process.start_ticks) &&
      parts[3].size() <= kMaxHostNameBytes) {
    TESSERA_ASSIGN_OR_RETURN(process.host, HostId::Parse(parts[2]));
    process.host_name = parts[3];
    if (process.ToString() == text) return process;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(text.substr(0, 100)),
                   "\" does not describe a process"));
}

absl::StatusOr<UniqueFd> OpenPidFd(pid_t pid) {
  // The descriptor is close-on-exec by default.
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (fd.valid()) return fd;
  if (errno == ESRCH) return EndedError(pid);
  const std::string text =
      absl::StrCat("cannot watch process ", pid, ": ", std::strerror(errno));
  if (errno == ENOSYS || errno == EPERM) return absl::UnimplementedError(text);
  return absl::Status(absl::ErrnoToStatusCode(errno), text);
}

absl::StatusOr<UniqueFd> OpenPidFd(const PeerProcess& process) {
  TESSERA_ASSIGN_OR_RETURN(const HostId here, HostId::Self());
  if (process.host != here) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", process.pid, " is on host ", process.host_name,
                     " (", process.host.ToString(), "), not on this one (",
                     here.ToString(), "), and cannot be watched from here"));
  }
  TESSERA_ASSIGN_OR_RETURN(UniqueFd fd, OpenPidFd(process.pid));
  // The descriptor keeps the pid from being reused; check that it was not
  // reused before.
  const absl::StatusOr<uint64_t> ticks = StartTicks(process.pid);
  if (!ticks.ok() || *ticks != process.start_ticks) {
    return EndedError(process.pid);
  }
  return fd;
}

absl::StatusOr<UniqueFd> OpenDescriptorOf(const PeerProcess& process,
                                          int descriptor) {
  const std::string path =
      absl::StrCat("/proc/", process.pid, "/fd/", descriptor);
  UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const int error = errno;
  // The process that had the descriptor is the one that is meant.
  TESSERA_RETURN_IF_ERROR(OpenPidFd(process).status());
  if (file.valid()) return file;
  return absl::ErrnoToStatus(
      error,
      absl::StrCat("cannot open ", path,
                   error == EACCES
                       ? "; run all ranks of a host as one user, and programs "
                         "without file capabilities and set-user-ID"
                       : ""));
}

bool IsDead(const UniqueFd& pidfd) {
  pollfd one = {pidfd.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&one, 1, 0);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

absl::StatusOr<std::vector<PeerProcess>> ExchangeProcesses(
    Store& store, std::span<const Rank> members, std::string_view name,
    absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(const PeerProcess self, PeerProcess::Self());
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      AllGather(store, members, absl::StrCat("processes/", name),
                self.ToString(), deadline));
  std::vector<PeerProcess> processes;
  for (const std::string& text : texts) {
    TESSERA_ASSIGN_OR_RETURN(processes.emplace_back(),
                             PeerProcess::Parse(text));
  }
  return processes;
}

}  // namespace tessera::collectives
