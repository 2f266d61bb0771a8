#include "tools/schedule/source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "pipeline/generate/generate.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/synthesize/synthesize.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

namespace {

using pipeline::Costs;
using pipeline::StageCosts;

constexpr double kMostTime = 1e9;
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr int64_t kMostTimesBytes = int64_t{1} << 26;
constexpr size_t kMostTimesLines = size_t{1} << 20;

constexpr std::string_view kTimesForm =
    "three or four times in milliseconds, F,B,W,comm such as "
    "18.522,18.086,9.337,0.601";

std::string Quoted(std::string_view text) {
  return absl::StrCat("\"", absl::CEscape(text.substr(0, 40)), "\"");
}

absl::Status ParseTime(std::string_view text, double& time) {
  if (absl::SimpleAtod(text, &time) && time >= 0 && time <= kMostTime) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(text), " is not a time from 0 to 1e9; expected ", kTimesForm));
}

absl::Status ParseBytes(std::string_view text, int64_t& bytes) {
  if (absl::SimpleAtoi(text, &bytes) && bytes >= -kMostBytes &&
      bytes <= kMostBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(text),
      " is not a whole number of bytes up to 2^50; expected three, "
      "added or freed by F, B and W, such as 4096,-1024,-3072"));
}

absl::Status SetTimes(std::span<const std::string_view> fields,
                      StageCosts& costs) {
  const std::array<double*, 4> times = {&costs.forward, &costs.backward_input,
                                        &costs.backward_weight,
                                        &costs.communication};
  for (size_t i = 0; i < fields.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        ParseTime(absl::StripAsciiWhitespace(fields[i]), *times[i]));
  }
  return absl::OkStatus();
}

absl::Status SetMemory(std::span<const std::string_view> fields,
                       StageCosts& costs) {
  const std::array<int64_t*, 3> bytes = {&costs.forward_bytes,
                                         &costs.backward_input_bytes,
                                         &costs.backward_weight_bytes};
  for (size_t i = 0; i < fields.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        ParseBytes(absl::StripAsciiWhitespace(fields[i]), *bytes[i]));
  }
  return absl::OkStatus();
}

absl::Status ParseLine(std::string_view line, StageCosts& costs) {
  const std::vector<std::string_view> fields = absl::StrSplit(line, ',');
  const std::span<const std::string_view> all = fields;
  if (fields.size() == 3 || fields.size() == 4) return SetTimes(all, costs);
  if (fields.size() == 7) {
    TESSERA_RETURN_IF_ERROR(SetTimes(all.first(4), costs));
    return SetMemory(all.last(3), costs);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(fields.size(), " fields; expected ", kTimesForm,
                   ", optionally followed by f,b,w in bytes"));
}

// True unless `times` is a list: a file name must not begin with a number and a
// comma.
bool IsFile(std::string_view times) {
  double unused;
  return times.find_first_not_of("0123456789.,eE+- ") !=
             std::string_view::npos &&
         !absl::SimpleAtod(times.substr(0, times.find(',')), &unused);
}

// The costs of --times: one for all stages, or one for each.
absl::StatusOr<std::vector<StageCosts>> ReadTimes(const CostOptions& options) {
  if (IsFile(options.times)) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::string text, ReadFile(options.times, kMostTimesBytes),
        Annotate(_, absl::StrCat("--times=", options.times)));
    return ParseTimesFile(text, options.memory);
  }
  TESSERA_ASSIGN_OR_RETURN(StageCosts costs, ParseTimes(options.times));
  TESSERA_RETURN_IF_ERROR(ParseMemory(options.memory, costs));
  return std::vector<StageCosts>{costs};
}

void Divide(StageCosts& costs, int64_t parts) {
  const auto count = static_cast<double>(parts);
  costs.forward /= count;
  costs.backward_input /= count;
  costs.backward_weight /= count;
  const bool is_balanced = costs.forward_bytes + costs.backward_input_bytes +
                               costs.backward_weight_bytes ==
                           0;
  costs.forward_bytes /= parts;
  costs.backward_input_bytes /= parts;
  costs.backward_weight_bytes =
      is_balanced ? -costs.forward_bytes - costs.backward_input_bytes
                  : costs.backward_weight_bytes / parts;
}

absl::Status SetLinks(const CostOptions& options, Costs& costs) {
  if (!(options.latency >= 0) || options.latency > kMostTime) {
    return FlagError("latency", absl::StrCat(options.latency),
                     "expected milliseconds from 0 "
                     "to 1e9");
  }
  if (!(options.bandwidth >= 0) || std::isinf(options.bandwidth)) {
    return FlagError("bandwidth", absl::StrCat(options.bandwidth),

                     "expected GB/s, or 0 if messages take no time on "
                     "the wire");
  }
  if (!(options.optimizer >= 0) || options.optimizer > kMostTime) {
    return FlagError("optimizer", absl::StrCat(options.optimizer),
                     "expected milliseconds from 0 "
                     "to 1e9");
  }
  costs.links.everywhere.latency = options.latency;
  if (options.bandwidth > 0) {
    // 1 GB/s is 1e6 bytes per millisecond.
    costs.links.everywhere.bandwidth = options.bandwidth * 1e6;
  }
  for (StageCosts& stage : costs.stages) {
    stage.activation_bytes = options.activation_bytes;
    stage.gradient_bytes = options.activation_bytes;
    stage.optimizer = options.optimizer;
  }
  costs.overlap_communication = options.overlap;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StageCosts> ParseTimes(std::string_view text) {
  StageCosts costs;
  const std::vector<std::string_view> fields = absl::StrSplit(text, ',');
  if (fields.size() != 3 && fields.size() != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.size(), " times; expected ", kTimesForm,
                     ", or a file with a line for each stage"));
  }
  TESSERA_RETURN_IF_ERROR(SetTimes(fields, costs));
  return costs;
}

absl::Status ParseMemory(std::string_view text, StageCosts& costs) {
  const std::vector<std::string_view> fields = absl::StrSplit(text, ',');
  if (fields.size() != 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        fields.size(),
        " sizes; expected three in bytes, f,b,w: added or freed by F, B and "
        "W, such as 4096,-1024,-3072"));
  }
  return SetMemory(fields, costs);
}

absl::StatusOr<std::vector<StageCosts>> ParseTimesFile(
    std::string_view text, std::string_view memory) {
  StageCosts common;
  TESSERA_RETURN_IF_ERROR(ParseMemory(memory, common));
  std::vector<StageCosts> stages;
  int64_t number = 0;
  for (std::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    if (stages.size() == kMostTimesLines) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number, ": more than ", kMostTimesLines, " stages"));
    }
    stages.push_back(common);
    TESSERA_RETURN_IF_ERROR(ParseLine(line, stages.back()),
                            Annotate(_, absl::StrCat("line ", number)));
  }
  if (stages.empty()) {
    return absl::InvalidArgumentError("the file has no line of times");
  }
  return stages;
}

absl::StatusOr<Costs> MakeCosts(const CostOptions& options, int64_t stages,
                                int64_t chunks) {
  StageCosts unused;
  TESSERA_RETURN_IF_ERROR(
      FlagError("memory", options.memory, ParseMemory(options.memory, unused)));
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<StageCosts> read, ReadTimes(options),
      absl::IsInvalidArgument(_) ? FlagError("times", options.times, _) : _);
  const auto count = static_cast<size_t>(stages);
  if (IsFile(options.times) && read.size() != count) {
    return FlagError(
        "times", options.times,
        absl::StrCat("times of ", read.size(), " stages for ", count,
                     "; expected a line for each stage (of all chunks)"));
  }
  Costs costs;
  for (size_t stage = 0; stage < count; ++stage) {
    costs.stages.push_back(read[read.size() == 1 ? 0 : stage]);
    if (options.of == CostsOf::kRank && !IsFile(options.times)) {
      Divide(costs.stages.back(), chunks);
    }
  }
  TESSERA_RETURN_IF_ERROR(SetLinks(options, costs));
  return costs;
}

namespace {

using pipeline::Generator;
using pipeline::Schedule;

constexpr int64_t kMostStages = 4096;
constexpr int64_t kMostChunks = 64;
constexpr int64_t kMostMicrobatches = int64_t{1} << 20;
constexpr int64_t kMostCells = int64_t{1} << 22;  // Stages x micro-batches.
constexpr int64_t kMostScheduleBytes = int64_t{1} << 28;

bool IsSynthesized(std::string_view name) {
  return name == "auto" || name == "zb_1p" || name == "zb_2p";
}

absl::Status CheckCount(std::string_view flag, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return FlagError(
      flag, absl::StrCat(value),
      absl::StrCat("expected a number from ", least, " to ", most));
}

absl::StatusOr<pipeline::PipelineShape> CheckedShape(
    const ShapeOptions& options, int64_t chunks) {
  const pipeline::PipelineShape shape = {options.stages.value_or(4), chunks,
                                         options.microbatches.value_or(8)};
  TESSERA_RETURN_IF_ERROR(CheckCount("stages", shape.ranks, 1, kMostStages));
  TESSERA_RETURN_IF_ERROR(
      CheckCount("microbatches", shape.microbatches, 1, kMostMicrobatches));
  if (shape.ranks * chunks * shape.microbatches > kMostCells) {
    return FlagError("microbatches", absl::StrCat(shape.microbatches),
                     absl::StrCat("with ", shape.ranks * chunks,
                                  " stages; expected at most ", kMostCells,
                                  " of stages x micro-batches"));
  }
  return shape;
}

int64_t ChunksOf(std::string_view name, int64_t asked) {
  for (const Generator& generator : pipeline::Generators()) {
    if (generator.name != name) continue;
    if (generator.chunks > 0) return generator.chunks;
    const bool has_chunks = name == "interleaved_1f1b" || name == "looped_bfs";
    return asked > 0 ? asked : has_chunks ? 2 : 1;
  }
  return std::max<int64_t>(asked, 1);
}

int64_t LargestForward(const Costs& costs) {
  int64_t bytes = 0;
  for (const pipeline::StageCosts& stage : costs.stages) {
    bytes = std::max(bytes, stage.forward_bytes);
  }
  return bytes;
}

// The limit implied by the name if none is given.
int64_t LimitFor(std::string_view name, const SourcedSchedule& made,
                 const pipeline::PipelineShape& shape) {
  if (made.memory_limit > 0 || name == "auto") return made.memory_limit;
  // The stages of a rank together hold the bytes that one micro-batch adds to
  // them.
  const int64_t microbatch = LargestForward(made.costs) * shape.chunks;
  return microbatch * shape.ranks * (name == "zb_2p" ? 2 : 1);
}

absl::Status SynthesizeInto(std::string_view name,
                            const pipeline::PipelineShape& shape,
                            SourcedSchedule& made) {
  made.memory_limit = LimitFor(name, made, shape);
  std::optional<pipeline::StageMap> map;
  if (name != "auto" && shape.chunks == 1) {
    TESSERA_ASSIGN_OR_RETURN(map, pipeline::StageMap::Linear(shape.ranks));
  }
  TESSERA_ASSIGN_OR_RETURN(
      pipeline::Synthesis synthesis,
      pipeline::Synthesize({.ranks = shape.ranks,
                            .chunks = shape.chunks,
                            .microbatches = shape.microbatches,
                            .costs = made.costs,
                            .memory_limit = made.memory_limit,
                            .map = std::move(map)}),
      FlagError("schedule", name, _));
  made.schedule = std::move(synthesis.schedule);
  made.schedule.name = std::string(name);
  made.origin = synthesis.origin;
  return absl::OkStatus();
}

absl::Status GenerateInto(std::string_view name,
                          const pipeline::PipelineShape& shape,
                          SourcedSchedule& made) {
  TESSERA_ASSIGN_OR_RETURN(made.schedule, pipeline::Generate(name, shape),
                           FlagError("schedule", name, _));
  for (const Generator& generator : pipeline::Generators()) {
    if (generator.name == name) made.origin = generator.paper;
  }
  return absl::OkStatus();
}

absl::Status CheckGiven(std::string_view flag,
                        const std::optional<int64_t>& given, int64_t actual) {
  if (!given.has_value() || *given == actual) return absl::OkStatus();
  return FlagError(flag, absl::StrCat(*given),

                   absl::StrCat("the schedule of --input has ", actual,
                                "; leave the flag out or give that"));
}

// Reads a document of WriteJson, or of this tool's --format=json, which
// contains one.
absl::StatusOr<Schedule> ReadAnyJson(std::string_view text) {
  absl::StatusOr<Schedule> schedule = pipeline::ReadJson(text);
  if (schedule.ok()) return schedule;
  const absl::StatusOr<nlohmann::json> parsed =
      ParseJson(text, {.max_bytes = pipeline::kMostJsonBytes});
  if (!parsed.ok()) return schedule;
  const nlohmann::json& document = *parsed;
  if (!document.is_object() || !document.contains("valid")) return schedule;
  nlohmann::json part = nlohmann::json::object();
  for (const char* key : {"schedule", "microbatches", "map", "ranks"}) {
    if (document.contains(key)) part[key] = document[key];
  }
  // In the tool's JSON, `stages` is the number of ranks; the map has the
  // schedule's stages.
  if (part.contains("map") && part["map"].is_object() &&
      part["map"].contains("ranks")) {
    part["stages"] = part["map"]["ranks"].size();
  }
  return pipeline::ReadJson(DumpJson(part));
}

// Converts bad usage to a failed run: the schedule is wrong, not the flags.
absl::Status AsWrongSchedule(const absl::Status& status) {
  return absl::FailedPreconditionError(status.message());
}

}  // namespace

std::vector<std::string> ScheduleNames() {
  std::vector<std::string> names = {"auto", "zb_1p", "zb_2p"};
  for (const std::string_view name : pipeline::GeneratorNames()) {
    names.emplace_back(name);
  }
  return names;
}

absl::StatusOr<SourcedSchedule> MakeSchedule(std::string_view name,
                                             const ShapeOptions& shape,
                                             const CostOptions& costs,
                                             int64_t memory_limit) {
  const std::vector<std::string> names = ScheduleNames();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return FlagError("schedule", name,
                     absl::StrCat("expected ", absl::StrJoin(names, ", ")));
  }
  if (shape.chunks != 0) {
    TESSERA_RETURN_IF_ERROR(CheckCount("chunks", shape.chunks, 1, kMostChunks));
  }
  SourcedSchedule made;
  made.chunks = ChunksOf(name, shape.chunks);
  made.memory_limit = memory_limit;
  TESSERA_ASSIGN_OR_RETURN(const pipeline::PipelineShape checked,
                           CheckedShape(shape, made.chunks));
  TESSERA_ASSIGN_OR_RETURN(
      made.costs,
      MakeCosts(costs, checked.ranks * checked.chunks, checked.chunks));
  TESSERA_RETURN_IF_ERROR(IsSynthesized(name)
                              ? SynthesizeInto(name, checked, made)
                              : GenerateInto(name, checked, made));
  return made;
}

absl::StatusOr<SourcedSchedule> ReadSchedule(const std::string& path,
                                             const ShapeOptions& shape,
                                             const CostOptions& costs,
                                             int64_t memory_limit) {
  const std::string flag = absl::StrCat("--input=", path);
  TESSERA_ASSIGN_OR_RETURN(
      const std::string contents, ReadFile(path, kMostScheduleBytes),
      absl::IsInvalidArgument(_) ? AsWrongSchedule(Annotate(_, flag))
                                 : Annotate(_, flag));
  // Spreadsheets write a byte order mark.
  const std::string_view text = absl::StripPrefix(contents, "\xef\xbb\xbf");
  const bool is_json =
      absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{");
  SourcedSchedule read;
  TESSERA_ASSIGN_OR_RETURN(
      read.schedule,
      is_json ? ReadAnyJson(text) : pipeline::ReadCsv(text, path),
      AsWrongSchedule(Annotate(_, flag)));
  const pipeline::StageMap& map = read.schedule.map;
  TESSERA_RETURN_IF_ERROR(CheckGiven("stages", shape.stages, map.ranks()));
  TESSERA_RETURN_IF_ERROR(CheckGiven("microbatches", shape.microbatches,
                                     read.schedule.microbatches));
  read.chunks = std::max<int64_t>(1, map.stages() / map.ranks());
  read.memory_limit = memory_limit;
  read.origin = "file";
  TESSERA_ASSIGN_OR_RETURN(read.costs,
                           MakeCosts(costs, map.stages(), read.chunks));
  return read;
}

}  // namespace tessera::tools
