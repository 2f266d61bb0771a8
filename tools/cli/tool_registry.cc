#include "tools/cli/tool_registry.h"

#include <cstdio>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/quoted.h"

namespace tessera::tools {

namespace {

using Tools = std::map<std::string, ToolMain, std::less<>>;

Tools& AllTools() {
  static Tools* const tools = new Tools;
  return *tools;
}

// Its name if this program has several tools; otherwise empty.
std::string_view running_tool;

std::string Names() {
  return absl::StrJoin(AllTools(), ", ",
                       [](std::string* text, const auto& tool) {
                         absl::StrAppend(text, tool.first);
                       });
}

int RunNamedTool(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  const auto tool = AllTools().find(name);
  if (tool != AllTools().end()) {
    running_tool = tool->first;
    argv[1] = argv[0];
    return tool->second(argc - 1, argv + 1);
  }
  const std::string usage =
      absl::StrCat("tessera TOOL [FLAGS], with one of the tools ", Names(),
                   "; tessera TOOL --help lists the flags of one\n");
  if (name == "--help") {
    std::fputs(usage.c_str(), stdout);
    return 0;
  }
  const std::string error = name.empty()
                                ? "no tool is given"
                                : absl::StrCat("no tool ", Quoted(name));
  std::fputs(absl::StrCat("tessera: ", error, "; use ", usage).c_str(), stderr);
  return 2;
}

}  // namespace

bool AddTool(std::string_view name, ToolMain main) {
  return AllTools().emplace(name, main).second;
}

std::vector<std::string> OwnArguments(std::vector<std::string> arguments) {
  if (!running_tool.empty()) {
    arguments.insert(arguments.begin(), std::string(running_tool));
  }
  return arguments;
}

int RunTools(int argc, char** argv) {
  const Tools& tools = AllTools();
  return tools.size() == 1 ? tools.begin()->second(argc, argv)
                           : RunNamedTool(argc, argv);
}

}  // namespace tessera::tools
