#include "tools/schedule/report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/validate.h"
#include "pipeline/simulate/critical_path.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/synthesize/lower_bound.h"
#include "tools/cli/cli.h"

namespace tessera::tools {
namespace {

using pipeline::Action;
using pipeline::Schedule;

bool HasMessages(const Schedule& schedule) {
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (Communicates(action.kind)) return true;
    }
  }
  return false;
}

// Validates the schedule with its own messages or, if it has none, with those
// that AddCommunication inserts; keeps the inserted ones if `lowered`.
absl::Status Prove(bool lowered, Schedule& schedule) {
  if (HasMessages(schedule)) return pipeline::Validate(schedule).status();
  TESSERA_RETURN_IF_ERROR(
      pipeline::Validate(
          schedule,
          {.communication = pipeline::Communication::kImplied, .buffers = 0})
          .status());
  TESSERA_ASSIGN_OR_RETURN(Schedule with_messages,
                           pipeline::AddCommunication(schedule));
  TESSERA_RETURN_IF_ERROR(pipeline::Validate(with_messages).status());
  if (lowered) schedule = std::move(with_messages);
  return absl::OkStatus();
}

// False if memory counts micro-batches: every forward adds 1, and its last
// backward frees it.
bool HasBytes(const pipeline::Costs& costs) {
  for (const pipeline::StageCosts& stage : costs.stages) {
    if (stage.forward_bytes != 1 || stage.backward_input_bytes != 0) {
      return true;
    }
  }
  return false;
}

// Sets times, memory and the lower bound of a valid schedule.
absl::Status Price(const pipeline::Costs& costs, ScheduleReport& report) {
  TESSERA_ASSIGN_OR_RETURN(report.timeline,
                           pipeline::Simulate(report.schedule, costs));
  for (size_t rank = 0; rank < report.timeline->ranks.size(); ++rank) {
    if (report.memory_limit > 0 &&
        report.timeline->ranks[rank].peak_bytes > report.memory_limit) {
      report.over_limit.push_back(static_cast<int64_t>(rank));
    }
  }
  for (const pipeline::TimedAction& one :
       pipeline::CriticalPath(report.schedule, *report.timeline)) {
    report.critical_path.push_back(one.action.ToString());
  }
  // A schedule above the limit is compared with the bound without a limit.
  TESSERA_ASSIGN_OR_RETURN(
      report.lower_bound,
      pipeline::LowerBound(
          report.schedule.map, report.schedule.microbatches, costs,
          report.over_limit.empty() ? report.memory_limit : 0));
  return absl::OkStatus();
}

absl::StatusOr<ScheduleReport> ReportOf(SourcedSchedule sourced,
                                        std::string name, bool lowered) {
  ScheduleReport report;
  report.name = std::move(name);
  report.has_bytes = HasBytes(sourced.costs) || sourced.memory_limit > 0;
  report.origin = std::move(sourced.origin);
  report.schedule = std::move(sourced.schedule);
  report.chunks = sourced.chunks;
  report.memory_limit = sourced.memory_limit;
  report.validity = Prove(lowered, report.schedule);
  if (report.validity.ok()) {
    TESSERA_RETURN_IF_ERROR(Price(sourced.costs, report),
                            Annotate(_, report.name));
  }
  return report;
}

// Reads the file of --input. If it does not contain a schedule, the report
// contains the error.
absl::StatusOr<ScheduleReport> ReportOfFile(const ScheduleOptions& options,
                                            ShapeOptions& shape) {
  absl::StatusOr<SourcedSchedule> read =
      ReadSchedule(options.input, shape, options.costs, options.memory_limit);
  if (absl::IsFailedPrecondition(read.status())) {
    ScheduleReport report;
    report.name = options.input;
    report.validity = read.status();
    return report;
  }
  TESSERA_RETURN_IF_ERROR(read.status());
  // The other schedules get the counts of the file.
  shape.stages = read->schedule.map.ranks();
  shape.microbatches = read->schedule.microbatches;
  return ReportOf(*std::move(read), options.input, options.lowered);
}

// With several schedules, each uses the number of chunks that it supports.
absl::Status CheckChunks(const std::string& name, int64_t asked,
                         int64_t actual) {
  if (asked == 0 || asked == actual) return absl::OkStatus();
  return FlagError(
      "chunks", absl::StrCat(asked),
      absl::StrCat(name, " has ", actual,
                   "; leave the flag out, or take interleaved_1f1b, "
                   "looped_bfs, round_robin, sequential or auto"));
}

}  // namespace

std::optional<double> ScheduleReport::gap() const {
  if (!timeline.has_value() || !lower_bound.has_value() || *lower_bound <= 0) {
    return std::nullopt;
  }
  return timeline->longest_stage / *lower_bound - 1;
}

absl::StatusOr<std::vector<ScheduleReport>> MakeReports(
    const ScheduleOptions& options) {
  if (options.memory_limit < 0) {
    return FlagError("memory_limit", absl::StrCat(options.memory_limit),

                     "expected bytes of a rank, or 0 for no limit");
  }
  std::vector<ScheduleReport> reports;
  ShapeOptions shape = options.shape;
  if (!options.input.empty()) {
    TESSERA_ASSIGN_OR_RETURN(ScheduleReport report,
                             ReportOfFile(options, shape));
    reports.push_back(std::move(report));
  }
  for (const std::string& name : options.schedules) {
    TESSERA_ASSIGN_OR_RETURN(
        SourcedSchedule made,
        MakeSchedule(name, shape, options.costs, options.memory_limit));
    if (options.schedules.size() == 1) {
      TESSERA_RETURN_IF_ERROR(CheckChunks(name, shape.chunks, made.chunks));
    }
    TESSERA_ASSIGN_OR_RETURN(ScheduleReport report,
                             ReportOf(std::move(made), name, options.lowered));
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace tessera::tools
