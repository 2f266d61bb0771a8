// The command line of every tool: flags, --help and exit codes.
//
// clang-format off
//   int main(int argc, char** argv) {
//     std::string mesh = "dp2,pp2,tp2";
//     return tessera::tools::RunTool(
//         {.name = "mesh", .summary = "...", .example = "--mesh=dp2,tp2",
//          .flags = {FieldFlag("mesh", "axes and their sizes", mesh)}},
//         argc, argv, [&] { return PrintMesh(mesh, std::cout); });
//   }
// clang-format on
//
// A tool with several functions has a verb for each, as git and docker do:
// `checkpoint list RUN`, `checkpoint reshard RUN DIR --mesh=dp2`. Each verb has
// its own flags and --help.
//
// typed_flags.h makes flags that store their values in fields. Exit codes: 0
// success, 1 a failed run, 2 bad usage. Bad usage prints one line on stderr
// with the flag, its value, the allowed values and a working example.
#ifndef TESSERA_TOOLS_CLI_CLI_H_
#define TESSERA_TOOLS_CLI_CLI_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace tessera::tools {

// The value of --format, the same in every tool.
enum class OutputFormat { kText, kJson, kCsv };

inline bool AbslParseFlag(std::string_view text, OutputFormat* format,
                          std::string* error) {
  if (text == "text") {
    *format = OutputFormat::kText;
  } else if (text == "json") {
    *format = OutputFormat::kJson;
  } else if (text == "csv") {
    *format = OutputFormat::kCsv;
  } else {
    *error = "expected text, json or csv";
    return false;
  }
  return true;
}

inline std::string AbslUnparseFlag(OutputFormat format) {
  switch (format) {
    case OutputFormat::kJson:
      return "json";
    case OutputFormat::kCsv:
      return "csv";
    case OutputFormat::kText:
      break;
  }
  return "text";
}

// A flag of a tool, which keeps its value where its function `set` puts it.
struct Flag {
  std::string_view name;
  std::string_view help = "";  // Empty: --help does not list the flag.
  std::string default_value = "";
  bool is_boolean = false;  // Accepts --name and --noname.
  // Parses and stores a value. The error contains the flag and the value, as
  // from FlagError.
  std::function<absl::Status(std::string_view value)> set = nullptr;
  std::string_view section = "";  // The heading in --help.
  // If any flag of a tool is common, --help lists the common ones only, and
  // --help=all lists all.
  bool is_common = false;
};

// The name, summary and flags of a tool.
struct Tool {
  std::string_view name;     // The Bazel target under //tools.
  std::string_view summary;  // One sentence.
  std::string_view example;  // Working arguments.
  std::vector<Flag> flags;   // In the order of --help.
  // One-letter names of flags: {'b', "min_bytes"} makes "-b 8", "-b8" and
  // "-b=8" equal to --min_bytes=8.
  std::vector<std::pair<char, std::string_view>> short_flags = {};
};

// One verb of a tool. The fields have the same meaning as in Tool; the example
// contains the verb.
struct Verb {
  std::string_view name;
  std::vector<std::string_view> operands;  // Such as RUN and DIR; all required.
  std::string_view summary;                // One sentence.
  std::string_view example;
  std::vector<Flag> flags;
  // Gets the values of the operands in order.
  std::function<absl::Status(const std::vector<std::string>&)> body;
};

// Sets the tool's flags from `arguments` (without the program's name):
// "--name=value", "--name value", and for booleans "--name" and "--noname";
// also its short flags.
// InvalidArgument, with the flag and its value, for the first argument that is
// unknown, malformed or not a flag.
absl::Status ParseFlags(const Tool& tool,
                        const std::vector<std::string>& arguments);

// The output of --help, or of --help=all.
std::string HelpText(const Tool& tool, bool all = false);

// Converts an error about a flag's value to InvalidArgument, with its message
// after "--flag=value: ". OK stays OK.
absl::Status FlagError(std::string_view flag, std::string_view value,
                       const absl::Status& status);

// The same for InvalidArgument with this message.
absl::Status FlagError(std::string_view flag, std::string_view value,
                       std::string_view message);

// InvalidArgument as from FlagError unless lowest <= value <= highest.
absl::Status CheckFlagRange(std::string_view flag, int64_t value,
                            int64_t lowest, int64_t highest);

// Parses the flags, runs `body` unless --help is given, reports an error on
// `err`, and returns the exit code. InvalidArgument, from parsing or from
// `body`, counts as bad usage.
int RunTool(const Tool& tool, const std::vector<std::string>& arguments,
            std::ostream& out, std::ostream& err,
            absl::FunctionRef<absl::Status()> body);

// Runs the verb that the first argument names. --help lists the verbs, or after
// a verb its operands and flags. `tool` must not have flags.
int RunVerb(const Tool& tool, const std::vector<Verb>& verbs,
            const std::vector<std::string>& arguments, std::ostream& out,
            std::ostream& err);

// Prepares this process to run a tool. The functions below call it; a `main`
// that does something before them calls it first. A second call has no effect.
//  - Descriptors 0, 1 and 2 are open, so that no file or pipe gets their
//    numbers; writing to a standard output that was closed still fails.
//  - Writes to a pipe without a reader and beyond a limit of file size fail
//  with
//    EPIPE and EFBIG instead of ending the process. Programs that this process
//    executes get the signals' original actions.
//  - The working directory is that of `bazel run`'s caller
//    (BUILD_WORKING_DIRECTORY), so relative paths have their usual meaning. The
//    variable is removed, because programs that this process starts are there
//    already. If the directory does not exist, the error names the variable.
absl::Status PrepareProcess();

// The same with a program's arguments, standard output and standard error.
// Failure to write to standard output is an error, too; it is reported unless
// the reader of a pipe has closed it.
int RunTool(const Tool& tool, const std::vector<std::string>& arguments,
            absl::FunctionRef<absl::Status()> body);
int RunTool(const Tool& tool, int argc, char** argv,
            absl::FunctionRef<absl::Status()> body);
int RunVerb(const Tool& tool, const std::vector<Verb>& verbs, int argc,
            char** argv);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CLI_CLI_H_
