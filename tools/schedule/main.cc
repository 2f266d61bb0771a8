// The schedule tool: prints, proves, simulates and draws pipeline schedules.
#include <cstdint>
#include <iostream>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/byte_size.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "pipeline/draw/perfetto.h"
#include "pipeline/draw/svg.h"
#include "tools/cli/cli.h"
#include "tools/schedule/print.h"
#include "tools/schedule/report.h"

ABSL_FLAG(
    std::string, schedule, "",
    "default without --input: 1f1b; also sequential, gpipe, "
    "round_robin, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, zb_v, "
    "v_half, v_min, dualpipe, dualpipev; auto, synthesised for the given "
    "times and memory, and zb_1p and zb_2p, the same with the memory of p and "
    "2p micro-batches. Several, separated by commas, are compared");
ABSL_FLAG(std::string, input, "",
          "a schedule from a file: PyTorch's table, with or without sends and "
          "receives, or JSON");
ABSL_FLAG(std::optional<int64_t>, stages, std::nullopt,
          "number of pipeline stages p, one per rank; default 4. "
          "With --chunks: number of ranks, each with that many stages");
ABSL_FLAG(std::optional<int64_t>, microbatches, std::nullopt,
          "micro-batches per step m; default 8");
ABSL_FLAG(int64_t, chunks, 0,
          "stages per rank v, for schedules that support several; 0: 2 for "
          "interleaved_1f1b and looped_bfs, 1 for others");
ABSL_FLAG(
    std::string, times, "1,1,1,0",
    "F,B,W,comm: milliseconds of a forward, of the backward of inputs "
    "and of weights, and between two ranks, in a stage; or a file with "
    "such a line for each stage, optionally followed by f,b,w as --memory");
ABSL_FLAG(std::string, times_of, "stage",
          "unit of --times and --memory: stage, or rank, whose stages get "
          "equal shares");
ABSL_FLAG(std::string, memory, "1,0,-1",
          "f,b,w: bytes that a forward, a backward of inputs and one of "
          "weights add (more than 0) or free (less)");
ABSL_FLAG(
    int64_t, memory_limit, 0,
    "memory limit of a rank in bytes; 0: none, for zb_1p and zb_2p p and 2p "
    "times what a forward adds");
ABSL_FLAG(double, latency, 0,
          "milliseconds per message, added to those of --times");
ABSL_FLAG(double, bandwidth, 0,
          "GB/s of a link, for messages of --activation_bytes; 0: no limit");
ABSL_FLAG(tessera::ByteSize, activation_bytes, tessera::ByteSize(0),
          "size of a message between stages, such as 16MiB");
ABSL_FLAG(bool, overlap, true, "messages overlap with computation");
ABSL_FLAG(double, optimizer, 0,
          "milliseconds of the optimizer's step in a stage");
ABSL_FLAG(bool, lowered, false,
          "prints and prices the schedule with its sends and receives");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText,
          "text, json, or csv: the table that PyTorch reads");
ABSL_FLAG(std::string, svg, "", "also draws the timelines into this file");
ABSL_FLAG(
    std::string, trace, "",
    "also writes the timelines as a trace for ui.perfetto.dev into this file");
ABSL_FLAG(int64_t, width, 100, "columns of the picture in text");
ABSL_FLAG(bool, colour, false, "uses ANSI colours");
ABSL_FLAG(bool, quiet, false, "prints nothing; for --svg, --trace or a check");

namespace tessera::tools {
namespace {

absl::StatusOr<std::vector<std::string>> SchedulesFromFlags() {
  const std::string names = absl::GetFlag(FLAGS_schedule);
  const bool has_input = !absl::GetFlag(FLAGS_input).empty();
  if (names.empty()) {
    return has_input ? std::vector<std::string>()
                     : std::vector<std::string>{"1f1b"};
  }
  std::vector<std::string> schedules = absl::StrSplit(names, ',');
  constexpr size_t kMost = 64;
  if (schedules.size() > kMost) {
    return FlagError(
        "schedule", names,
        absl::StrCat(schedules.size(), " schedules; expected at most ", kMost));
  }
  return schedules;
}

absl::StatusOr<CostsOf> TimesOfFromFlag() {
  const std::string of = absl::GetFlag(FLAGS_times_of);
  if (of == "stage") return CostsOf::kStage;
  if (of == "rank") return CostsOf::kRank;
  return FlagError("times_of", of, "expected stage or rank");
}

absl::StatusOr<ScheduleOptions> OptionsFromFlags() {
  ScheduleOptions options;
  TESSERA_ASSIGN_OR_RETURN(options.schedules, SchedulesFromFlags());
  options.input = absl::GetFlag(FLAGS_input);
  options.shape.stages = absl::GetFlag(FLAGS_stages);
  options.shape.microbatches = absl::GetFlag(FLAGS_microbatches);
  options.shape.chunks = absl::GetFlag(FLAGS_chunks);
  options.costs.times = absl::GetFlag(FLAGS_times);
  options.costs.memory = absl::GetFlag(FLAGS_memory);
  TESSERA_ASSIGN_OR_RETURN(options.costs.of, TimesOfFromFlag());
  options.costs.latency = absl::GetFlag(FLAGS_latency);
  options.costs.bandwidth = absl::GetFlag(FLAGS_bandwidth);
  options.costs.activation_bytes =
      absl::GetFlag(FLAGS_activation_bytes).bytes();
  options.costs.overlap = absl::GetFlag(FLAGS_overlap);
  options.costs.optimizer = absl::GetFlag(FLAGS_optimizer);
  options.memory_limit = absl::GetFlag(FLAGS_memory_limit);
  options.lowered = absl::GetFlag(FLAGS_lowered);
  return options;
}

absl::StatusOr<PrintOptions> PrintOptionsFromFlags() {
  using pipeline::TerminalOptions;
  PrintOptions options;
  options.format = absl::GetFlag(FLAGS_format);
  options.picture.colour = absl::GetFlag(FLAGS_colour);
  options.picture.width = absl::GetFlag(FLAGS_width);
  if (options.picture.width < TerminalOptions::kLeastWidth ||
      options.picture.width > TerminalOptions::kMostWidth) {
    return FlagError(
        "width", absl::StrCat(options.picture.width),
        absl::StrCat("expected columns from ", TerminalOptions::kLeastWidth,
                     " to ", TerminalOptions::kMostWidth));
  }
  return options;
}

absl::Status Write(std::string_view flag, const std::string& path,
                   const absl::StatusOr<std::string>& drawing) {
  TESSERA_RETURN_IF_ERROR(FlagError(flag, path, drawing.status()));
  return Annotate(WriteFile(path, *drawing),
                  absl::StrCat("--", flag, "=", path));
}

absl::Status Draw(std::span<const ScheduleReport> reports) {
  const std::string svg = absl::GetFlag(FLAGS_svg);
  const std::string trace = absl::GetFlag(FLAGS_trace);
  std::vector<pipeline::Exhibit> exhibits = ExhibitsOf(reports);
  if (exhibits.empty()) return absl::OkStatus();
  if (!svg.empty()) {
    TESSERA_RETURN_IF_ERROR(Write(
        "svg", svg, pipeline::DrawSvg(exhibits, pipeline::kMilliseconds)));
  }
  if (trace.empty()) return absl::OkStatus();
  return Write("trace", trace,
               pipeline::DrawPerfetto(exhibits, pipeline::kMilliseconds));
}

absl::Status CheckValid(std::span<const ScheduleReport> reports) {
  for (const ScheduleReport& report : reports) {
    if (report.validity.ok()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        report.name, " is not valid: ", report.validity.message()));
  }
  return absl::OkStatus();
}

const Tool& ScheduleTool() {
  static const Tool* const tool = new Tool{
      .name = "schedule",
      .summary =
          "Prints, proves, prices, compares and draws schedules of "
          "pipeline parallelism.",
      .example = "--schedule=1f1b --stages=4 --microbatches=8 --format=csv",
      .flags = {"schedule",     "input",   "stages",    "microbatches",
                "chunks",       "times",   "times_of",  "memory",
                "memory_limit", "latency", "bandwidth", "activation_bytes",
                "optimizer",    "overlap", "lowered",   "format",
                "svg",          "trace",   "width",     "colour",
                "quiet"}};
  return *tool;
}

absl::Status RunScheduleTool(std::ostream& out) {
  TESSERA_ASSIGN_OR_RETURN(const ScheduleOptions options, OptionsFromFlags());
  TESSERA_ASSIGN_OR_RETURN(const PrintOptions print, PrintOptionsFromFlags());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ScheduleReport> reports,
                           MakeReports(options));
  TESSERA_RETURN_IF_ERROR(Draw(reports));
  if (!absl::GetFlag(FLAGS_quiet)) {
    TESSERA_RETURN_IF_ERROR(PrintReports(reports, print, out));
  }
  return CheckValid(reports);
}

}  // namespace
}  // namespace tessera::tools

int main(int argc, char** argv) {
  using namespace tessera::tools;
  return RunTool(ScheduleTool(), argc, argv,
                 [] { return RunScheduleTool(std::cout); });
}
