// StepTokens: the tokens and targets of a rank's micro-batches.
//
//   tokens.Begin(text::SampleUse::kTraining, first_sample, batch);
//   tokens.Tokens(0);  // [micro_batch, length + 1]
#ifndef TESSERA_TOOLS_TRAIN_STEP_STEP_TOKENS_H_
#define TESSERA_TOOLS_TRAIN_STEP_STEP_TOKENS_H_

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/text/samples.h"
#include "tools/train/model/llama_stage.h"

namespace tessera::train {

// The tokens of a data-parallel rank's micro-batches: for training, step by
// step, or for validation and the test, batch by batch.
class StepTokens final : public TokenSource {
 public:
  // `samples` outlives this.
  StepTokens(const text::Samples& samples, const text::BatchPartition& batch,
             int64_t data_rank)
      : samples_(samples), batch_(batch), data_rank_(data_rank) {}

  // `size` is the number of sequences of the step over all ranks, a multiple of
  // the micro-batches of all data-parallel ranks.
  void Begin(text::SampleUse use, int64_t first_sample, int64_t size) {
    use_ = use;
    first_sample_ = first_sample;
    size_ = size;
    tokens_.clear();
    targets_.clear();
    references_.clear();
    read_ns_ = 0;
  }

  // The nanoseconds since Begin in which data was read.
  int64_t read_ns() const { return read_ns_; }

  // The reference's log-probabilities of all samples of the corpus, by number;
  // empty: unknown.
  void SetReferences(std::vector<double> all) {
    all_references_ = std::move(all);
  }
  const std::vector<double>& all_references() const { return all_references_; }
  int64_t CountSamples() const { return samples_.samples(); }

  // The number of targets of the whole batch, over all data ranks, that are not
  // masked.
  absl::StatusOr<int64_t> CountTargets();
  int64_t CountTokens() const { return size_ * samples_.sequence(); }

  absl::StatusOr<std::span<const int64_t>> Tokens(int32_t microbatch) override;
  absl::StatusOr<std::span<const int64_t>> Targets(int32_t microbatch) override;
  absl::StatusOr<std::span<const double>> References(
      int32_t microbatch) override;
  int64_t FirstSequence(int32_t microbatch) const override {
    return first_sample_ + data_rank_ * (size_ / batch_.data_ranks()) +
           microbatch * batch_.micro_batch();
  }

 private:
  const text::Samples& samples_;
  const text::BatchPartition batch_;  // The whole batch.
  const int64_t data_rank_;
  text::SampleUse use_ = text::SampleUse::kTraining;
  int64_t first_sample_ = 0;  // The step's or batch's first, over all ranks.
  int64_t size_ = 0;          // The number of its sequences.
  std::map<int32_t, std::vector<int64_t>> tokens_;
  std::map<int32_t, std::vector<int64_t>> targets_;  // If some are masked.
  std::map<int32_t, std::vector<double>> references_;
  std::vector<double> all_references_;
  int64_t read_ns_ = 0;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_STEP_STEP_TOKENS_H_
