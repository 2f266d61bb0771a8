#include "tools/train/launch/supervise.h"

#include "absl/strings/str_cat.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {
namespace {

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
  const topology::MeshSizes& mesh = settings.parallel.mesh;
  // Hybrid sharding: drops whole replicas, so that shards keep their size.
  const bool is_hybrid = mesh.dp_replicate > 1;
  const int64_t unit = is_hybrid ? mesh.dp_shard() : 1;
  for (int64_t dp = mesh.dp - unit; dp >= unit; dp -= unit) {
    Settings smaller = settings;
    smaller.parallel.mesh.dp = dp;
    if (is_hybrid) smaller.parallel.mesh.dp_replicate = dp / unit;
    if (settings.batch % dp == 0 && is_valid(smaller)) return smaller;
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
                              " on ", current.parallel.mesh.ToFlag(), " from ",
                              Source(current)));
  }
}

}  // namespace tessera::train
