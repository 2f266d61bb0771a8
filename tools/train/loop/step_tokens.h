// StepTokens: the tokens of a data-parallel rank's micro-batches, step by step.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_STEP_TOKENS_H_
#define TESSERA_TOOLS_TRAIN_LOOP_STEP_TOKENS_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/text/batch_partition.h"
#include "tools/text/samples.h"
#include "tools/train/model/token_source.h"

namespace tessera::train {

class StepTokens final : public TokenSource {
 public:
  // `samples` outlives this.
  StepTokens(const text::Samples& samples, const text::BatchPartition& batch,
             int64_t data_rank)
      : samples_(samples), batch_(batch), data_rank_(data_rank) {}

  void BeginStep(int64_t step) {
    step_ = step;
    tokens_.clear();
  }

  absl::StatusOr<std::span<const int64_t>> Tokens(int32_t microbatch) override;

 private:
  const text::Samples& samples_;
  const text::BatchPartition batch_;
  const int64_t data_rank_;
  int64_t step_ = 0;
  std::map<int32_t, std::vector<int64_t>> tokens_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_STEP_TOKENS_H_
