// What is executed to start a job's workers.
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
  std::vector<std::string> arguments;    // The program's name is the first.
  std::vector<std::string> environment;  // "NAME=value".
};

// The path of this binary. Unavailable where /proc does not say.
absl::StatusOr<std::string> OwnPath();

// This process's environment without what launchers set for ranks.
std::vector<std::string> CleanEnvironment();

// mpirun of the MPI that this binary is built with, for `world` ranks of
// `program`: more ranks than cores and the user root are allowed. NotFound
// where PATH has none, or it was built without MPI.
absl::StatusOr<LaunchCommand> MpirunCommand(
    int64_t world, const std::string& program,
    const std::vector<std::string>& arguments);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_LAUNCH_COMMAND_H_
