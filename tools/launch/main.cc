#include <string>
#include <vector>

#include "tools/launch/launch_tool.h"

int main(int argc, char** argv) {
  using namespace tessera::tools;
  const std::vector<std::string> all(argv + 1, argv + argc);
  const LaunchArguments arguments = SplitArguments(all);
  const int flag_count = static_cast<int>(arguments.flags.size());
  int outcome = 0;
  const int code = RunTool(LaunchTool(), 1 + flag_count, argv, [&] {
    return RunLaunchTool(arguments.command, outcome);
  });
  // What RunTool cannot know: 128 + the signal that ended all.
  return outcome > 1 ? outcome : code;
}
