// //tools/launch as a library: its flags and what it does.
#ifndef TESSERA_TOOLS_LAUNCH_LAUNCH_TOOL_H_
#define TESSERA_TOOLS_LAUNCH_LAUNCH_TOOL_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

// Name, summary and flags of the tool.
const Tool& LaunchTool();

// The arguments before the first "--", which are flags, and those behind it,
// which are the program's.
struct LaunchArguments {
  std::vector<std::string> flags;
  std::vector<std::string> command;
};
LaunchArguments SplitArguments(std::span<const std::string> arguments);

// Launches `command` as the flags say, with standard output and error as the
// sinks. Sets `exit_code` where the ranks ran; what is returned then says how
// they ended. InvalidArgument for flags or a program that make no sense.
absl::Status RunLaunchTool(const std::vector<std::string>& command,
                           int& exit_code);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_LAUNCH_TOOL_H_
