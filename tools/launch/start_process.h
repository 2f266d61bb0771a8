// StartProcess: starts a program in this process's own session.
//
//   TESSERA_ASSIGN_OR_RETURN(StartedProcess process, StartProcess(request));
//
// Why not a session for each, as a launcher makes: Linux schedules sessions as
// groups (sched(7), autogroup), and between groups sched_yield hands nothing
// over. Ranks that wait for each other by yielding, as all engines do where
// ranks exceed cores, then wait for whole time slices: milliseconds instead of
// microseconds on a busy machine. The ranks of a job belong in one session.
#ifndef TESSERA_TOOLS_LAUNCH_START_PROCESS_H_
#define TESSERA_TOOLS_LAUNCH_START_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"

namespace tessera::tools {

struct StartRequest {
  std::string path;
  std::vector<std::string> arguments;    // The program's name is the first.
  std::vector<std::string> environment;  // "NAME=value".
  std::vector<int> inherited;            // Descriptors above 2 that stay open.
  sigset_t mask = {};                    // The signals that it has blocked.
};

struct StartedProcess {
  pid_t pid = 0;
  UniqueFd pidfd;  // Readable when it has ended.
};

// Its standard input is empty, its standard output this process's standard
// error. It leads a process group of its own and gets SIGKILL when the calling
// thread dies. FailedPrecondition where the system does not execute it,
// ResourceExhausted where there can be no further process.
absl::StatusOr<StartedProcess> StartProcess(const StartRequest& request);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_START_PROCESS_H_
