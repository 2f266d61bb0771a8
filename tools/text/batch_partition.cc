#include "tools/text/batch_partition.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::text {

absl::StatusOr<BatchPartition> BatchPartition::Create(int64_t batch,
                                                      int64_t data_ranks,
                                                      int64_t micro_batch,
                                                      int64_t first_sample) {
  if (batch < 1 || data_ranks < 1 || micro_batch < 1 || first_sample < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a batch of ", batch, " samples over ", data_ranks,
        " data ranks in micro-batches of ", micro_batch, " from sample ",
        first_sample, " on; these must be at least 1, and the last 0"));
  }
  // No product: it might be too large.
  if (batch % data_ranks == 0 && batch / data_ranks % micro_batch == 0) {
    return BatchPartition(batch, data_ranks, micro_batch, first_sample);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a batch of ", batch, " samples cannot be shared by ",
                   data_ranks, " data ranks in micro-batches of ", micro_batch,
                   "; make it a multiple of their product"));
}

}  // namespace tessera::text
