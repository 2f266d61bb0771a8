// TESSERA_TOOL(name): the main function of a tool, which is a program of its
// own and a command of //tools:tessera, the program with all tools.
//
//   TESSERA_TOOL(mesh) { return RunTool({.name = "mesh", ...}, argc, argv); }
#ifndef TESSERA_TOOLS_CLI_TOOL_REGISTRY_H_
#define TESSERA_TOOLS_CLI_TOOL_REGISTRY_H_

#include <string>
#include <string_view>
#include <vector>

namespace tessera::tools {

using ToolMain = int (*)(int argc, char** argv);

// Makes `main` one of the tools of this program. Before main() only.
bool AddTool(std::string_view name, ToolMain main);

// Runs the only tool of this program, or the one that the first argument names.
int RunTools(int argc, char** argv);

// The arguments with which this program runs the running tool again: preceded
// by its name if there are several tools.
std::vector<std::string> OwnArguments(std::vector<std::string> arguments);

}  // namespace tessera::tools

#define TESSERA_TOOL(name)                               \
  static int TesseraToolMain(int argc, char** argv);     \
  [[maybe_unused]] static const bool tessera_is_tool =   \
      ::tessera::tools::AddTool(#name, TesseraToolMain); \
  static int TesseraToolMain(int argc, char** argv)

#endif  // TESSERA_TOOLS_CLI_TOOL_REGISTRY_H_
