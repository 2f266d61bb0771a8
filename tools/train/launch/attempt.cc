#include "tools/train/launch/attempt.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "tools/launch/launch_command.h"
#include "tools/train/launch/rank_process.h"
#include "tools/train/launch/world.h"
#include "tools/train/settings/settings_json.h"

namespace tessera::train {
namespace {

using tools::LaunchOutcome;
using tools::LaunchPlan;

constexpr int64_t kMaxResultBytes = int64_t{1} << 30;
// Ranks hold nothing that a signal's default action would lose.
constexpr absl::Duration kGrace = absl::Seconds(2);

absl::StatusOr<LaunchPlan> PlanFor(const Settings& settings,
                                   const AttemptOptions& options,
                                   int64_t ranks) {
  LaunchPlan plan;
  plan.output = tools::OutputMode::kRaw;
  plan.grace = kGrace;
  plan.own_sessions = false;
  const std::vector<std::string> arguments =
      RankArguments(options.files, options.is_terminal);
  if (settings.engine == "mpi") {
    TESSERA_ASSIGN_OR_RETURN(
        const tools::LaunchCommand mpirun,
        tools::MpirunCommand(ranks, options.program, arguments));
    plan.command = mpirun.arguments;
    // Open MPI takes the directory before its name for the prefix of an
    // installation on all hosts.
    plan.command[0].erase(0, plan.command[0].rfind('/') + 1);
    plan.environment = mpirun.environment;
    return plan;
  }
  plan.np = settings.engine == "in_process" ? 1 : ranks;
  plan.environment = tools::CleanEnvironment();
  plan.command = arguments;
  plan.command.insert(plan.command.begin(), options.program);
  return plan;
}

// Of the processes that failed at once, the one that died by a signal, or else
// ended without a report. Null where each has said why it failed.
const tools::RankExit* FindDeath(const LaunchOutcome& launched,
                                 const std::vector<RankReport>& reports) {
  if (launched.failure->by_signal) return &*launched.failure;
  const auto has_reported = [&](const tools::RankExit& exit) {
    return std::any_of(reports.begin(), reports.end(),
                       [&](const RankReport& report) {
                         return report.rank == exit.rank.value();
                       });
  };
  if (!has_reported(*launched.failure)) return &*launched.failure;
  for (const tools::RankExit& exit : launched.also_failed) {
    if (!has_reported(exit)) return &exit;
  }
  return nullptr;
}

// The ranks know why they failed, the launcher who died without a word. A rank
// that loses another one reports that: it explains nothing.
void Explain(const LaunchOutcome& launched,
             const std::vector<RankReport>& reports, bool are_ranks,
             AttemptOutcome& outcome) {
  const RankReport* const cause = FindCause(reports);
  const tools::RankExit* const death =
      are_ranks ? FindDeath(launched, reports) : nullptr;
  const bool is_death = cause == nullptr ||
                        (death != nullptr &&
                         (death->by_signal || MayBeConsequence(cause->status)));
  if (!is_death) {
    outcome.rank = cause->rank;
    outcome.status = absl::Status(
        cause->status.code(),
        absl::StrCat(NameRank(*cause).message(), "; all ranks were ended"));
    return;
  }
  LaunchOutcome first = launched;
  if (death != nullptr) {
    first.failure = *death;
    outcome.rank = death->rank.value();
  }
  first.also_failed.clear();
  outcome.died = true;
  outcome.status = first.ToStatus();
}

void Conclude(const LaunchOutcome& launched, const AttemptFiles& files,
              int64_t ranks, bool are_ranks, AttemptOutcome& outcome) {
  if (launched.failure.has_value()) {
    Explain(launched, files.ReadReports(ranks), are_ranks, outcome);
    return;
  }
  outcome.signal = launched.signal;
  outcome.status = launched.ToStatus();
  if (!outcome.status.ok()) return;
  absl::StatusOr<std::string> result =
      ReadFile(files.result(), kMaxResultBytes);
  if (result.ok()) {
    outcome.result = *std::move(result);
  } else {
    outcome.status = Annotate(result.status(), "rank 0 left no result");
  }
}

absl::Status TryAttempt(const Settings& settings, const AttemptOptions& options,
                        AttemptOutcome& outcome) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t ranks, WorldSize(settings));
  TESSERA_RETURN_IF_ERROR(options.files.Make());
  TESSERA_RETURN_IF_ERROR(WriteSettings(settings, options.files.settings()));
  TESSERA_ASSIGN_OR_RETURN(const LaunchPlan plan,
                           PlanFor(settings, options, ranks));
  TESSERA_ASSIGN_OR_RETURN(const LaunchOutcome launched,
                           tools::Launch(plan, options.sinks));
  const bool are_ranks = settings.engine != "mpi" && plan.np == ranks;
  Conclude(launched, options.files, ranks, are_ranks, outcome);
  return absl::OkStatus();
}

}  // namespace

AttemptOutcome RunAttempt(const Settings& settings,
                          const AttemptOptions& options) {
  AttemptOutcome outcome;
  const absl::Status status = TryAttempt(settings, options, outcome);
  if (!status.ok()) outcome.status = status;
  outcome.took_a_step = options.files.TookAStep();
  options.files.Remove();
  return outcome;
}

}  // namespace tessera::train
