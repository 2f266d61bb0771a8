#include "tools/cli/cli.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"
#include "tools/cli/tool_registry.h"

namespace tessera::tools {
namespace {

constexpr size_t kShownLength = 120;

std::string Shown(std::string_view text) {
  return absl::StrCat(text.substr(0, kShownLength),
                      text.size() > kShownLength ? "..." : "");
}

// Null if the tool has no such flag.
const Flag* FindFlag(const Tool& tool, std::string_view name) {
  const auto flag = absl::c_find_if(
      tool.flags, [&](const Flag& one) { return one.name == name; });
  return flag == tool.flags.end() ? nullptr : &*flag;
}

absl::Status UnknownFlag(const Tool& tool, std::string_view name) {
  std::vector<std::string_view> names;
  for (const Flag& flag : tool.flags) names.push_back(flag.name);
  const std::string_view nearest = NearestName(name, names);
  const bool is_near = name.size() <= kShownLength && !nearest.empty() &&
                       EditDistance(nearest, name) <=
                           std::max<int>(2, static_cast<int>(name.size() / 3));
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", Shown(name),
                   is_near ? absl::StrCat("; did you mean --", nearest) : "",
                   "; --help lists the flags"));
}

// One argument of the form --name[=value], found among the tool's flags.
struct Argument {
  const Flag* flag = nullptr;
  std::optional<std::string_view> value;
};

absl::StatusOr<Argument> ParseArgument(const Tool& tool,
                                       std::string_view text) {
  if (!absl::ConsumePrefix(&text, "--")) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", Shown(text),
                     "\"; every argument is a flag such as --name=value"));
  }
  const size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  Argument argument;
  argument.flag = FindFlag(tool, name);
  if (equals != std::string_view::npos) {
    argument.value = text.substr(equals + 1);
  } else if (argument.flag == nullptr && absl::StartsWith(name, "no")) {
    argument.flag = FindFlag(tool, name.substr(2));
    argument.value = "false";
  }
  if (argument.flag == nullptr) return UnknownFlag(tool, name);
  return argument;
}

// True if this can only be the value of the boolean flag before it, as in
// nccl-tests: "--check 0".
bool IsSwitchValue(std::string_view argument) {
  return argument == "true" || argument == "false" ||
         (!argument.empty() && absl::c_all_of(argument, absl::ascii_isdigit));
}

constexpr std::string_view kHelpAll = "--help=all";

bool IsHelp(std::string_view argument) {
  return argument == "--help" || argument == "-h" || argument == "-help" ||
         argument == kHelpAll;
}

// Sets the flags and returns the operands. If the tool takes none, an argument
// that is not a flag is an error.
absl::StatusOr<std::vector<std::string>> ParseArguments(
    const Tool& tool, bool has_operands,
    const std::vector<std::string>& arguments) {
  std::vector<std::string> operands;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (has_operands && !absl::StartsWith(arguments[i], "--")) {
      operands.push_back(arguments[i]);
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(Argument argument,
                             ParseArgument(tool, arguments[i]));
    const Flag& flag = *argument.flag;
    if (!argument.value.has_value()) {
      if (flag.is_boolean && (has_operands || i + 1 == arguments.size() ||
                              !IsSwitchValue(arguments[i + 1]))) {
        argument.value = "true";
      } else if (i + 1 < arguments.size()) {
        argument.value = arguments[++i];
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag.name, " has no value; expected --",
                         flag.name, "=VALUE: ", flag.help));
      }
    }
    TESSERA_RETURN_IF_ERROR(flag.set(*argument.value));
  }
  return operands;
}

// The long name of "-b...", or nothing.
std::string_view LongName(const Tool& tool, std::string_view argument) {
  if (argument.size() < 2 || argument[0] != '-') return "";
  for (const auto& [letter, name] : tool.short_flags) {
    if (argument[1] == letter) return name;
  }
  return "";
}

// Replaces short flags by long ones.
std::vector<std::string> LongArguments(
    const Tool& tool, const std::vector<std::string>& arguments) {
  std::vector<std::string> result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = LongName(tool, arguments[i]);
    if (name.empty()) {
      result.push_back(arguments[i]);
      continue;
    }
    std::string_view value = std::string_view(arguments[i]).substr(2);
    const bool is_joined = !value.empty();
    absl::ConsumePrefix(&value, "=");
    const bool is_next = !is_joined && i + 1 < arguments.size();
    if (is_next) value = arguments[++i];
    result.push_back(absl::StrCat("--", name));
    if (is_joined || is_next) absl::StrAppend(&result.back(), "=", value);
  }
  return result;
}

// Indents a text and wraps its lines.
std::string Wrapped(std::string_view text) {
  constexpr size_t kWidth = 80;
  constexpr std::string_view kIndent = "      ";
  std::string wrapped;
  for (const std::string_view line : absl::StrSplit(text, '\n')) {
    size_t column = kWidth;  // Begins a line.
    for (const std::string_view word : absl::StrSplit(line, ' ')) {
      const bool fits = column + 1 + word.size() <= kWidth;
      absl::StrAppend(&wrapped,
                      fits              ? " "
                      : wrapped.empty() ? ""
                                        : "\n",
                      fits ? "" : kIndent, word);
      column = (fits ? column + 1 : kIndent.size()) + word.size();
    }
  }
  return wrapped;
}

std::string FlagsText(const std::vector<Flag>& flags, bool all) {
  std::string text;
  std::string_view section;
  for (const Flag& flag : flags) {
    if (flag.help.empty() || (!all && !flag.is_common)) continue;
    if (flag.section != section) {
      section = flag.section;
      absl::StrAppend(&text, "\n", section, ":\n");
    }
    absl::StrAppend(&text, "  --", flag.name,
                    flag.default_value.empty() ? "" : "=", flag.default_value,
                    "\n", Wrapped(flag.help), "\n");
  }
  return text;
}

std::string ExampleCommand(const Tool& tool) {
  const std::vector<std::string> own =
      OwnArguments({std::string(tool.example)});
  return own.size() > 1 ? absl::StrCat("tessera ", absl::StrJoin(own, " "))
                        : absl::StrCat("./bazelw run //tools/", tool.name,
                                       " -- ", tool.example);
}

std::string Synopsis(const Verb& verb) {
  return absl::StrCat(verb.name, verb.operands.empty() ? "" : " ",
                      absl::StrJoin(verb.operands, " "));
}

std::string VerbNames(const std::vector<Verb>& verbs) {
  return absl::StrJoin(verbs, ", ", [](std::string* out, const Verb& verb) {
    out->append(verb.name);
  });
}

// The output of --help without a verb.
std::string VerbsText(const Tool& tool, const std::vector<Verb>& verbs) {
  std::string text = absl::StrCat(tool.name, ": ", tool.summary, "\n\n  ",
                                  ExampleCommand(tool), "\n\n");
  for (const Verb& verb : verbs) {
    absl::StrAppendFormat(&text, "  %-22s %s\n", Synopsis(verb), verb.summary);
  }
  absl::StrAppend(&text, "\n", tool.name,
                  " VERB --help lists the flags of a verb.\n");
  return text;
}

std::string VerbHelp(const Tool& tool, const Verb& verb) {
  return absl::StrCat(tool.name, " ", Synopsis(verb), "\n  ", verb.summary,
                      "\n\n  ", ExampleCommand(tool), "\n",
                      verb.flags.empty() ? "" : "\nFlags:\n",
                      FlagsText(verb.flags, /*all=*/true));
}

absl::Status RunWithOperands(const Tool& tool, const Verb& verb,
                             const std::vector<std::string>& arguments) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> operands,
                           ParseArguments(tool, true, arguments));
  if (operands.size() == verb.operands.size()) return verb.body(operands);
  return absl::InvalidArgumentError(absl::StrCat(
      verb.name, " takes ",
      verb.operands.empty() ? "no operands"
                            : absl::StrJoin(verb.operands, " and "),
      ", got ",
      operands.empty()
          ? "none"
          : absl::StrCat("\"", Shown(absl::StrJoin(operands, "\", \"")),
                         "\"")));
}

// Replaces line ends, and escapes other control characters, which a value or a
// file may contain.
std::string OneLine(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += ' ';
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      line += absl::CHexEscape(std::string_view(&c, 1));
    } else {
      line += c;
    }
  }
  return line;
}

// Writes the error of a run and returns its exit code.
int Report(const Tool& tool, const absl::Status& status, std::ostream& err) {
  if (status.ok()) return 0;
  const bool is_usage = absl::IsInvalidArgument(status);
  err << tool.name << ": " << OneLine(status.message());
  if (is_usage) err << "; for example: " << ExampleCommand(tool);
  err << std::endl;
  return is_usage ? 2 : 1;
}

void OpenStandardDescriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // This is the lowest free number. Read-only, so that lost output is
    // noticed.
    open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
  }
}

// Replaces the default action, which ends the process, by none. Unlike SIG_IGN,
// a handler does not outlive exec.
void Survive(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

absl::Status EnterUsersDirectory() {
  constexpr const char* kVariable = "BUILD_WORKING_DIRECTORY";
  const char* const directory = std::getenv(kVariable);
  if (directory == nullptr || *directory == '\0') return absl::OkStatus();
  if (chdir(directory) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot enter ", kVariable, "=", Shown(directory),
                            ", the directory of bazel run; unset it"));
  }
  unsetenv(kVariable);
  return absl::OkStatus();
}

// True if standard output is a pipe or socket that its reader has closed.
bool HasReaderLeft() {
  pollfd out = {.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

// Runs a tool on standard output and standard error.
int RunPrepared(const Tool& tool, absl::FunctionRef<int()> run) {
  const absl::Status prepared = PrepareProcess();
  const int code = prepared.ok() ? run() : Report(tool, prepared, std::cerr);
  std::cout.flush();
  if (std::cout) return code;
  if (code == 0 && !HasReaderLeft()) {
    std::cerr << tool.name << ": cannot write to standard output\n";
  }
  return std::max(code, 1);
}

}  // namespace

absl::Status ParseFlags(const Tool& tool,
                        const std::vector<std::string>& arguments) {
  return ParseArguments(tool, false, LongArguments(tool, arguments)).status();
}

std::string HelpText(const Tool& tool, bool all) {
  const bool has_more =
      !all && absl::c_any_of(tool.flags,
                             [](const Flag& flag) { return flag.is_common; });
  return absl::StrCat(
      tool.name, ": ", tool.summary, "\n\n  ", ExampleCommand(tool), "\n\n",
      has_more ? absl::StrCat("Common flags; --help=all lists all ",
                              tool.flags.size(), ":\n")
               : "Flags:\n",
      FlagsText(tool.flags, !has_more));
}

absl::Status FlagError(std::string_view flag, std::string_view value,
                       const absl::Status& status) {
  return status.ok() ? status : FlagError(flag, value, status.message());
}

absl::Status FlagError(std::string_view flag, std::string_view value,
                       std::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", Shown(value), ": ", message));
}

absl::Status CheckFlagRange(std::string_view flag, int64_t value,
                            int64_t lowest, int64_t highest) {
  if (value >= lowest && value <= highest) return absl::OkStatus();
  return FlagError(
      flag, absl::StrCat(value),
      absl::StrCat("expected a number from ", lowest, " to ", highest));
}

int RunTool(const Tool& tool, const std::vector<std::string>& arguments,
            std::ostream& out, std::ostream& err,
            absl::FunctionRef<absl::Status()> body) {
  if (absl::c_any_of(arguments, IsHelp)) {
    out << HelpText(tool, absl::c_linear_search(arguments, kHelpAll));
    return 0;
  }
  absl::Status status = ParseFlags(tool, arguments);
  if (status.ok()) status = body();
  return Report(tool, status, err);
}

int RunVerb(const Tool& tool, const std::vector<Verb>& verbs,
            const std::vector<std::string>& arguments, std::ostream& out,
            std::ostream& err) {
  if (!arguments.empty() && IsHelp(arguments[0])) {
    out << VerbsText(tool, verbs);
    return 0;
  }
  const auto verb = absl::c_find_if(verbs, [&](const Verb& one) {
    return !arguments.empty() && one.name == arguments[0];
  });
  if (verb == verbs.end()) {
    return Report(
        tool,
        absl::InvalidArgumentError(absl::StrCat(
            arguments.empty()
                ? "no verb"
                : absl::StrCat("unknown verb \"", Shown(arguments[0]), "\""),
            "; expected ", VerbNames(verbs))),
        err);
  }
  const Tool of_verb = {.name = tool.name,
                        .summary = verb->summary,
                        .example = verb->example,
                        .flags = verb->flags};
  if (absl::c_any_of(arguments, IsHelp)) {
    out << VerbHelp(of_verb, *verb);
    return 0;
  }
  return Report(
      of_verb,
      RunWithOperands(of_verb, *verb, {arguments.begin() + 1, arguments.end()}),
      err);
}

absl::Status PrepareProcess() {
  OpenStandardDescriptors();
  Survive(SIGPIPE);
  Survive(SIGXFSZ);
  return EnterUsersDirectory();
}

int RunTool(const Tool& tool, const std::vector<std::string>& arguments,
            absl::FunctionRef<absl::Status()> body) {
  return RunPrepared(tool, [&] {
    return RunTool(tool, arguments, std::cout, std::cerr, body);
  });
}

int RunTool(const Tool& tool, int argc, char** argv,
            absl::FunctionRef<absl::Status()> body) {
  return RunTool(tool, {argv + 1, argv + argc}, body);
}

int RunVerb(const Tool& tool, const std::vector<Verb>& verbs, int argc,
            char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return RunPrepared(tool, [&] {
    return RunVerb(tool, verbs, arguments, std::cout, std::cerr);
  });
}

}  // namespace tessera::tools
