#include "tools/schedule/source.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "pipeline/generate/generate.h"
#include "pipeline/schedule/csv.h"
#include "pipeline/schedule/json.h"
#include "pipeline/schedule/stage_map.h"
#include "pipeline/synthesize/synthesize.h"
#include "tools/cli/cli.h"

namespace tessera::tools {
namespace {

using pipeline::Costs;
using pipeline::Generator;
using pipeline::Schedule;

constexpr int64_t kMostStages = 4096;
constexpr int64_t kMostChunks = 64;
constexpr int64_t kMostMicrobatches = int64_t{1} << 20;
constexpr int64_t kMostCells = int64_t{1} << 22;  // Stages x micro-batches.
constexpr int64_t kMostFileBytes = int64_t{1} << 28;

bool IsSynthesized(std::string_view name) {
  return name == "auto" || name == "zb_1p" || name == "zb_2p";
}

absl::Status CheckCount(std::string_view flag, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return FlagError(flag, absl::StrCat(value),
                   absl::InvalidArgumentError(absl::StrCat(
                       "expected a number from ", least, " to ", most)));
}

absl::StatusOr<pipeline::PipelineShape> CheckedShape(
    const ShapeOptions& options, int64_t chunks) {
  const pipeline::PipelineShape shape = {options.stages.value_or(4), chunks,
                                         options.microbatches.value_or(8)};
  TESSERA_RETURN_IF_ERROR(CheckCount("stages", shape.ranks, 1, kMostStages));
  TESSERA_RETURN_IF_ERROR(
      CheckCount("microbatches", shape.microbatches, 1, kMostMicrobatches));
  if (shape.ranks * chunks * shape.microbatches > kMostCells) {
    return FlagError(
        "microbatches", absl::StrCat(shape.microbatches),
        absl::InvalidArgumentError(absl::StrCat(
            "with ", shape.ranks * chunks, " stages; expected at most ",
            kMostCells, " of stages x micro-batches")));
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

// The limit that the name asks for where none is given.
int64_t LimitFor(std::string_view name, const SourcedSchedule& made,
                 const pipeline::PipelineShape& shape) {
  if (made.memory_limit > 0 || name == "auto") return made.memory_limit;
  // A rank's stages together hold what one micro-batch adds to them.
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
                   absl::InvalidArgumentError(
                       absl::StrCat("the schedule of --input has ", actual,
                                    "; leave the flag out or give that")));
}

// A document of WriteJson, or of this tool's --format=json, which says more.
absl::StatusOr<Schedule> ReadAnyJson(const std::string& text) {
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
  // The tool's stages are ranks, those of the map are the schedule's.
  if (part.contains("map") && part["map"].is_object() &&
      part["map"].contains("ranks")) {
    part["stages"] = part["map"]["ranks"].size();
  }
  return pipeline::ReadJson(
      part.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// As a failed run: the schedule is wrong, not the flags.
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
                     absl::InvalidArgumentError(absl::StrCat(
                         "expected ", absl::StrJoin(names, ", "))));
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
      const std::string text, ReadFile(path, kMostFileBytes),
      absl::IsInvalidArgument(_) ? AsWrongSchedule(Annotate(_, flag))
                                 : Annotate(_, flag));
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
