#include "tools/train/loop/loss_guard.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "collectives/groups/agreement.h"

namespace tessera::train {

namespace {

// Lists the ranks that found infinite or NaN numbers: "rank 2: a loss of nan in
// its samples, 17 gradient elements". A collective.
absl::StatusOr<std::string> NonFiniteFindings(const RunContext& run,
                                              const StepFinding& own) {
  constexpr size_t kMostNamed = 4;
  std::vector<std::string> parts;
  if (!std::isfinite(own.loss)) {
    parts.push_back(absl::StrCat("a loss of ", own.loss, " in its samples"));
  }
  if (own.non_finite > 0) {
    parts.push_back(absl::StrCat(own.non_finite, " gradient elements"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      collectives::ExchangeTexts(run.world, absl::StrJoin(parts, ", "),
                                 RunContext::kAgreementTimeout));
  std::vector<std::string> found;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    found.push_back(absl::StrCat("rank ", rank, ": ", texts[rank]));
  }
  const size_t more = found.size() - std::min(found.size(), kMostNamed);
  found.resize(found.size() - more);
  if (more > 0) found.push_back(absl::StrCat(more, " more ranks"));
  return absl::StrJoin(found, "; ");
}

}  // namespace

absl::StatusOr<StepVerdict> LossGuard::Judge(const std::vector<double>& losses,
                                             const StepRecord& record,
                                             const TrainRank& rank) {
  StepVerdict verdict;
  TESSERA_ASSIGN_OR_RETURN(verdict.non_finite, NonFinite(record, rank));
  if (run_.settings.spike_factor > 0) FindRollback(losses, record, verdict);
  return verdict;
}

absl::StatusOr<std::string> LossGuard::NonFinite(const StepRecord& record,
                                                 const TrainRank& rank) {
  const int64_t allowed = run_.settings.max_skipped_steps;
  const zero3::LossScaleOptions& scaling = rank.options().state.loss_scale;
  const bool scales = scaling.dynamic && record.loss_scale > scaling.least;
  const bool is_finite = std::isfinite(record.loss);
  skipped_in_a_row_ = record.skipped ? skipped_in_a_row_ + 1 : 0;
  if (is_finite && (!record.skipped || scales)) return "";
  TESSERA_ASSIGN_OR_RETURN(const std::string findings,
                           NonFiniteFindings(run_, rank.finding()));
  if (record.skipped && skipped_in_a_row_ <= allowed) {
    run_.Say(absl::StrCat(
        "step ", record.step,
        " (from 0) is skipped, since numbers are not finite: ", findings));
    return "";
  }
  const std::string in_a_row =
      allowed > 0 && record.skipped
          ? absl::StrCat(
                "; ", skipped_in_a_row_,
                " such steps in a row, and --max_skipped_steps=", allowed)
          : "";
  return absl::StrCat(
      "step ", record.step, " (from 0): the loss is ", record.loss,
      ", the gradient norm ", record.gradient_norm, ", at learning rate ",
      record.learning_rate, " and loss scale ", record.loss_scale,
      "; both must be finite (", findings, in_a_row,
      "). Lower --learning_rate, raise --warmup_steps, set --clip_norm, use "
      "--dtype=fp32, or leave such steps out with --max_skipped_steps");
}

void LossGuard::FindRollback(const std::vector<double>& losses,
                             const StepRecord& record,
                             StepVerdict& verdict) const {
  const double factor = run_.settings.spike_factor;
  std::optional<LossSpike> spike;
  if (std::ssize(losses) == run_.settings.spike_window) {
    spike = FindSpike(losses, record.loss, factor);
  }
  verdict.usual =
      spike ? spike->usual : std::numeric_limits<double>::quiet_NaN();
  verdict.steps_before_rise =
      record.step - static_cast<int64_t>(spike ? spike->rising : 0);
  if (!verdict.non_finite.empty()) {
    verdict.rollback = verdict.non_finite;
  } else if (spike && std::isfinite(record.loss)) {
    // --max_skipped_steps may permit an infinite or NaN loss.
    verdict.rollback = absl::StrFormat(
        "step %d (from 0): the loss %.4g is a spike, %.3g times the median "
        "%.4g of the %d before it (--spike_factor=%g)",
        record.step, record.loss, record.loss / spike->usual, spike->usual,
        losses.size(), factor);
  }
}

}  // namespace tessera::train
