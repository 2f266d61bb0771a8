// BatchPartition: which samples of each step are whose.
//
//   // 16 samples a step, over 2 data-parallel ranks, 4 samples at a time.
//   TESSERA_ASSIGN_OR_RETURN(auto batch, BatchPartition::Create(16, 2, 4));
//   for (int64_t m = 0; m < batch.micro_batches(); ++m) {
//     const int64_t first = batch.FirstIndex(step, data_rank, m);
//     // Samples first, ..., first + 3 of samples.h.
//   }
//
// Step k trains on the global indices [k B, (k + 1) B), however they are dealt
// out: rank r has B / ranks consecutive ones, and its micro-batches are
// consecutive ones of these. To go on from a checkpoint needs the step alone,
// or where the batch has changed, the index of the next sample.
#ifndef TESSERA_TOOLS_TEXT_BATCH_PARTITION_H_
#define TESSERA_TOOLS_TEXT_BATCH_PARTITION_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace tessera::text {

class BatchPartition {
 public:
  // `first_sample` is the global index that step 0 begins with. InvalidArgument
  // where a number is below 1, or `first_sample` negative, or `data_ranks`
  // times `micro_batch` does not divide `batch`.
  static absl::StatusOr<BatchPartition> Create(int64_t batch,
                                               int64_t data_ranks,
                                               int64_t micro_batch,
                                               int64_t first_sample = 0);

  int64_t batch() const { return batch_; }
  int64_t data_ranks() const { return data_ranks_; }
  int64_t micro_batch() const { return micro_batch_; }
  int64_t samples_per_rank() const { return batch_ / data_ranks_; }
  // Of each rank, in each step.
  int64_t micro_batches() const { return samples_per_rank() / micro_batch_; }

  // The global index of the first of the micro_batch() samples. `step` is not
  // negative, `data_rank` and `micro_batch_index` are below their counts.
  int64_t FirstIndex(int64_t step, int64_t data_rank,
                     int64_t micro_batch_index) const {
    return first_sample_ + step * batch_ + data_rank * samples_per_rank() +
           micro_batch_index * micro_batch_;
  }

 private:
  BatchPartition(int64_t batch, int64_t data_ranks, int64_t micro_batch,
                 int64_t first_sample)
      : batch_(batch),
        data_ranks_(data_ranks),
        micro_batch_(micro_batch),
        first_sample_(first_sample) {}

  int64_t batch_;
  int64_t data_ranks_;
  int64_t micro_batch_;
  int64_t first_sample_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_BATCH_PARTITION_H_
