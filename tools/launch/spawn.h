// Spawn: starts a program that dies with this process.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Process process,
//       Spawn({.path = "/bin/echo", .arguments = {"echo", "hello"},
//              .environment = {"RANK=0"}, .mask = mask}));
//
// The program leads a session and process group of its own (or a process group
// alone), whose number is its pid, and gets SIGKILL when the calling thread
// dies, however it dies (unless the program is setuid: prctl(2),
// PR_SET_PDEATHSIG).
#ifndef TESSERA_TOOLS_LAUNCH_SPAWN_H_
#define TESSERA_TOOLS_LAUNCH_SPAWN_H_

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"

namespace tessera::tools {

struct SpawnRequest {
  std::string path;                      // The file to execute.
  std::vector<std::string> arguments;    // The program's name is the first.
  std::vector<std::string> environment;  // "NAME=value".
  int in = 0;   // What it has as descriptors 0, 1 and 2: each is that very
  int out = 1;  // number, or above 2.
  int err = 2;
  std::vector<int> inherited;  // Further descriptors, above 2, that stay.
  std::vector<int> cpus = {};  // Where it may run; empty: anywhere.
  sigset_t mask = {};          // The signals that it has blocked.
  bool own_session = true;     // False: it stays in this process's session.
  std::optional<rlimit> descriptor_limit = std::nullopt;
};

struct Process {
  pid_t pid = 0;
  UniqueFd pidfd;  // Readable when the process has ended.
};

// Returns when the program runs. FailedPrecondition where the system refuses to
// execute it, ResourceExhausted where there can be no further process; nothing
// is left then. Other descriptors that are not closed on exec stay open in it.
absl::StatusOr<Process> Spawn(const SpawnRequest& request);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_SPAWN_H_
