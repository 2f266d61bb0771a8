// The flight tool: where the ranks of a hung or dead training run were.
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/cli/tool_registry.h"
#include "tools/cli/typed_flags.h"
#include "tools/flight/flight.h"

namespace tessera::tools {
namespace {

struct FlightFlags {
  std::string run_dir, html;
  OutputFormat format = OutputFormat::kText;
  bool quiet = false;
};

absl::Status Run(const FlightFlags& flags) {
  if (flags.run_dir.empty()) {
    return FlagError("run_dir", "",
                     "expected the directory of a run, or its flight/N");
  }
  if (flags.format == OutputFormat::kCsv) {
    return FlagError("format", "csv", "expected text or json");
  }
  TESSERA_ASSIGN_OR_RETURN(const FlightFiles files, ReadFlight(flags.run_dir),
                           FlagError("run_dir", flags.run_dir, _));
  const FlightReport report = Merge(files);
  if (!flags.html.empty()) {
    TESSERA_RETURN_IF_ERROR(WriteFile(flags.html, FlightHtml(report)),
                            Annotate(_, absl::StrCat("--html=", flags.html)));
  }
  std::cout << (flags.format == OutputFormat::kJson
                    ? DumpJson(FlightJson(report), 1) + "\n"
                    : FlightText(report, flags.quiet));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::tools

TESSERA_TOOL(flight) {
  using namespace tessera::tools;
  FlightFlags flags;
  return RunTool(
      {.name = "flight",
       .summary = "Shows where the ranks of a hung or dead training run were "
                  "and which of them the others waited for.",
       .example = "--run_dir=run7 --html=run7.html",
       .flags = {FieldFlag("run_dir",
                           "directory of a run of //tools/train, whose newest "
                           "attempt with a failure is read, or its flight/N",
                           flags.run_dir),
                 FieldFlag("format", "text or json", flags.format),
                 FieldFlag("html",
                           "also writes the report as a page into this "
                           "file",
                           flags.html),
                 FieldFlag("quiet", "prints only the conclusions",
                           flags.quiet)}},
      argc, argv, [&] { return Run(flags); });
}
