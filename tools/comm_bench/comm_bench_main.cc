#include "tools/comm_bench/comm_bench_main.h"

#include <unistd.h>

#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/cli/cli.h"
#include "tools/cli/records.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/bench_run.h"
#include "tools/comm_bench/job.h"

namespace tessera::tools {
int CommBenchMain(int argc, char** argv) {
  if (const auto code = RunWorker(argc, argv)) return *code;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  BenchOptions options;
  return RunTool(CommBenchTool(options), arguments, [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CompleteOptions(options));
    const bool prints = PrintsRows();
    RecordPrinter printer(options.format, "rows", std::cout);
    // A line that is overwritten.
    const bool is_shown =
        prints && !options.quiet && isatty(STDERR_FILENO) == 1;
    const auto show = [&](std::string_view text) {
      if (is_shown) std::cerr << "\r\x1b[K" << text.substr(0, 78) << std::flush;
    };
    const BenchEvents events = {
        .on_row =
            [&](const nlohmann::ordered_json& row, const std::string& text) {
              show("");
              if (prints) printer.Print(row, text);
            },
        .on_progress = show};
    const absl::Status status = RunBenchmark(options, arguments, events);
    show("");
    TESSERA_RETURN_IF_ERROR(status);
    if (prints) printer.Finish();
    return absl::OkStatus();
  });
}

}  // namespace tessera::tools
