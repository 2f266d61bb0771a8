#include "tools/schedule/costs.h"

#include <array>
#include <cmath>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"

namespace tessera::tools {
namespace {

using pipeline::Costs;
using pipeline::StageCosts;

constexpr double kMostTime = 1e9;
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr int64_t kMostFileBytes = int64_t{1} << 26;
constexpr size_t kMostStages = size_t{1} << 20;

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
      Quoted(text), " is no time from 0 to 1e9; expected ", kTimesForm));
}

absl::Status ParseBytes(std::string_view text, int64_t& bytes) {
  if (absl::SimpleAtoi(text, &bytes) && bytes >= -kMostBytes &&
      bytes <= kMostBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(text),
                   " is no whole number of bytes up to 2^50; expected three, "
                   "what F, B and W add or free, such as 4096,-1024,-3072"));
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
                   ", and f,b,w in bytes after them if wanted"));
}

// Not a list of times: no file's name begins with a number and a comma.
bool IsFile(std::string_view times) {
  double unused;
  return times.find_first_not_of("0123456789.,eE+- ") !=
             std::string_view::npos &&
         !absl::SimpleAtod(times.substr(0, times.find(',')), &unused);
}

// What --times says: of one stage for all, or of each.
absl::StatusOr<std::vector<StageCosts>> ReadTimes(const CostOptions& options) {
  if (IsFile(options.times)) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::string text, ReadFile(options.times, kMostFileBytes),
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
                     absl::InvalidArgumentError("expected milliseconds from 0 "
                                                "to 1e9"));
  }
  if (!(options.bandwidth >= 0) || std::isinf(options.bandwidth)) {
    return FlagError("bandwidth", absl::StrCat(options.bandwidth),
                     absl::InvalidArgumentError(
                         "expected GB/s, or 0 where messages take no time on "
                         "the wire"));
  }
  if (!(options.optimizer >= 0) || options.optimizer > kMostTime) {
    return FlagError("optimizer", absl::StrCat(options.optimizer),
                     absl::InvalidArgumentError("expected milliseconds from 0 "
                                                "to 1e9"));
  }
  costs.links.everywhere.latency = options.latency;
  if (options.bandwidth > 0) {
    // 1 GB/s is 1e6 bytes in a millisecond.
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
    return absl::InvalidArgumentError(
        absl::StrCat(fields.size(),
                     " sizes; expected three in bytes, f,b,w: what F, B and "
                     "W add or free, such as 4096,-1024,-3072"));
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
    if (stages.size() == kMostStages) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number, ": more than ", kMostStages, " stages"));
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
    return FlagError("times", options.times,
                     absl::InvalidArgumentError(absl::StrCat(
                         "times of ", read.size(), " stages for ", count,
                         "; expected a line for each stage (of all chunks)")));
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

}  // namespace tessera::tools
