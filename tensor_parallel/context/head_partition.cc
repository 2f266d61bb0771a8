#include "tensor_parallel/context/head_partition.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

absl::StatusOr<HeadPartition> HeadPartition::Create(int64_t heads,
                                                    int64_t kv_heads,
                                                    int64_t ranks) {
  if (heads < 1 || kv_heads < 1 || ranks < 1 || heads % kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        heads, " heads, ", kv_heads, " of keys and values, over ", ranks,
        " ranks; give 1 or more of each, and a number of kv heads that divides "
        "the heads"));
  }
  TESSERA_ASSIGN_OR_RETURN(const Partition partition,
                           Partition::Balanced(heads, ranks));
  return HeadPartition(partition, heads / kv_heads);
}

std::vector<HeadRun> HeadPartition::RunsOf(int64_t rank) const {
  const int64_t group = heads_per_kv_head_;
  const IndexRange mine = HeadsOf(rank);
  // Where whole kv heads begin and end; not in this order within one of them.
  const int64_t whole_begin =
      std::min(mine.end, (mine.begin + group - 1) / group * group);
  const int64_t whole_end = std::max(whole_begin, mine.end / group * group);
  std::vector<HeadRun> runs;
  for (const IndexRange heads :
       {IndexRange{mine.begin, whole_begin}, IndexRange{whole_begin, whole_end},
        IndexRange{whole_end, mine.end}}) {
    if (heads.empty()) continue;
    runs.push_back(
        {heads, {heads.begin / group, (heads.end + group - 1) / group}});
  }
  return runs;
}

IndexRange HeadPartition::KvHeadsOf(int64_t rank) const {
  const IndexRange heads = HeadsOf(rank);
  if (heads.empty()) return {};
  return {heads.begin / heads_per_kv_head_,
          (heads.end - 1) / heads_per_kv_head_ + 1};
}

bool HeadPartition::shares_kv_heads() const {
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    if (HeadsOf(rank).end % heads_per_kv_head_ != 0) return true;
  }
  return false;
}

}  // namespace tessera::tensor_parallel
