// The launch tool: starts ranks of a program on this node. Parses the flags
// into a LaunchPlan and calls Launch.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/cli/tool_registry.h"
#include "tools/cli/typed_flags.h"
#include "tools/launch/environment.h"
#include "tools/launch/launcher.h"

namespace tessera::tools {
namespace {

absl::StatusOr<absl::Duration> ParseTime(std::string_view text) {
  absl::Duration duration;
  if (absl::ParseDuration(text, &duration)) return duration;
  return absl::InvalidArgumentError(
      "expected a number with its unit, such as 500ms, 90s, 1h30m or inf");
}

absl::StatusOr<bool> ParseColour(const LaunchPlan& plan,
                                 std::string_view text) {
  if (text == "always" || text == "never") return text == "always";
  if (text != "auto") {
    return absl::InvalidArgumentError("expected auto, always or never");
  }
  return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO) &&
         FindVariable(plan.environment, "NO_COLOR").value_or("").empty();
}

std::vector<std::string> CallersEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.push_back(*variable);
  }
  return variables;
}

// The flags of `plan`, whose environment is set.
std::vector<Flag> FlagsOf(LaunchPlan& plan) {
  return {
      FieldFlag("np", "ranks to start on this node, 1 to 4096", plan.np),
      FieldFlag("nnodes",
                "nodes of the job; launch runs once on each, with the same "
                "--np",
                plan.nnodes),
      FieldFlag("node_rank", "this node's number, from 0", plan.node_rank),
      FieldFlag("master_addr",
                "MASTER_ADDR, the address of the node with --node_rank=0; "
                "default on one node: 127.0.0.1",
                plan.master_addr),
      FieldFlag("master_port",
                "MASTER_PORT; 0 is a free port on one node, 29500 on several",
                plan.master_port),
      ParsedFlag(
          "timeout",
          "ends the ranks and fails if they run longer, such as 90s or 2h",
          "inf", plan.timeout, ParseTime),
      ParsedFlag("grace",
                 "time between the signal that ends the ranks and SIGKILL",
                 "5s", plan.grace, ParseTime),
      {.name = "output",
       .help = "prefix: whole lines, each with its rank before it; raw: whole "
               "lines, unchanged; a\ndirectory (one that exists, or a path "
               "with a slash): rank3.log there is all that\nrank 3 prints",
       .default_value = "prefix",
       .set =
           [&plan](std::string_view text) {
             return SetOutput(std::string(text), plan);
           }},
      {.name = "bind",
       .help = "core binds each rank to its own core, with all hardware "
               "threads; none",
       .default_value = "none",
       .set =
           [&plan](std::string_view text) {
             return SetBind(std::string(text), plan);
           }},
      ParsedFlag(
          "colour",
          "colours of the prefixes: always, never, or auto: on a terminal, "
          "unless NO_COLOR is set.\n\n"
          "Each rank gets RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "
          "GROUP_RANK MASTER_ADDR\nMASTER_PORT as with torchrun, "
          "OMP_NUM_THREADS=1 unless it is set, and\nTESSERA_JOB_SECRET unless "
          "that or TESSERA_JOB_SECRET_FILE is set. With several nodes\none of "
          "them must be set. On one node TESSERA_INHERITED_SOCKETS numbers "
          "sockets to\nrank 0 (of rank 0: to ranks 1, 2, ...).\n\n"
          "Exit codes: 0 all ranks exited with 0; 1 a rank failed, could not "
          "be started or ran\nout of time; 2 bad usage, including an unknown "
          "program; 128+n ended by signal n.",
          "auto", plan.colour, std::bind_front(ParseColour, std::cref(plan)))};
}

// The arguments before the first "--" are flags; those after it belong to the
// program.
struct LaunchArguments {
  std::vector<std::string> flags;
  std::vector<std::string> command;
};

LaunchArguments SplitArguments(std::span<const std::string> arguments) {
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  LaunchArguments split;
  split.flags.assign(arguments.begin(), separator);
  if (separator != arguments.end()) {
    split.command.assign(separator + 1, arguments.end());
  }
  return split;
}

// Flags from the variables with which torchrun is configured, as Kubeflow's
// PyTorchJob does; flags of the command line, `given`, override them.
absl::StatusOr<std::vector<std::string>> TorchrunFlags(
    const std::vector<std::string>& given) {
  const auto value = [](const char* variable) -> std::string_view {
    const char* const text = std::getenv(variable);
    return text == nullptr ? "" : text;
  };
  static constexpr std::pair<const char*, const char*> kFlags[] = {
      {"np", "PET_NPROC_PER_NODE"},
      {"nnodes", "PET_NNODES"},
      {"node_rank", "PET_NODE_RANK"},
      {"master_addr", "PET_MASTER_ADDR"},
      {"master_port", "PET_MASTER_PORT"}};
  std::vector<std::string> flags;
  for (const auto& [flag, variable] : kFlags) {
    const std::string_view text = value(variable), name = flag;
    // torchrun's "auto" is the default here.
    if (text.empty() || text == "auto") continue;
    if (name != "np" && value("PET_NNODES") == "1") continue;
    const bool is_given = std::ranges::any_of(given, [&](std::string_view one) {
      return absl::ConsumePrefix(&one, "--") &&
             absl::ConsumePrefix(&one, name) && (one.empty() || one[0] == '=');
    });
    if (is_given) continue;
    int64_t number = 0;
    if (name != "master_addr" && !absl::SimpleAtoi(text, &number)) {
      return absl::InvalidArgumentError(absl::StrCat(
          variable, "=", text.substr(0, 60),
          ": expected a whole number; unset it, or override it by --", name));
    }
    flags.push_back(absl::StrCat("--", name, "=", text));
  }
  return flags;
}

// Sets `exit_code` if the ranks ran; the status then describes how they ended.
absl::Status RunLaunchTool(const LaunchPlan& plan, int& exit_code) {
  TESSERA_ASSIGN_OR_RETURN(const LaunchOutcome outcome, Launch(plan, {}));
  exit_code = outcome.ExitCode();
  return outcome.ToStatus();
}

}  // namespace
}  // namespace tessera::tools

TESSERA_TOOL(launch) {
  using namespace tessera::tools;
  const std::vector<std::string> all(argv + 1, argv + argc);
  LaunchArguments arguments = SplitArguments(all);
  const auto defaults = TorchrunFlags(arguments.flags);
  if (defaults.ok()) {
    arguments.flags.insert(arguments.flags.begin(), defaults->begin(),
                           defaults->end());
  }
  PrepareProcess().IgnoreError();  // RunTool reports the error.
  LaunchPlan plan = {.command = arguments.command,
                     .environment = CallersEnvironment()};
  plan.colour = *ParseColour(plan, "auto");
  const Tool tool = {
      .name = "launch",
      .summary =
          "Starts ranks of a program on this node, and ends them together.",
      .example = "--np=4 -- ./program --its=arguments",
      .flags = FlagsOf(plan)};
  int outcome = 0;
  const int code = RunTool(tool, arguments.flags, [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(defaults.status());
    return RunLaunchTool(plan, outcome);
  });
  // RunTool does not know 128 + the signal that ended the launcher.
  return outcome > 1 ? outcome : code;
}
