#include "tools/cli/cli.h"

#include <algorithm>
#include <iostream>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"

namespace tessera::tools {
namespace {

constexpr size_t kShownLength = 120;

std::string Shown(std::string_view text) {
  return absl::StrCat(text.substr(0, kShownLength),
                      text.size() > kShownLength ? "..." : "");
}

bool Takes(const Tool& tool, std::string_view flag) {
  return absl::c_find(tool.flags, flag) != tool.flags.end();
}

absl::Status UnknownFlag(const Tool& tool, std::string_view name) {
  const std::string_view nearest = NearestName(name, tool.flags);
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
  absl::CommandLineFlag* flag = nullptr;
  std::string_view name;
  std::optional<std::string_view> value;
};

absl::StatusOr<Argument> FindFlag(const Tool& tool, std::string_view text) {
  if (!absl::ConsumePrefix(&text, "--")) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", Shown(text),
                     "\"; every argument is a flag such as --name=value"));
  }
  Argument argument;
  const size_t equals = text.find('=');
  argument.name = text.substr(0, equals);
  if (equals != std::string_view::npos) {
    argument.value = text.substr(equals + 1);
  }
  if (!Takes(tool, argument.name) && !argument.value.has_value() &&
      absl::StartsWith(argument.name, "no") &&
      Takes(tool, argument.name.substr(2))) {
    argument.name.remove_prefix(2);
    argument.value = "false";
  }
  if (Takes(tool, argument.name)) {
    argument.flag = absl::FindCommandLineFlag(argument.name);
  }
  if (argument.flag == nullptr) return UnknownFlag(tool, argument.name);
  return argument;
}

// The message of the flag's own parser, without the text that FlagError adds.
std::string_view ParserMessage(std::string_view error) {
  const size_t end = error.find("'; ");
  return end == std::string_view::npos ? "not a value of this flag's type"
                                       : error.substr(end + 3);
}

absl::Status SetFlag(const Argument& argument) {
  std::string error;
  if (argument.flag->ParseFrom(*argument.value, &error)) {
    return absl::OkStatus();
  }
  return FlagError(argument.name, *argument.value, ParserMessage(error));
}

bool IsHelp(std::string_view argument) {
  return argument == "--help" || argument == "-h" || argument == "-help";
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
    TESSERA_ASSIGN_OR_RETURN(Argument argument, FindFlag(tool, arguments[i]));
    if (!argument.value.has_value()) {
      if (argument.flag->IsOfType<bool>()) {
        argument.value = "true";
      } else if (i + 1 < arguments.size()) {
        argument.value = arguments[++i];
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("--", argument.name, " has no value; expected --",
                         argument.name, "=VALUE: ", argument.flag->Help()));
      }
    }
    TESSERA_RETURN_IF_ERROR(SetFlag(argument));
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

std::string FlagsText(const std::vector<std::string_view>& flags) {
  std::string text;
  for (std::string_view name : flags) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) continue;
    const std::string value = flag->DefaultValue();
    absl::StrAppend(
        &text, "  --", name, value.empty() ? "" : "=", value, "\n      ",
        absl::StrReplaceAll(flag->Help(), {{"\n", "\n      "}}), "\n");
  }
  return text;
}

std::string ExampleCommand(const Tool& tool) {
  return absl::StrCat("./bazelw run //tools/", tool.name, " -- ", tool.example);
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
                      FlagsText(verb.flags));
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

// Writes the error of a run and returns its exit code.
int Report(const Tool& tool, const absl::Status& status, std::ostream& err) {
  if (status.ok()) return 0;
  const bool is_usage = absl::IsInvalidArgument(status);
  err << tool.name << ": "
      << absl::StrReplaceAll(status.message(), {{"\n", " "}});
  if (is_usage) err << "; for example: " << ExampleCommand(tool);
  err << std::endl;
  return is_usage ? 2 : 1;
}

// Flushes standard output and returns the exit code.
int AfterOutput(const Tool& tool, int code) {
  std::cout.flush();
  if (code == 0 && !std::cout) {
    std::cerr << tool.name << ": cannot write to standard output\n";
    return 1;
  }
  return code;
}

}  // namespace

absl::Status ParseFlags(const Tool& tool,
                        const std::vector<std::string>& arguments) {
  return ParseArguments(tool, false, LongArguments(tool, arguments)).status();
}

std::string HelpText(const Tool& tool) {
  return absl::StrCat(tool.name, ": ", tool.summary, "\n\n  ",
                      ExampleCommand(tool), "\n\nFlags:\n",
                      FlagsText(tool.flags));
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
    out << HelpText(tool);
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

int RunTool(const Tool& tool, const std::vector<std::string>& arguments,
            absl::FunctionRef<absl::Status()> body) {
  return AfterOutput(tool,
                     RunTool(tool, arguments, std::cout, std::cerr, body));
}

int RunTool(const Tool& tool, int argc, char** argv,
            absl::FunctionRef<absl::Status()> body) {
  return RunTool(tool, {argv + 1, argv + argc}, body);
}

int RunVerb(const Tool& tool, const std::vector<Verb>& verbs, int argc,
            char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return AfterOutput(tool,
                     RunVerb(tool, verbs, arguments, std::cout, std::cerr));
}

}  // namespace tessera::tools
