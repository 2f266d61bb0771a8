#include "tools/train/launch/supervise.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/steady_now.h"
#include "tools/cli/cli.h"
#include "tools/train/launch/rank_process.h"
#include "tools/train/loop/preemption.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/settings.h"
#include "tools/train/watch/hang.h"
#include "tools/train/watch/job_watch.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {

namespace {

using tools::LaunchOutcome;
using tools::LaunchPlan;

constexpr int64_t kMaxResultBytes = int64_t{1} << 30;
// Short, because ranks of a failed run save nothing.
constexpr absl::Duration kGrace = absl::Seconds(2);

// True if a restart may go on with fewer ranks.
bool MayShrink(const Settings& settings) {
  return settings.min_dp > 0 && settings.min_dp < settings.parallel.mesh.dp;
}

// True if it should.
bool NeedsFewerRanks(const AttemptOutcome& outcome,
                     const std::optional<int64_t>& failed_before) {
  if (absl::IsResourceExhausted(outcome.status)) return true;
  if (!outcome.took_a_step) return true;
  return outcome.rank.has_value() && outcome.rank == failed_before;
}

// Decides which ranks of an attempt hang, which are replaced, and when the
// attempt ends with a checkpoint of copies in memory.
class Replacements {
 public:
  // Borrows its arguments. `nodes` is null for a run on one node.
  Replacements(const Settings& settings, const AttemptOptions& options,
               JobWatch& watch, Nodes* nodes)
      : settings_(settings), options_(options), watch_(watch), nodes_(nodes) {}

  // For LaunchPlan::replace and LaunchPlan::find_hung.
  std::optional<int64_t> Replace(const tools::RankExit& exit);
  std::vector<topology::Rank> FindHung(
      const std::vector<topology::Rank>& stopped);

  // Prints where the ranks are, on SIGUSR2.
  void ShowPlaces() const;

  int64_t count() const { return count_; }
  bool needs_fewer_ranks() const { return needs_fewer_ranks_; }
  // The ranks that were killed because they hung, and why.
  const std::map<int64_t, std::string>& hung() const { return hung_; }

 private:
  using Reasons = std::map<int64_t, std::string>;  // By rank.
  AttemptOutcome FailureOf(const tools::RankExit& exit) const;
  bool MayGoOn(const AttemptOutcome& failure, int64_t round);
  void AddStopped(const std::vector<topology::Rank>& stopped, Reasons& hung);
  void AddSilent(Reasons& hung);
  void AddStuck(const std::vector<topology::Rank>& stopped, Reasons& hung);
  std::string WhereFilesAre() const;

  const Settings& settings_;
  const AttemptOptions& options_;
  JobWatch& watch_;
  Nodes* const nodes_;
  Reasons hung_;
  int64_t count_ = 0;
  bool needs_fewer_ranks_ = false;
  std::optional<int64_t> failed_before_;
  std::map<int64_t, absl::Duration> stopped_since_;  // SteadyNow, by rank.
  // The newest round, and when this process saw it.
  int64_t newest_ = 0;
  absl::Duration newest_since_;
};

AttemptOutcome Replacements::FailureOf(const tools::RankExit& exit) const {
  const int64_t rank = exit.rank.value();
  AttemptOutcome failure = {
      .status = absl::AbortedError(tools::DescribeExit(exit)),
      .rank = rank,
      .took_a_step = options_.files.TookAStep(),
      .died = true};
  for (const RankReport& report :
       options_.files.ReadReports(settings_.parallel.mesh.world_size())) {
    if (report.rank != rank || exit.by_signal) continue;
    failure.status = report.status;
    failure.died = false;
  }
  return failure;
}

// True if a new process in the place of the rank may train from this round on.
bool Replacements::MayGoOn(const AttemptOutcome& failure, int64_t round) {
  const bool may_shrink =
      nodes_ == nullptr ? MayShrink(settings_) : nodes_->MayLeave();
  needs_fewer_ranks_ = may_shrink && NeedsFewerRanks(failure, failed_before_);
  const int64_t most = ReplacementsOf(settings_);
  return count_ < most && round <= most && !needs_fewer_ranks_;
}

// If the run cannot go on, a new process helps the others to save their copies.
std::optional<int64_t> Replacements::Replace(const tools::RankExit& exit) {
  const AttemptFiles& files = options_.files;
  const int64_t rank = exit.rank.value();
  const AttemptOutcome failure = FailureOf(exit);
  const int64_t round = files.ReadRound(rank) + 1;
  const auto before = files.ReadEnding();
  const bool has_saved = before.has_value() && round > before->round;
  if (has_saved || !MayPass(failure) || round > LastRoundOf(settings_) ||
      (nodes_ != nullptr && !nodes_->RanksToEnd().empty())) {
    return std::nullopt;
  }
  const bool goes_on = !before.has_value() && MayGoOn(failure, round);
  absl::Status written;
  if (!goes_on && !before.has_value()) {
    const RankReport cause = {rank, 0, failure.status};
    written = files.WriteEnding(
        {round, failure.died ? cause : RankReport{rank, 0, NameRank(cause)}});
  }
  written.Update(files.WriteRound(rank, round));
  if (!written.ok()) return std::nullopt;
  watch_.WriteFiles();
  watch_.Forget(rank);
  files.RemoveReport(rank);
  failed_before_ = rank;
  if (!goes_on) return round;
  ++count_;
  options_.notice(absl::StrCat(
      tools::DescribeExit(exit),
      failure.died ? "" : absl::StrCat(" (", failure.status.message(), ")"),
      "; replaced, ", count_, " of ", settings_.max_restarts));
  return round;
}

std::vector<topology::Rank> Replacements::FindHung(
    const std::vector<topology::Rank>& stopped) {
  if (nodes_ != nullptr) {
    const std::vector<topology::Rank> ended = nodes_->RanksToEnd();
    if (!ended.empty()) return ended;
  }
  Reasons found;
  AddStopped(stopped, found);
  AddSilent(found);
  AddStuck(stopped, found);
  if (found.empty()) return {};
  std::vector<int64_t> numbers;
  std::string text;
  for (const auto& [rank, why] : found) {
    numbers.push_back(rank);
    absl::StrAppend(&text, text.empty() ? "" : "\ntrain: ", why, "; killed");
    hung_[rank] = why;
  }
  options_.notice(
      absl::StrCat(text, "\n", watch_.Report(numbers), WhereFilesAre()));
  // Ranks that are threads end with their process.
  if (settings_.engine == "in_process") return {topology::Rank(0)};
  return {numbers.begin(), numbers.end()};
}

void Replacements::ShowPlaces() const {
  options_.notice(
      absl::StrCat("SIGUSR2\n", watch_.Report({}), WhereFilesAre()));
}

std::string Replacements::WhereFilesAre() const {
  const std::string& directory = options_.files.flight;
  return directory.empty()
             ? ""
             : absl::StrCat("\n  for //tools/flight: ", directory);
}

void Replacements::AddStopped(const std::vector<topology::Rank>& stopped,
                              Reasons& hung) {
  constexpr std::string_view kDefault = "10s";
  // A debugger stops ranks, too.
  const bool may_stop =
      settings_.hang_timeout.empty() && ReplacementsOf(settings_) == 0;
  if (may_stop) return;
  const absl::Duration now = SteadyNow();
  std::map<int64_t, absl::Duration> since;
  const std::string limit(
      settings_.hang_timeout.empty() ? kDefault : settings_.hang_timeout);
  for (const topology::Rank rank : stopped) {
    const auto before = stopped_since_.find(rank.value());
    const absl::Duration begin =
        before == stopped_since_.end() ? now : before->second;
    const auto most = ParseTimeSpan(limit);
    if (!most.ok() || now - begin < *most) {
      since[rank.value()] = begin;
      continue;
    }
    hung[rank.value()] =
        absl::StrCat("rank ", rank.value(), " has been stopped for ", limit,
                     " (--hang_timeout)");
  }
  stopped_since_ = std::move(since);
}

// Ranks that lost another rank wait in the next round for those that have not
// noticed it. A rank that does not join for as long as a collective may take is
// taken for hung.
void Replacements::AddSilent(Reasons& hung) {
  std::vector<int64_t> rounds;
  for (int64_t rank = 0; rank < settings_.parallel.mesh.world_size(); ++rank) {
    rounds.push_back(options_.files.ReadRound(rank));
  }
  const int64_t newest = *absl::c_max_element(rounds);
  if (newest != newest_) {
    newest_ = newest;
    newest_since_ = SteadyNow();
  }
  const absl::Duration timeout = settings_.parallel.timeout;
  if (SteadyNow() - newest_since_ < timeout) return;
  for (size_t rank = 0; rank < rounds.size(); ++rank) {
    const topology::Rank silent(static_cast<int64_t>(rank));
    const bool is_here = nodes_ == nullptr || nodes_->IsHere(silent);
    if (!is_here || rounds[rank] == newest) continue;
    hung[silent.value()] = absl::StrCat(
        "rank ", rank, " has not answered for ", absl::FormatDuration(timeout),
        " (--timeout_seconds) while others wait for it");
  }
}

// Ranks whose place does not change, unless they are stopped.
void Replacements::AddStuck(const std::vector<topology::Rank>& stopped,
                            Reasons& hung) {
  const std::vector<int64_t> found = watch_.FindHung();
  for (const int64_t rank : found) {
    const bool is_stopped = std::find(stopped.begin(), stopped.end(),
                                      topology::Rank(rank)) != stopped.end();
    if (is_stopped || hung.contains(rank)) continue;
    hung[rank] = HungText(watch_.Places(), std::vector<int64_t>{rank},
                          watch_.detector());
  }
}

absl::StatusOr<LaunchPlan> PlanFor(const Settings& settings,
                                   const AttemptOptions& options,
                                   JobWatch& watch, Nodes* nodes,
                                   Replacements& replacements) {
  const bool is_mpi = settings.engine == "mpi";
  const int64_t size = nodes == nullptr ? 1 : nodes->size();
  const int64_t ranks = settings.parallel.mesh.world_size() / size;
  TESSERA_ASSIGN_OR_RETURN(
      LaunchPlan plan,
      tools::PlanProgram(settings.engine == "in_process" ? 1 : ranks, is_mpi,
                         options.program,
                         RankArguments(options.files, options.is_terminal,
                                       is_mpi ? -1 : watch.fd())));
  plan.grace = kGrace;
  TESSERA_ASSIGN_OR_RETURN(plan.save_grace,
                           ParseTimeSpan(settings.grace_period));
  plan.nnodes = size;
  plan.replacements = LastRoundOf(settings);
  if (plan.replacements > 0) {
    plan.replace = [&](const auto& exit) { return replacements.Replace(exit); };
  }
  // The ranks of mpirun share no memory with this process.
  if (is_mpi) return plan;
  plan.inherited = {watch.fd()};
  plan.find_hung = [&](const auto& stopped) {
    return replacements.FindHung(stopped);
  };
  plan.on_failure = [&] { watch.WriteFiles(); };
  plan.on_user_signal = [&] { replacements.ShowPlaces(); };
  if (nodes != nullptr) {
    plan.master_addr = nodes->place().master_addr;
    plan.take_over = [nodes] { return nodes->TakeOver(); };
    plan.next_signal = [nodes] {
      return nodes->MustGrow() ? kNewHostSignal : 0;
    };
  }
  return plan;
}

// Among the processes that failed first, returns the one that a signal ended;
// otherwise one that ended without a report. Null if all have reported an
// error.
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

// Finds the root cause. Ranks report their errors, and the launcher knows which
// rank died without a report. The report of a rank that lost another rank is
// not a cause.
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

// True if a signal ended the last process of a rank.
bool HasDeadRank(const LaunchOutcome& launched) {
  std::map<int64_t, bool> died;
  for (const tools::RankExit& exit : launched.exits) {
    died[exit.rank.value()] = exit.by_signal;
  }
  return std::any_of(died.begin(), died.end(),
                     [](const auto& rank) { return rank.second; });
}

// If the attempt ended because a rank hung, the reason is why it was killed.
void NameHung(const LaunchOutcome& launched,
              const std::map<int64_t, std::string>& hung,
              AttemptOutcome& outcome) {
  const bool was_killed = launched.failure.has_value() &&
                          launched.failure->by_signal &&
                          launched.failure->code == SIGKILL;
  if (!was_killed || hung.empty()) return;
  const auto found = hung.find(outcome.rank.value_or(-1));
  const auto& [rank, why] = found == hung.end() ? *hung.begin() : *found;
  outcome.rank = rank;
  outcome.status =
      absl::AbortedError(absl::StrCat(why, "; all ranks were ended"));
}

void Conclude(const LaunchOutcome& launched, const AttemptFiles& files,
              int64_t ranks, bool are_ranks, bool has_first,
              AttemptOutcome& outcome) {
  const std::vector<RankReport> reports = files.ReadReports(ranks);
  if (launched.failure.has_value()) {
    Explain(launched, reports, are_ranks, outcome);
    return;
  }
  outcome.signal = launched.signal == SIGUSR1 ? SIGTERM : launched.signal;
  outcome.died = HasDeadRank(launched);
  outcome.status = launched.ToStatus();
  const std::string stopped_by =
      ReadFile(files.stopped_by(), kMaxResultBytes).value_or("");
  outcome.grows =
      outcome.status.ok() && stopped_by == StopCauseName(StopCause::kNewHost);
  if (!has_first || outcome.grows) return;
  absl::StatusOr<std::string> result =
      ReadFile(files.result(), kMaxResultBytes);
  if (result.ok()) {
    outcome.result = *std::move(result);
  } else if (outcome.status.ok()) {
    outcome.status = Annotate(result.status(), "rank 0 left no result");
  }
  if (outcome.status.ok() && !stopped_by.empty()) {
    outcome.signal = SIGTERM;
    outcome.status = absl::AbortedError(absl::StrCat("ended by ", stopped_by));
  }
  const RankReport* const cause = FindCause(reports);
  if (cause != nullptr && !MayBeConsequence(cause->status)) {
    outcome.status = Annotate(NameRank(*cause), outcome.status.message());
  }
}

// The attempt has ended for this cause, and its ranks have saved their copies,
// or failed to.
void ConcludeEnding(const RankReport& cause, bool has_failed,
                    const AttemptOptions& options, AttemptOutcome& outcome) {
  if (has_failed) {
    options.notice(absl::StrCat("copies in memory could not be saved: ",
                                outcome.status.message()));
  }
  outcome.rank = cause.rank;
  outcome.status = absl::Status(
      cause.status.code(),
      absl::StrCat(cause.status.message(), "; all ranks were ended"));
}

// Runs this node's ranks.
absl::Status RunRanks(const Settings& settings, const AttemptOptions& options,
                      AttemptOutcome& outcome) {
  Nodes* const nodes = options.nodes;
  const int64_t ranks = settings.parallel.mesh.world_size();
  TESSERA_ASSIGN_OR_RETURN(
      const auto watch,
      JobWatch::Create(ranks, HangTimeoutOf(settings), options.files.flight));
  Replacements replacements(settings, options, *watch, nodes);
  TESSERA_ASSIGN_OR_RETURN(
      LaunchPlan plan, PlanFor(settings, options, *watch, nodes, replacements));
  if (nodes != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(plan.ranks, nodes->AwaitRanks());
    if (plan.ranks.empty()) {
      Conclude({}, options.files, ranks, true, false, outcome);
      return absl::OkStatus();
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const LaunchOutcome launched,
                           tools::Launch(plan, options.sinks));
  outcome.replacements = replacements.count();
  const bool are_ranks =
      settings.engine != "mpi" && (nodes != nullptr || plan.np == ranks);
  const bool has_first = nodes == nullptr || nodes->IsHere(topology::Rank(0));
  Conclude(launched, options.files, ranks, are_ranks, has_first, outcome);
  NameHung(launched, replacements.hung(), outcome);
  outcome.needs_fewer_ranks = replacements.needs_fewer_ranks();
  const auto ending = options.files.ReadEnding();
  if (ending.has_value() && !outcome.signal.has_value()) {
    ConcludeEnding(ending->cause, launched.failure.has_value(), options,
                   outcome);
  }
  return absl::OkStatus();
}

std::string Source(const Settings& settings) {
  return settings.resume.empty() ? "the beginning" : settings.resume;
}

// Says with which ranks the run starts, if not with those of --mesh, or
// continues after a restart.
void SayMesh(const Settings& wanted, const Settings& settings,
             const AttemptOptions& options) {
  const Nodes& nodes = *options.nodes;
  const topology::MeshSizes& mesh = settings.parallel.mesh;
  const topology::MeshSizes& whole = wanted.parallel.mesh;
  if (nodes.attempt() == 1 && mesh.dp == whole.dp) return;
  const std::string differs =
      mesh.dp == whole.dp ? "" : absl::StrCat(" (of ", whole.ToFlag(), ")");
  const bool may_grow = mesh.dp < std::max(whole.dp, wanted.max_dp);
  options.notice(absl::StrCat(
      nodes.attempt() == 1 ? "starts" : "continues", " on ", mesh.ToFlag(),
      differs, ", ", nodes.size(), " of ", nodes.place().nodes, " hosts, from ",
      Source(settings), may_grow ? "; grows when a host joins" : ""));
}

// An attempt of all nodes.
absl::Status TryWithNodes(const Settings& settings,
                          const AttemptOptions& options,
                          AttemptOutcome& outcome) {
  Nodes& nodes = *options.nodes;
  TESSERA_ASSIGN_OR_RETURN(
      const Settings chosen,
      nodes.Begin([settings, most = nodes.place().nodes](int64_t count) {
        return FitCrew(settings, most, count);
      }));
  SayMesh(settings, chosen, options);
  AttemptOptions here = options;
  here.files.directory = nodes.directory();
  const absl::Status status = RunRanks(chosen, here, outcome);
  if (!status.ok()) outcome.status = status;
  outcome.took_a_step = here.files.TookAStep();
  // The cause may be the loss of another node.
  if (outcome.took_a_step && absl::IsFailedPrecondition(outcome.status) &&
      outcome.rank.has_value()) {
    outcome.status = absl::AbortedError(outcome.status.message());
  }
  // A run that is asked to end ends on all nodes.
  const bool was_asked =
      outcome.signal == SIGTERM && outcome.took_a_step && !outcome.died;
  if (was_asked || outcome.grows) return absl::OkStatus();
  const bool is_final =
      outcome.replacements >= chosen.max_restarts || !MayPass(outcome);
  const absl::Status own = outcome.status;
  outcome.status = nodes.End(own, is_final);
  const bool is_cause = outcome.status == own && outcome.rank.has_value() &&
                        nodes.IsHere(topology::Rank(*outcome.rank)) &&
                        (outcome.died || !MayBeConsequence(own));
  outcome.may_leave =
      nodes.MayLeave() && (is_cause || outcome.needs_fewer_ranks);
  if (absl::IsCancelled(outcome.status)) outcome.died = false;
  return absl::OkStatus();
}

absl::Status TryAttempt(const Settings& settings, const AttemptOptions& options,
                        AttemptOutcome& outcome) {
  const topology::MeshSizes& mesh = settings.parallel.mesh;
  TESSERA_RETURN_IF_ERROR(
      tools::FlagError("mesh", mesh.ToFlag(), mesh.Validate()));
  if (options.nodes != nullptr) {
    return TryWithNodes(settings, options, outcome);
  }
  TESSERA_RETURN_IF_ERROR(options.files.Make());
  TESSERA_RETURN_IF_ERROR(WriteSettings(settings, options.files.settings()));
  return RunRanks(settings, options, outcome);
}

}  // namespace

AttemptOutcome RunAttempt(const Settings& settings,
                          const AttemptOptions& options) {
  AttemptOutcome outcome;
  const absl::Status status = TryAttempt(settings, options, outcome);
  if (!status.ok()) outcome.status = status;
  if (options.nodes == nullptr) {
    outcome.took_a_step = options.files.TookAStep();
    options.files.Remove();
  }
  return outcome;
}

bool MayPass(const AttemptOutcome& outcome) {
  if (outcome.status.ok() || outcome.signal.has_value()) return false;
  if (outcome.died) return true;
  switch (outcome.status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return true;
    default:
      return false;
  }
}

std::optional<Settings> FitDataAxis(
    const Settings& settings, int64_t most,
    const std::function<bool(const Settings&)>& is_valid) {
  const topology::MeshSizes& mesh = settings.parallel.mesh;
  // Hybrid sharding: whole replicas, so that shards keep their size.
  const bool is_hybrid = mesh.dp_replicate > 1;
  const int64_t unit = is_hybrid ? mesh.dp_shard() : 1;
  const int64_t least = settings.min_dp > 0 ? settings.min_dp : mesh.dp;
  for (int64_t dp = most / unit * unit; dp >= std::max(least, unit);
       dp -= unit) {
    Settings fit = settings;
    fit.parallel.mesh.dp = dp;
    if (is_hybrid) fit.parallel.mesh.dp_replicate = dp / unit;
    // A single rank has no other one for its copy.
    if (fit.parallel.mesh.world_size() == 1) fit.snapshot_every = 0;
    if (settings.batch % dp == 0 && is_valid(fit)) return fit;
  }
  return std::nullopt;
}

std::optional<Crew> FitCrew(const Settings& settings, int64_t nodes_at_start,
                            int64_t nodes) {
  const topology::MeshSizes& mesh = settings.parallel.mesh;
  const int64_t most = mesh.world_size() / nodes_at_start;
  int64_t chosen = 0;
  const auto is_valid = [&](const Settings& fit) {
    const int64_t ranks = fit.parallel.mesh.world_size();
    // The fewest nodes, so that others stay in reserve.
    chosen = (ranks + most - 1) / most;
    while (chosen <= nodes && ranks % chosen != 0) ++chosen;
    if (chosen > nodes) return false;
    return fit.parallel.mesh.dp == mesh.dp || CheckSettings(fit).ok();
  };
  const auto fit =
      FitDataAxis(settings, std::max(mesh.dp, settings.max_dp), is_valid);
  if (!fit.has_value()) return std::nullopt;
  return Crew{*fit, chosen};
}

AttemptOutcome Supervise(const Settings& settings, const JobHooks& hooks) {
  Settings current = settings;
  std::optional<int64_t> failed_before;
  int64_t restarts = 0;
  for (;;) {
    Settings now = current;
    if (settings.snapshot_every > 0) now.max_restarts -= restarts;
    if (now.max_restarts == 0) now.snapshot_every = 0;
    AttemptOutcome outcome = hooks.attempt(now);
    restarts += outcome.replacements;
    if (!outcome.grows && !MayPass(outcome)) return outcome;
    if (!outcome.grows && restarts >= settings.max_restarts) {
      if (restarts > 0) {
        outcome.status = absl::Status(
            outcome.status.code(),
            absl::StrCat(outcome.status.message(), "; after ", restarts,
                         restarts == 1 ? " restart" : " restarts"));
      }
      return outcome;
    }
    const bool may_shrink =
        hooks.are_nodes ? outcome.may_leave : MayShrink(current);
    const bool shrinks =
        may_shrink &&
        (outcome.needs_fewer_ranks || NeedsFewerRanks(outcome, failed_before));
    if (shrinks && hooks.are_nodes) {
      outcome.status = Annotate(outcome.status, "this host leaves the run");
      outcome.leaves = true;
      return outcome;
    }
    if (shrinks) {
      current =
          FitDataAxis(current, current.parallel.mesh.dp - 1, hooks.is_valid)
              .value_or(current);
    }
    failed_before = outcome.rank;
    const std::string checkpoint = hooks.last_checkpoint();
    if (!checkpoint.empty()) current.resume = checkpoint;
    if (outcome.grows) continue;
    hooks.notice(absl::StrCat(
        outcome.status.message(), "; restart ", ++restarts, " of ",
        settings.max_restarts,
        hooks.are_nodes ? ""
                        : absl::StrCat(" on ", current.parallel.mesh.ToFlag()),
        " from ", Source(current)));
  }
}

}  // namespace tessera::train
