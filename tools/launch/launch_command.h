// Finds the programs that start a job's workers: this binary, mpirun, or a
// program in PATH.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::string self, OwnPath());
//   TESSERA_ASSIGN_OR_RETURN(const LaunchCommand command,
//                            MpirunCommand(4, self, {"--worker"}));
#ifndef TESSERA_TOOLS_LAUNCH_LAUNCH_COMMAND_H_
#define TESSERA_TOOLS_LAUNCH_LAUNCH_COMMAND_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::tools {

struct LaunchCommand {
  std::string path;
  std::vector<std::string> arguments;    // Begins with the program's name.
  std::vector<std::string> environment;  // "NAME=value".
};

// The path of this binary. Unavailable if /proc cannot be read.
absl::StatusOr<std::string> OwnPath();

// The environment of this process without the variables that launchers set for
// ranks.
std::vector<std::string> CleanEnvironment();

// The command that runs `world` ranks of `program` with the mpirun of the MPI
// library that this binary was built with. Allows more ranks than cores, and
// the user root. NotFound if mpirun is not in PATH or the binary was built
// without MPI.
absl::StatusOr<LaunchCommand> MpirunCommand(
    int64_t world, const std::string& program,
    const std::vector<std::string>& arguments);

// The file that a shell would execute: `program` itself if it contains a slash,
// otherwise the first executable file of that name in the directories of
// `search_path` (the value of PATH; an empty entry is the working directory).
// InvalidArgument with the searched path and a hint if the file is missing or
// not executable.
absl::StatusOr<std::string> FindProgram(std::string_view program,
                                        std::string_view search_path);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_LAUNCH_COMMAND_H_
