// HeadPartition: which heads each rank has, where ranks share the heads of an
// attention instead of its positions.
//
//   TESSERA_ASSIGN_OR_RETURN(auto partition, HeadPartition::Create(8, 2, 4));
//   partition.RunsOf(1);          // query heads 2 and 3, kv head 0
//   partition.shares_kv_heads();  // true: ranks 0 and 1 both need kv head 0
//
// Query heads are dealt out evenly, at most one more to some than to others;
// with more ranks than heads the last ranks have none. With them a rank needs
// the kv heads at which they look: where ranks do not divide the kv heads, two
// or more ranks need the same one. Pure arithmetic.
#ifndef TESSERA_TENSOR_PARALLEL_CONTEXT_HEAD_PARTITION_H_
#define TESSERA_TENSOR_PARALLEL_CONTEXT_HEAD_PARTITION_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tensor_parallel/sharding/index_range.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// Query heads side by side, and the kv heads at which they look: as many of the
// first for each of the second, so that they are an attention by themselves.
struct HeadRun {
  IndexRange heads;
  IndexRange kv_heads;

  friend bool operator==(const HeadRun&, const HeadRun&) = default;
};

class HeadPartition {
 public:
  // InvalidArgument where a number is below 1 or kv heads do not divide the
  // heads.
  static absl::StatusOr<HeadPartition> Create(int64_t heads, int64_t kv_heads,
                                              int64_t ranks);

  int64_t heads() const { return heads_.size(); }
  int64_t kv_heads() const { return heads_.size() / heads_per_kv_head_; }
  int64_t ranks() const { return heads_.parts(); }

  // `rank` is in [0, ranks()). Ascending, none empty, no kv head twice: a part
  // of the first kv head's heads, those of whole kv heads, a part of the last
  // one's, as far as there are any.
  std::vector<HeadRun> RunsOf(int64_t rank) const;
  IndexRange HeadsOf(int64_t rank) const { return heads_.RangeOf(rank); }
  IndexRange KvHeadsOf(int64_t rank) const;

  // Whether two ranks need the same kv head.
  bool shares_kv_heads() const;

 private:
  HeadPartition(const Partition& heads, int64_t heads_per_kv_head)
      : heads_(heads), heads_per_kv_head_(heads_per_kv_head) {}

  Partition heads_;
  int64_t heads_per_kv_head_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_HEAD_PARTITION_H_
