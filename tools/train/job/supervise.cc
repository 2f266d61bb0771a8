#include "tools/train/job/supervise.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "topology/axis.h"

namespace tessera::train {
namespace {

using topology::Axis;

// Whether --elastic has the next attempt run on fewer ranks.
bool NeedsFewerRanks(const AttemptOutcome& outcome,
                     const std::optional<int64_t>& failed_before) {
  if (absl::IsResourceExhausted(outcome.status)) return true;
  if (!outcome.took_a_step) return true;
  return outcome.rank.has_value() && outcome.rank == failed_before;
}

std::string Source(const Settings& settings) {
  return settings.resume.empty() ? "the beginning" : settings.resume;
}

}  // namespace

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

std::optional<Settings> ShrinkDataAxis(
    const Settings& settings,
    const std::function<bool(const Settings&)>& is_valid) {
  const absl::StatusOr<std::vector<Axis>> given =
      topology::ParseAxes(settings.mesh);
  if (!given.ok()) return std::nullopt;
  for (size_t a = 0; a < given->size(); ++a) {
    const Axis& axis = (*given)[a];
    // Of hybrid sharding: fewer replicas, each with all the state it had.
    if (axis.name != "dp" && axis.name != "dp_replicate") continue;
    for (int64_t size = axis.size.value() - 1; size >= 1; --size) {
      std::vector<Axis> axes = *given;
      axes[a].size = topology::AxisSize(size);
      Settings smaller = settings;
      smaller.mesh = topology::FormatAxes(axes);
      if (settings.batch % size == 0 && is_valid(smaller)) return smaller;
    }
  }
  return std::nullopt;
}

AttemptOutcome Supervise(const Settings& settings, const JobHooks& hooks) {
  Settings current = settings;
  std::optional<int64_t> failed_before;
  for (int64_t restarts = 0;; ++restarts) {
    AttemptOutcome outcome = hooks.attempt(current);
    if (!MayPass(outcome)) return outcome;
    if (restarts == settings.max_restarts) {
      if (restarts > 0) {
        outcome.status = absl::Status(
            outcome.status.code(),
            absl::StrCat(outcome.status.message(), "; after ", restarts,
                         restarts == 1 ? " restart" : " restarts"));
      }
      return outcome;
    }
    if (settings.elastic && NeedsFewerRanks(outcome, failed_before)) {
      current = ShrinkDataAxis(current, hooks.is_valid).value_or(current);
    }
    failed_before = outcome.rank;
    const std::string checkpoint = hooks.last_checkpoint();
    if (!checkpoint.empty()) current.resume = checkpoint;
    hooks.notice(absl::StrCat(outcome.status.message(), "; restart ",
                              restarts + 1, " of ", settings.max_restarts,
                              " on ", current.mesh, " from ", Source(current)));
  }
}

}  // namespace tessera::train
