#include "tools/train/loop/step_tokens.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera::train {

absl::StatusOr<std::span<const int64_t>> StepTokens::Tokens(
    int32_t microbatch) {
  const auto found = tokens_.find(microbatch);
  if (found != tokens_.end()) return std::span<const int64_t>(found->second);
  const int64_t first = batch_.FirstIndex(step_, data_rank_, microbatch);
  std::vector<text::TokenId> sample(
      static_cast<size_t>(samples_.sequence() + 1));
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < batch_.micro_batch(); ++i) {
    TESSERA_RETURN_IF_ERROR(samples_.ReadTraining(first + i, sample));
    tokens.insert(tokens.end(), sample.begin(), sample.end());
  }
  return std::span<const int64_t>(tokens_[microbatch] = std::move(tokens));
}

}  // namespace tessera::train
