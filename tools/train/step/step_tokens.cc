#include "tools/train/step/step_tokens.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "tensor_parallel/ops/cross_entropy.h"
#include "tools/train/watch/live_place.h"

namespace tessera::train {
namespace {

// The rank reads data while an object exists.
class Reading {
 public:
  // Adds the time to `ns`.
  Reading(int64_t& ns, int64_t microbatch)
      : place_(RankAction::kLoadData, microbatch), ns_(ns) {}
  ~Reading() { ns_ += collectives::MonotonicNanos() - begin_; }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  const ActionScope place_;
  int64_t& ns_;
  const int64_t begin_ = collectives::MonotonicNanos();
};

}  // namespace

absl::StatusOr<std::span<const int64_t>> StepTokens::Tokens(
    int32_t microbatch) {
  const auto found = tokens_.find(microbatch);
  if (found != tokens_.end()) return std::span<const int64_t>(found->second);
  const Reading reading(read_ns_, microbatch);
  const int64_t first = FirstSequence(microbatch);
  std::vector<text::TokenId> sample(
      static_cast<size_t>(samples_.sequence() + 1));
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < batch_.micro_batch(); ++i) {
    TESSERA_RETURN_IF_ERROR(samples_.Read(use_, first + i, sample));
    tokens.insert(tokens.end(), sample.begin(), sample.end());
  }
  return std::span<const int64_t>(tokens_[microbatch] = std::move(tokens));
}

absl::StatusOr<std::span<const int64_t>> StepTokens::Targets(
    int32_t microbatch) {
  if (!samples_.has_masks()) return std::span<const int64_t>();
  const auto found = targets_.find(microbatch);
  if (found != targets_.end()) return std::span<const int64_t>(found->second);
  TESSERA_ASSIGN_OR_RETURN(const std::span<const int64_t> tokens,
                           Tokens(microbatch));
  const int64_t first = FirstSequence(microbatch);
  const auto length = static_cast<size_t>(samples_.sequence());
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < batch_.micro_batch(); ++i) {
    const auto begin = static_cast<size_t>(i) * (length + 1);
    std::vector<int64_t> sample(tokens.begin() + begin,
                                tokens.begin() + begin + length + 1);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<text::TokenRange> masked,
                             samples_.MaskedTokens(use_, first + i));
    for (const text::TokenRange& range : masked) {
      std::fill(sample.begin() + range.begin, sample.begin() + range.end,
                tensor_parallel::kNoTarget);
    }
    targets.insert(targets.end(), sample.begin() + 1, sample.end());
  }
  return std::span<const int64_t>(targets_[microbatch] = std::move(targets));
}

absl::StatusOr<std::span<const double>> StepTokens::References(
    int32_t microbatch) {
  if (all_references_.empty()) return std::span<const double>();
  std::vector<double>& references = references_[microbatch];
  const int64_t first = FirstSequence(microbatch);
  for (auto i = static_cast<int64_t>(references.size());
       i < batch_.micro_batch(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t number,
                             samples_.NumberOf(use_, first + i));
    references.push_back(all_references_[static_cast<size_t>(number)]);
  }
  return std::span<const double>(references);
}

// Every rank counts the targets of all ranks, so that no messages are needed.
absl::StatusOr<int64_t> StepTokens::CountTargets() {
  if (!samples_.has_masks()) return CountTokens();
  const Reading reading(read_ns_, /*microbatch=*/-1);
  int64_t count = 0;
  for (int64_t i = 0; i < size_; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t targets,
                             samples_.CountTargets(use_, first_sample_ + i));
    count += targets;
  }
  return count;
}

}  // namespace tessera::train
