#include "pipeline/proof/validate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/coverage.h"
#include "pipeline/proof/deadlock.h"
#include "pipeline/proof/local_order.h"
#include "pipeline/proof/messages.h"
#include "pipeline/proof/parameters.h"
#include "pipeline/proof/place.h"

namespace tessera::pipeline {
namespace {

// How many are alive, and the most that ever were.
class Gauge {
 public:
  void Add(bool begins) {
    if (!begins) return;
    peak_ = std::max(peak_, ++alive_);
  }
  void Remove(bool ends) { alive_ -= ends ? 1 : 0; }
  int64_t peak() const { return peak_; }

 private:
  int64_t alive_ = 0;
  int64_t peak_ = 0;
};

void Measure(const std::vector<Action>& actions, Proof& proof) {
  Gauge activations;
  Gauge before_backward;
  for (size_t start = 0; start < actions.size();) {
    const auto size =
        static_cast<size_t>(UnitSize(actions, static_cast<int32_t>(start)));
    for (size_t i = start; i < start + size; ++i) {
      const bool forward = actions[i].kind == ActionKind::kForward;
      activations.Add(forward);
      before_backward.Add(forward);
      proof.computations += Computes(actions[i].kind) ? 1 : 0;
    }
    for (size_t i = start; i < start + size; ++i) {
      activations.Remove(GivesWeightGradient(actions[i].kind));
      before_backward.Remove(GivesInputGradient(actions[i].kind));
    }
    start += size;
  }
  proof.peak_activations.push_back(activations.peak());
  proof.peak_before_backward.push_back(before_backward.peak());
}

}  // namespace

absl::StatusOr<Proof> Validate(const Schedule& schedule,
                               const ValidateOptions& options) {
  if (options.buffers < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.buffers, " buffers for a channel; at least 0 are allowed"));
  }
  const bool lowered = options.communication == Communication::kExplicit;
  TESSERA_ASSIGN_OR_RETURN(const Coverage coverage, Coverage::Of(schedule));
  std::vector<Channel> channels;
  if (lowered) {
    TESSERA_ASSIGN_OR_RETURN(channels, MatchMessages(schedule, coverage));
  } else {
    TESSERA_RETURN_IF_ERROR(CheckNoMessages(schedule));
  }
  TESSERA_RETURN_IF_ERROR(CheckLocalOrder(schedule, coverage, lowered));
  Proof proof;
  TESSERA_ASSIGN_OR_RETURN(ParameterPeaks peaks,
                           CheckParameters(schedule, options.parameters));
  proof.peak_unsharded = std::move(peaks.unsharded);
  proof.peak_unsharded_bytes = std::move(peaks.unsharded_bytes);
  proof.peak_parameter_bytes = std::move(peaks.bytes);
  TESSERA_RETURN_IF_ERROR(
      lowered ? CheckMessagesFlow(schedule, channels, options.buffers)
              : CheckComputationsFlow(schedule, coverage));
  for (const auto& actions : schedule.ranks) Measure(actions, proof);
  proof.messages = CountMessages(schedule);
  return proof;
}

}  // namespace tessera::pipeline
