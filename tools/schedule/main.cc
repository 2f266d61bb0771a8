// The schedule tool: prints, proves, simulates and draws pipeline schedules.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/byte_size.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "pipeline/draw/perfetto.h"
#include "pipeline/draw/svg.h"
#include "tools/cli/cli.h"
#include "tools/cli/tool_registry.h"
#include "tools/cli/typed_flags.h"
#include "tools/schedule/print.h"
#include "tools/schedule/report.h"

namespace tessera::tools {
namespace {

struct ScheduleFlags {
  std::string schedules;  // The default depends on --input.
  ScheduleOptions options;
  ByteSize activation_bytes, memory_limit;
  PrintOptions print = {.picture = {.width = 100}};
  std::string svg, trace;
  bool quiet = false;
};

absl::StatusOr<CostsOf> ParseCostsOf(std::string_view text) {
  if (text == "stage") return CostsOf::kStage;
  if (text == "rank") return CostsOf::kRank;
  return absl::InvalidArgumentError("expected stage or rank");
}

std::vector<Flag> CostFlags(ScheduleFlags& flags) {
  CostOptions& costs = flags.options.costs;
  return {
      FieldFlag("times",
                "F,B,W,comm: milliseconds of a forward, of the backward of "
                "inputs and of weights, and between two ranks, in a stage; or "
                "a file with such a line for each stage, optionally followed "
                "by f,b,w as --memory",
                costs.times),
      ParsedFlag("times_of",
                 "unit of --times and --memory: stage, or rank, whose stages "
                 "get equal shares",
                 "stage", costs.of, ParseCostsOf),
      FieldFlag("memory",
                "f,b,w: bytes that a forward, a backward of inputs and one of "
                "weights add (more than 0) or free (less)",
                costs.memory),
      FieldFlag("memory_limit",
                "memory limit of a rank, such as 40GiB; 0: none, for zb_1p and "
                "zb_2p p and 2p times what a forward adds",
                flags.memory_limit),
      FieldFlag("latency",
                "milliseconds per message, added to those of --times",
                costs.latency),
      FieldFlag("bandwidth",
                "GB/s of a link, for messages of --activation_bytes; 0: no "
                "limit",
                costs.bandwidth),
      FieldFlag("activation_bytes",
                "size of a message between stages, such as 16MiB",
                flags.activation_bytes),
      FieldFlag("optimizer", "milliseconds of the optimizer's step in a stage",
                costs.optimizer),
      FieldFlag("overlap", "messages overlap with computation", costs.overlap)};
}

std::vector<Flag> FlagsOf(ScheduleFlags& flags) {
  using pipeline::TerminalOptions;
  ShapeOptions& shape = flags.options.shape;
  std::vector<Flag> all = {
      FieldFlag("schedule",
                "default without --input: 1f1b; also sequential, gpipe, "
                "round_robin, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, "
                "zb_v, v_half, v_min, dualpipe, dualpipev; auto, synthesised "
                "for the given times and memory, and zb_1p and zb_2p, the same "
                "with the memory of p and 2p micro-batches. Several, separated "
                "by commas, are compared",
                flags.schedules),
      FieldFlag("input",
                "a schedule from a file: PyTorch's table, with or without "
                "sends and receives, or JSON",
                flags.options.input),
      FieldFlag("stages",
                "number of pipeline stages p, one per rank; default 4. With "
                "--chunks: number of ranks, each with that many stages",
                shape.stages),
      FieldFlag("microbatches", "micro-batches per step m; default 8",
                shape.microbatches),
      FieldFlag("chunks",
                "stages per rank v, for schedules that support several; 0: 2 "
                "for interleaved_1f1b and looped_bfs, 1 for others",
                shape.chunks)};
  std::ranges::move(CostFlags(flags), std::back_inserter(all));
  std::ranges::move(
      std::vector<Flag>{
          FieldFlag("lowered",
                    "prints and prices the schedule with its sends and "
                    "receives",
                    flags.options.lowered),
          FieldFlag("format",
                    "text, json, or csv: the table that PyTorch reads",
                    flags.print.format),
          FieldFlag("svg", "also draws the timelines into this file",
                    flags.svg),
          FieldFlag("trace",
                    "also writes the timelines as a trace for ui.perfetto.dev "
                    "into this file",
                    flags.trace),
          RangeFlag("width", "columns of the picture in text",
                    flags.print.picture.width, TerminalOptions::kLeastWidth,
                    TerminalOptions::kMostWidth),
          FieldFlag("colour", "uses ANSI colours", flags.print.picture.colour),
          FieldFlag("quiet", "prints nothing; for --svg, --trace or a check",
                    flags.quiet)},
      std::back_inserter(all));
  return all;
}

absl::Status Complete(ScheduleFlags& flags) {
  constexpr size_t kMost = 64;
  ScheduleOptions& options = flags.options;
  options.costs.activation_bytes = flags.activation_bytes.bytes();
  options.memory_limit = flags.memory_limit.bytes();
  if (flags.schedules.empty()) {
    if (options.input.empty()) options.schedules = {"1f1b"};
    return absl::OkStatus();
  }
  options.schedules = absl::StrSplit(flags.schedules, ',');
  if (options.schedules.size() <= kMost) return absl::OkStatus();
  return FlagError("schedule", flags.schedules,
                   absl::StrCat(options.schedules.size(),
                                " schedules; expected at most ", kMost));
}

absl::Status Write(std::string_view flag, const std::string& path,
                   const absl::StatusOr<std::string>& drawing) {
  TESSERA_RETURN_IF_ERROR(FlagError(flag, path, drawing.status()));
  return Annotate(WriteFile(path, *drawing),
                  absl::StrCat("--", flag, "=", path));
}

absl::Status Draw(std::span<const ScheduleReport> reports,
                  const std::string& svg, const std::string& trace) {
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

absl::Status RunScheduleTool(ScheduleFlags& flags, std::ostream& out) {
  TESSERA_RETURN_IF_ERROR(Complete(flags));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ScheduleReport> reports,
                           MakeReports(flags.options));
  TESSERA_RETURN_IF_ERROR(Draw(reports, flags.svg, flags.trace));
  if (!flags.quiet) {
    TESSERA_RETURN_IF_ERROR(PrintReports(reports, flags.print, out));
  }
  return CheckValid(reports);
}

}  // namespace
}  // namespace tessera::tools

TESSERA_TOOL(schedule) {
  using namespace tessera::tools;
  ScheduleFlags flags;
  const Tool tool = {
      .name = "schedule",
      .summary =
          "Prints, proves, prices, compares and draws schedules of "
          "pipeline parallelism.",
      .example = "--schedule=1f1b --stages=4 --microbatches=8 --format=csv",
      .flags = FlagsOf(flags)};
  return RunTool(tool, argc, argv,
                 [&] { return RunScheduleTool(flags, std::cout); });
}
